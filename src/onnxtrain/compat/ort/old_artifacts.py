"""Artifacts that onnxruntime-training 1.15 to 1.19 generated, rewritten for stock onnxruntime.

Their training and optimizer models use operators that only the training builds had. Here these are
written with standard operators, and in-place updates become inputs and outputs, as in
artifacts that onnxtrain writes. `Module` and `Optimizer` come here by themselves when they are
given such a file; `convert_artifacts` does it once and for all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ... import optim
from ...errors import MissingFileError, ModelError, ShapeInferenceError, model_errors
from ...graph import ModelLike, load, to_proto
from ...graph.contract import METADATA, describe_labels
from ...graph.infer import infer_shapes
from ...graph.io import save
from ...graph.labels import class_labels, guard_labels
from ...graph.nodes import identity
from ...normalize import MAX_OPSET
from ...normalize.constants import lift_constants
from ...normalize.contrib import MS
from ...normalize.custom_types import infer_with_custom
from ...normalize.normalize import one_opset, tidy_imports
from ...normalize.rewrite import describe, rewrite_typed, standard
from ...normalize.validate import validate
from ...passes import clean_up
from ...passes.accumulation import RESET, accumulate
from ...passes.modes import random_nodes
from ...runtime.files.readfile import file_name
from ...runtime.state.checkpoint_state import CheckpointState
from .lowerings import FIRST, PRIVATE, TABLE

ACCUMULATOR = "InPlaceAccumulatorV2"
BUFFER = "_grad.accumulation.buffer"
OUT = "_grad.accumulation.out"
GENERATE_AGAIN = (
    "Generate the artifacts again from the forward model with "
    "onnxtrain.artifacts.generate_artifacts."
)
OPTIMIZERS = {"AdamWOptimizer", "SGDOptimizerV2"}


class OldArtifactError(ModelError):
    """A file of onnxruntime-training has something that cannot be converted."""


# --- the training model -------------------------------------------------------------------------


@model_errors("Converting the training model")
def convert_training_model(model: ModelLike, frozen: Collection[str] = ()) -> ir.Model:
    """Rewrite a training model with standard operators, in the form that `Module` reads.

    Args:
        model: the predecessor's training model.
        frozen: parameters that are not trained. The file does not tell them from the user's
            inputs; the checkpoint does.

    Raises:
        OldArtifactError: names every operator that cannot be converted.
    """
    loaded = load(model)
    _own_domain(loaded)
    user_outputs = [o.name for o in loaded.graph.outputs if o.name and not o.name.endswith(OUT)]
    gradients = _drop_accumulation(loaded)
    states = _expose_statistics(loaded, frozen)
    try:
        loaded = standard_operators(loaded)
    except ShapeInferenceError as error:
        raise OldArtifactError(
            f"The shapes in the training model contradict each other ({error}), as those of the "
            f"gradient of a broadcast Where did. {GENERATE_AGAIN}"
        ) from error
    outputs = {o.name: o for o in loaded.graph.outputs}
    trainable = list(gradients)
    extra, accumulated = accumulate(loaded, gradients, trainable)
    results = [outputs[n] for n in user_outputs]
    results += [*accumulated, *(outputs[n] for n in states.values())]
    _set(loaded.graph.outputs, results)
    names = [v.name or "" for v in loaded.graph.inputs]
    inputs = {v.name: v for v in loaded.graph.inputs}
    order = [n for n in names if n not in extra] + extra
    _set(loaded.graph.inputs, [inputs[n] for n in order])
    parameters = {*trainable, *frozen}
    labels = [one for one in class_labels(loaded) if one.input not in parameters]
    guard_labels(loaded, [one.input for one in labels])
    described = {
        "version": 1,
        "kind": "training",
        "user_inputs": [n for n in order if n not in parameters and n not in extra],
        "user_outputs": user_outputs,
        "trainable": trainable,
        "frozen": [n for n in order if n in set(frozen)],
        "gradients": gradients,
        "states": states,
        "random_nodes": random_nodes(loaded),
        **describe_labels(labels),
    }
    loaded.metadata_props[METADATA] = json.dumps(described)
    loaded.producer_name = "onnxtrain"
    return loaded


@model_errors("Converting the operators of onnxruntime-training")
def standard_operators(model: ir.Model) -> ir.Model:
    """Rewrite every private operator; the result has standard ones only.

    Also for gradient graphs that are no artifacts, such as `GradientGraphBuilder` made.
    """
    _own_domain(model)
    _refuse_unknown(model)
    model = one_opset(infer_with_custom(lift_constants(validate(model))))
    version = model.opset_imports[""]
    for table in (FIRST, TABLE):
        model = rewrite_typed(model, table, version)
    model = clean_up(infer_shapes(tidy_imports(lift_constants(model))))
    for node in model.graph.all_nodes():
        node.name = node.name or ""
    return model


def _own_domain(model: ir.Model) -> None:
    """Some private operators pretend to be standard ones."""
    moved = False
    for node in model.graph.all_nodes():
        if not standard(node.domain) and node.op_type in PRIVATE:
            node.domain, moved = MS, True
    if moved:
        model.opset_imports.setdefault(MS, 1)


def _refuse_unknown(model: ir.Model) -> None:
    known = {*TABLE, *FIRST}
    wrong = [
        n
        for n in model.graph.all_nodes()
        if standard(n.domain) not in {"", "ai.onnx.ml"} and (n.domain, n.op_type) not in known
    ]
    if wrong:
        kinds = sorted({f"{n.domain}::{n.op_type}" for n in wrong})
        raise OldArtifactError(
            f"{len(wrong)} node{'s' * (len(wrong) > 1)} of the training model cannot be "
            f"converted: {', '.join(kinds)}; the first is {describe(wrong[0])}. {GENERATE_AGAIN}"
        )


def _drop_accumulation(model: ir.Model) -> dict[str, str]:
    """Take the accumulators away; the gradients of this step become outputs `<p>_grad`."""
    graph = model.graph
    values = {v.name: v for v in graph.inputs}
    by_parameter: dict[str, ir.Value] = {}
    for node in [n for n in graph if n.op_type == ACCUMULATOR]:
        buffer, gradient = node.inputs[0], node.inputs[1]
        name = (buffer.name or "").removesuffix(BUFFER) if buffer is not None else ""
        if gradient is None or name not in values:
            raise OldArtifactError(f"{describe(node)} accumulates into an unknown buffer.")
        by_parameter[name] = gradient
    _set(graph.outputs, [o for o in graph.outputs if not (o.name or "").endswith(OUT)])
    for node in [n for n in graph if n.op_type == ACCUMULATOR]:
        graph.remove(node, safe=True)
    remaining = [v for v in graph.inputs if v.name != RESET and not (v.name or "").endswith(BUFFER)]
    _set(graph.inputs, remaining)
    order = [v.name or "" for v in remaining if v.name in by_parameter]
    for name in order:
        graph.outputs.append(_gradient_output(graph, name, by_parameter[name]))
    return {n: f"{n}_grad" for n in order}


def _gradient_output(graph: ir.Graph, name: str, gradient: ir.Value) -> ir.Value:
    parameter = next(v for v in graph.inputs if v.name == name)
    is_inner = gradient.producer() is not None and not gradient.is_graph_output()
    if gradient.name != f"{name}_grad" or not is_inner:
        node = identity(gradient, f"{name}_grad/Identity", f"{name}_grad")
        graph.append(node)
        gradient = node.outputs[0]
    gradient.type, gradient.shape = parameter.type, parameter.shape
    return gradient


def _expose_statistics(model: ir.Model, frozen: Collection[str]) -> dict[str, str]:
    """Running statistics, which the predecessor's kernel updated in place, become outputs."""
    states: dict[str, str] = {}
    for node in [n for n in model.graph if n.op_type == "BatchNormInternal"]:
        for source, result in zip(node.inputs[3:5], node.outputs[1:3]):
            name = source.name if source is not None else None
            if source is None or name is None or name not in frozen or name in states:
                continue
            result.name = f"{name}.updated"
            result.type, result.shape = source.type, source.shape
            model.graph.outputs.append(result)
            states[name] = result.name
    return states


