"""Parameters are graph inputs that remember a value.

While a model is being transformed, what is trained must look like an input: a pass that sees an
initializer may fold it, merge it with an equal one or drop it when it is 1 (ADR 1). So parameters
leave the initializers before the first pass and come back, if wanted there, after the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir

from ..errors import ModelError
from .schema import FLOATS

CONSTANT = "onnxtrain.constant"
"""Metadata key of initializers that are part of a formula, not weights."""


ADAPTERS = "onnxtrain.lora"
"""Metadata key of models with adapters: JSON, whose "parameters" are what is trained."""


LOSS_SCALE = "onnxtrain.loss_scale"
"""Name of the parameter that holds the scale of a loss, see `onnxtrain.quant.mixed_precision`; the
runtime, which undoes it, knows it by the same name."""


STOP_GRADIENT = "onnxtrain.stop_gradient"
"""How the names of nodes begin whose results are constants to the gradient."""


def adapter_parameters(model: ir.Model) -> set[str] | None:
    """What is trained of a model with adapters, the rest being their base; None without any."""
    try:
        noted = json.loads(model.metadata_props.get(ADAPTERS, "null"))
        return None if noted is None else set(map(str, noted["parameters"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ModelError(
            f"The model's metadata {ADAPTERS!r} cannot be read ({error}). Add the adapter to the "
            "base model again with onnxtrain.lora.add."
        ) from error


def mark_constant(value: ir.Value) -> None:
    """Say that an initializer is not a weight: it is trained only when asked for by name."""
    value.metadata_props[CONSTANT] = "1"


ONLY_WHEN_NAMED = {
    ("DequantizeLinear", 1),
    ("NegativeLogLikelihoodLoss", 2),
    ("QuantizeLinear", 1),
    ("SoftmaxCrossEntropyLoss", 2),
}
"""Operands that have a gradient but are settings: scales of quantization, weights of classes."""


def float_initializers(model: ir.Model) -> list[str]:
    """Names of the initializers that are trained by default, in the model's order."""
    return [
        name
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and value.const_value.dtype in FLOATS
        and CONSTANT not in value.metadata_props
        and not _is_setting(value)
    ]


def _is_setting(value: ir.Value) -> bool:
    uses = [(node.op_type, index) for node, index in value.uses()]
    return bool(uses) and all(use in ONLY_WHEN_NAMED for use in uses)


def to_inputs(model: ir.Model, names: Iterable[str]) -> None:
    """Turn initializers into graph inputs that remember their value."""
    graph = model.graph
    for name in names:
        value = graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(tensor.shape.numpy())
        if not value.is_graph_input():
            graph.inputs.append(value)


def to_initializers(model: ir.Model) -> None:
    """Turn every graph input that remembers a value back into an initializer."""
    graph = model.graph
    for value in [v for v in graph.inputs if v.const_value is not None]:
        assert value.name is not None
        graph.inputs.remove(value)
        graph.initializers[value.name] = value


def parameters(model: ir.Model) -> dict[str, ir.Value]:
    """The parameters of a model, by name."""
    return {v.name: v for v in model.graph.inputs if v.const_value is not None and v.name}
