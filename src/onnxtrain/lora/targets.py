"""Which layers are adapted."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence

import onnx_ir as ir

from ..errors import AdapterError
from .config import Config
from .layers import Layer

ALL = "all-linear"


def choose(
    model: ir.Model, layers: Sequence[Layer], targets: str | Sequence[str], config: Config
) -> list[Layer]:
    """The layers that are meant.

    Args:
        model: the model of the layers.
        layers: those that there are.
        targets: "all-linear" (all linear layers but the one that gives an output, as PEFT has it);
            a regular expression for a whole name or for its last parts (``q_proj|v_proj``); or a
            list of names, last parts of names, or patterns with ``*``.
        config: the rank must fit.

    Raises:
        AdapterError: nothing is meant, or a layer that cannot be adapted so.
    """
    if not layers:
        raise AdapterError(
            "The model has no layer that an adapter fits: no MatMul, Gemm, Conv or MatMulNBits "
            "with a stored weight in its main graph."
        )
    chosen = matching(model, layers, targets)
    for layer in chosen:
        _check(layer, config)
    return chosen


def matching(
    model: ir.Model,
    layers: Sequence[Layer],
    targets: str | Sequence[str],
    argument: str = "targets",
) -> list[Layer]:
    """The layers that are meant, whatever is to be done with them; see `choose`.

    Args:
        model: the model of the layers.
        layers: those that there are.
        targets: as for `choose`.
        argument: what the caller's caller named them by, for errors.
    """
    if targets == ALL:
        chosen = _all_linear(model, layers)
    else:
        chosen = [layer for layer in layers if _is_meant(layer.name, targets, argument)]
    if not chosen:
        raise AdapterError(_nothing(targets, layers, argument))
    return chosen


def _all_linear(model: ir.Model, layers: Sequence[Layer]) -> list[Layer]:
    linear = [layer for layer in layers if not layer.kernel]
    inner = [layer for layer in linear if not any(map(_gives_output, layer.nodes))]
    return inner or linear


def _gives_output(node: ir.Node) -> bool:
    """Whether the result of a layer is an output of the model, after its bias at most."""
    value = node.outputs[0]
    readers = [reader for reader, _ in value.uses()]
    if len(readers) == 1 and readers[0].op_type in {"Add", "Cast", "Identity"}:
        value = readers[0].outputs[0] if not value.is_graph_output() else value
    return value.is_graph_output()


def _is_meant(name: str, targets: str | Sequence[str], argument: str) -> bool:
    if isinstance(targets, str):
        return bool(_expression(targets, argument).search(name))
    return any(
        name == one or name.endswith(f".{one}") or fnmatch.fnmatchcase(name, one) for one in targets
    )


def _expression(targets: str, argument: str) -> re.Pattern[str]:
    """For a whole name, or for parts at its end."""
    try:
        return re.compile(rf"(?:^|\.)(?:{targets})$")
    except re.error as error:
        raise AdapterError(
            f"{argument}={targets!r} is no regular expression ({error.msg}). For patterns with * "
            f"give a list: {argument}=[{targets!r}]."
        ) from error


def _nothing(targets: str | Sequence[str], layers: Sequence[Layer], argument: str) -> str:
    """What to say when no layer is meant: the names that come near, or those that there are."""
    asked = re.split(r"[|,]", targets) if isinstance(targets, str) else list(targets)
    endings = list(dict.fromkeys(layer.name.rpartition(".")[2] for layer in layers))
    near = [n for one in asked for n in difflib.get_close_matches(one, endings, 3, 0.4)]
    shown = ", ".join(dict.fromkeys(near)) or ", ".join(endings[:12])
    example = layers[0].name
    return (
        f"{argument}={targets!r} match none of the {len(layers)} layers. "
        f"{'Near' if near else 'There are'}: {shown}. A whole name looks like {example!r}; "
        f"{ALL!r} means all linear layers; onnxtrain.lora.layers(model) lists them."
    )


def _check(layer: Layer, config: Config) -> None:
    limit = min(layer.inputs, layer.outputs)
    if config.rank > limit:
        raise AdapterError(
            f"rank={config.rank} is more than the layer {layer} has: {limit} at most. Choose a "
            "smaller rank, or other targets."
        )
    if layer.group != 1:
        raise AdapterError(
            f"The convolution {layer} has {layer.group} groups, each with weights of its own; an "
            "adapter needs one. Leave it out of the targets."
        )
    if layer.kernel and config.use_dora:
        raise AdapterError(f"use_dora is for linear layers; {layer} is a convolution.")