def _set(target: Any, values: Sequence[ir.Value]) -> None:
    while target:
        target.pop()
    target.extend(values)


# --- the optimizer model ------------------------------------------------------------------------


def optimizer_of(model: ModelLike) -> optim.Optimizer:
    """The optimizer that an old optimizer model applies."""
    graph = load(model).graph
    nodes = {n.op_type: n for n in graph}
    chosen = [n for n in graph if n.op_type in OPTIMIZERS]
    unknown = sorted(set(nodes) - OPTIMIZERS - {"InplaceClipGradNorm"})
    if len(chosen) != 1 or unknown:
        what = ", ".join(unknown) or f"{len(chosen)} optimizer nodes"
        raise OldArtifactError(
            f"The optimizer model cannot be converted: it has {what}. One AdamWOptimizer or "
            "SGDOptimizerV2 node, with or without InplaceClipGradNorm, is understood."
        )
    clip_node = nodes.get("InplaceClipGradNorm")
    clip = None
    if clip_node is not None:
        clip = optim.ClipNorm(float(_number(clip_node, "max_norm", 1.0)))
    node = chosen[0]
    if node.op_type == "SGDOptimizerV2":
        return optim.sgd(clip=clip)
    return optim.adamw(
        (_number(node, "alpha", 0.9), _number(node, "beta", 0.999)),
        _number(node, "epsilon", 1e-8),
        _number(node, "weight_decay", 1e-2),
        correct_bias=bool(_number(node, "correct_bias", 1)),
        form="huggingface" if _number(node, "adam_mode", 0) else "torch",
        clip=clip,
    )


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


