"""BatchNormalization into the weights before it, which is how a quantised model is deployed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph import Names
from ..graph.edit import take_over
from ..graph.nodes import initializer
from .constants import Array, value_of

BEFORE = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators that a normalisation of their output channels goes into."""


def fold_batch_norms(model: ir.Model) -> int:
    """Fold every BatchNormalization that can be; gives how many.

    Those in training mode too: what runs after training is the form with running statistics, and
    that is the form whose rounding has to be learned.
    """
    graph = model.graph
    names = Names(graph.initializers)
    folded = 0
    for norm in list(graph):
        if norm.op_type != "BatchNormalization" or norm.domain:
            continue
        layer = _layer_before(norm)
        if layer is not None and _fold(graph, layer, norm, names.fresh):
            folded += 1
    return folded


def _layer_before(norm: ir.Node) -> ir.Node | None:
    """The layer whose result only the normalisation reads."""
    source = norm.inputs[0]
    layer = None if source is None else source.producer()
    if layer is None or layer.domain or layer.op_type not in BEFORE or source is None:
        return None
    alone = len(source.uses()) == 1 and not source.is_graph_output()
    statistics_unread = not any(o.uses() or o.is_graph_output() for o in norm.outputs[1:])
    return layer if alone and statistics_unread and layer.graph is norm.graph else None


def _fold(graph: ir.Graph, layer: ir.Node, norm: ir.Node, fresh: Callable[[str], str]) -> bool:
    numbers = [value_of(v) for v in norm.inputs[1:5]]
    weight = value_of(layer.inputs[1])
    bias = value_of(layer.inputs[2]) if _has_bias(layer) else np.zeros(1, np.float32)
    if weight is None or bias is None or any(n is None for n in numbers):
        return False
    if layer.op_type == "Gemm" and (_number(layer, "beta", 1.0), bias.ndim > 1) != (1.0, False):
        return False
    gamma, beta, mean, variance = (np.asarray(n, np.float64) for n in numbers)
    factor = gamma / np.sqrt(variance + _number(norm, "epsilon", 1e-5))
    shape = _along_outputs(layer, weight.ndim, len(factor))
    if shape is None:
        return False
    new_weight = _scaled(weight, factor, shape, _number(layer, "group", 1))
    new_bias = (bias.astype(np.float64) - mean) * factor + beta
    stem = (layer.inputs[1].name if layer.inputs[1] is not None else None) or layer.name or "layer"
    own = _replaceable(layer.inputs[1])
    name = stem if own else fresh(f"{stem}.folded")
    _store(graph, layer, 1, name, new_weight.astype(weight.dtype), own)
    bias_value = layer.inputs[2] if _has_bias(layer) else None
    own_bias = _replaceable(bias_value)
    bias_name = (bias_value.name or "") if bias_value is not None and own_bias else ""
    bias_name = bias_name or fresh(_bias_name(stem))
    _store(graph, layer, 2, bias_name, new_bias.astype(weight.dtype), own_bias)
    result = norm.outputs[0]
    before = layer.outputs[0]
    before.type, before.shape = result.type or before.type, result.shape or before.shape
    take_over(result, before)
    graph.remove(norm, safe=True)
    return True


def _scaled(weight: Array, factor: Array, shape: tuple[int, ...], group: float) -> Array:
    wide = weight.astype(np.float64)
    if len(shape) > 1 and shape[0] == 1 and group > 1:  # a ConvTranspose has its outputs in groups
        groups = int(group)
        parts = wide.reshape(groups, -1, *wide.shape[1:])
        per_group = factor.reshape(groups, 1, -1, *[1] * (wide.ndim - 2))
        return (parts * per_group).reshape(wide.shape)
    return wide * factor.reshape(shape)


def _along_outputs(layer: ir.Node, rank: int, channels: int) -> tuple[int, ...] | None:
    """The shape in which one number per output meets the weight."""
    axis = output_axis(layer)
    if axis is None or axis >= rank:
        return None
    return tuple(channels if i == axis else 1 for i in range(rank))


def output_axis(layer: ir.Node) -> int | None:
    """The axis of a layer's weight that its outputs lie along."""
    if layer.op_type == "Conv":
        return 0
    if layer.op_type in {"ConvTranspose", "MatMul"}:
        return 1
    if layer.op_type == "Gemm":
        return 0 if _number(layer, "transB", 0) else 1
    return None


def _has_bias(layer: ir.Node) -> bool:
    return len(layer.inputs) > 2 and layer.inputs[2] is not None


def _replaceable(value: ir.Value | None) -> bool:
    """Whether nothing but one layer reads an initializer."""
    if value is None or value.const_value is None or value.producer() is not None:
        return False
    return len(value.uses()) == 1 and not value.is_graph_output() and not value.is_graph_input()


def _store(
    graph: ir.Graph, layer: ir.Node, index: int, name: str, array: Array, in_place: bool
) -> None:
    if in_place:
        value = layer.inputs[index]
        assert value is not None
        value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
        value.shape = ir.Shape(array.shape)
        return
    if len(layer.inputs) <= index:
        layer.resize_inputs(index + 1)
    layer.replace_input_with(index, initializer(graph, name, array))


def _bias_name(weight: str) -> str:
    return f"{weight[: -len('weight')]}bias" if weight.endswith("weight") else f"{weight}.bias"


def _number(node: ir.Node, name: str, default: float) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value