@model_errors("Converting the optimizer model")
def convert_optimizer_model(
    model: ModelLike, parameters: Sequence[tuple[str, Sequence[int]]] | None = None
) -> ir.Model:
    """Rewrite an optimizer model.

    Args:
        model: the predecessor's optimizer model.
        parameters: names and shapes of what is trained; with them the result has the inputs
            that scripts feed (sequences), without it is the flat update that `Optimizer` runs.
    """
    optimizer = optimizer_of(model)
    if parameters is None:
        return optim.flat_model(optimizer)
    loaded = load(model)
    version = min(max(loaded.opset_imports.get("", 18), 18), MAX_OPSET)
    flag = loaded.graph.outputs[0].name or "update_completed"
    return optim.sequence_model(optimizer, parameters, version, flag=flag)


# --- what Module and Optimizer call -------------------------------------------------------------


def training_bytes(source: str | os.PathLike[str] | bytes, frozen: Collection[str]) -> bytes:
    """A training model as `Module` reads it."""
    content: bytes = to_proto(convert_training_model(source, frozen)).SerializeToString()
    return content


def optimizer_bytes(source: str | os.PathLike[str] | bytes) -> bytes:
    """An optimizer model as `Optimizer` reads it."""
    content: bytes = to_proto(convert_optimizer_model(source)).SerializeToString()
    return content


# --- a folder -----------------------------------------------------------------------------------


def _refuse_own(path: Path) -> None:
    """Artifacts that onnxtrain wrote describe themselves; the predecessor's do not."""
    if METADATA in load(path).metadata_props:
        raise OldArtifactError(
            f"{str(path.parent)!r} holds artifacts that onnxtrain wrote: they are for the stock "
            "onnxruntime already, use them as they are."
        )


def convert_artifacts(
    old_dir: str | os.PathLike[str],
    new_dir: str | os.PathLike[str],
    prefix: str = "",
    *,
    checkpoint_format: str = "ortt",
) -> list[str]:
    """Convert a folder of the predecessor's artifacts.

    Args:
        old_dir: holds ``training_model.onnx`` and ``checkpoint``, and, if they exist, also
            ``eval_model.onnx``, ``optimizer_model.onnx`` and ``nominal_checkpoint``.
        new_dir: made if it does not exist; must not be `old_dir`.
        prefix: what the file names start with.
        checkpoint_format: ``"ortt"``, or ``"odtc"`` to keep the predecessor's format.

    Returns:
        Names of the files written.

    Example:
        >>> convert_artifacts("old_artifacts", "artifacts")  # doctest: +SKIP
    """
    from ...artifacts.write import all_or_nothing

    old, new = Path(file_name(old_dir)), Path(file_name(new_dir))
    for name in ("training_model.onnx", "checkpoint"):
        if not (old / f"{prefix}{name}").exists():
            raise MissingFileError(f"There is no {prefix}{name} in {str(old)!r}.")
    if new.resolve() == old.resolve():
        raise OldArtifactError("The converted artifacts need a folder of their own.")
    _refuse_own(old / f"{prefix}training_model.onnx")
    new.mkdir(parents=True, exist_ok=True)
    state = CheckpointState.load_checkpoint(old / f"{prefix}checkpoint")
    _, frozen = state.training_state.names()
    training = convert_training_model(old / f"{prefix}training_model.onnx", frozen)
    described = json.loads(training.metadata_props[METADATA])
    shapes = _shapes(training, described["trainable"])
    with all_or_nothing(new) as folder:
        save(training, folder / f"{prefix}training_model.onnx")
        _convert_eval(old / f"{prefix}eval_model.onnx", folder, described)
        optimizer = old / f"{prefix}optimizer_model.onnx"
        if optimizer.exists():
            save(convert_optimizer_model(optimizer, shapes), folder / optimizer.name)
        CheckpointState.save_checkpoint(
            state, folder / f"{prefix}checkpoint", include_optimizer_state=True,
            format=checkpoint_format,  # type: ignore[arg-type]
        )  # fmt: skip
        nominal = old / f"{prefix}nominal_checkpoint"
        if nominal.exists():
            shutil.copyfile(nominal, folder / nominal.name)  # read as it is
        return sorted(f.name for f in folder.iterdir())


def _shapes(model: ir.Model, names: Sequence[str]) -> list[tuple[str, list[int]]]:
    inputs = {v.name: v for v in model.graph.inputs}
    shapes = []
    for name in names:
        shape = inputs[name].shape
        if shape is None or not all(isinstance(d, int) for d in shape.dims):
            raise OldArtifactError(f"The training model gives no shape for parameter {name!r}.")
        shapes.append((name, [int(d) for d in shape.numpy()]))
    return shapes


def _convert_eval(path: Path, folder: Path, described: dict[str, Any]) -> None:
    if not path.exists():
        return
    model = load(path)
    repair_eval_model(model)
    present = [v.name for v in model.graph.inputs]
    model.metadata_props[METADATA] = json.dumps(
        {
            "version": 1,
            "kind": "eval",
            "user_inputs": [
                n for n in present if n not in {*described["trainable"], *described["frozen"]}
            ],
            "user_outputs": [o.name for o in model.graph.outputs],
            "trainable": [n for n in described["trainable"] if n in present],
            "frozen": [n for n in described["frozen"] if n in present],
            **({"labels": described["labels"]} if "labels" in described else {}),
        }
    )
    save(model, folder / path.name)


def repair_eval_model(model: ir.Model) -> None:
    """Make the eval model of a network with BatchNormalization loadable.

    The predecessor switched training mode off and left the two outputs for running statistics,
    which inference mode does not allow.
    """
    for node in model.graph.all_nodes():
        mode = node.attributes.get("training_mode")
        is_norm = node.op_type == "BatchNormalization" and not standard(node.domain)
        if is_norm and len(node.outputs) > 1 and (mode is None or not mode.value):
            node.resize_outputs(1)
