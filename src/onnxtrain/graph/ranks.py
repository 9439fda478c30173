"""Ranks that onnx's shape inference gives up on when dimensions are symbolic.

Most gradients need the number of dimensions, few need the dimensions themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

Dims = list["int | str | None"]


def fill_ranks(model: ir.Model) -> bool:
    """Give outputs without a shape the rank their operator implies; whether any was filled."""
    filled = False
    for node in model.graph.all_nodes():
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        output = node.outputs[0]
        if rule is None or output.shape is not None or output.type is None:
            continue  # a shape without a type is not written, and would be filled for ever
        dims = rule(node)
        if dims is not None:
            output.shape = ir.Shape(dims)
            filled = True
    return filled


def _dims(node: ir.Node, index: int) -> Dims | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else d.value for d in value.shape.dims]


def _conv_transpose(node: ir.Node) -> Dims | None:
    x, w = _dims(node, 0), _dims(node, 1)
    if x is None and w is None:
        return None
    rank = len(x or w or [])
    group = node.attributes.get_int("group", 1)
    per_group = w[1] if w is not None else None
    channels = per_group * group if isinstance(per_group, int) else None
    return [x[0] if x is not None else None, channels, *[None] * (rank - 2)]


def _conv(node: ir.Node) -> Dims | None:
    x, w = _dims(node, 0), _dims(node, 3 if node.op_type == "QLinearConv" else 1)
    if x is None and w is None:
        return None
    first = x[0] if x is not None else None
    return [first, w[0] if w is not None else None, *[None] * (len(x or w or []) - 2)]


def _max_unpool(node: ir.Node) -> Dims | None:
    x = _dims(node, 0)
    return None if x is None else [*x[:2], *[None] * (len(x) - 2)]


def _gather_nd(node: ir.Node) -> Dims | None:
    x, indices = _dims(node, 0), _dims(node, 1)
    if x is None or indices is None or not isinstance(indices[-1], int):
        return None
    batch = node.attributes.get_int("batch_dims", 0)
    return [*indices[:-1], *x[batch + indices[-1] :]]


def _fixed(*dims: int | None) -> Callable[[ir.Node], Dims | None]:
    return lambda node: list(dims)


def _stft(node: ir.Node) -> Dims | None:
    x = _dims(node, 0)
    return [x[0] if x is not None else None, None, None, 2]


RULES: dict[str, Callable[[ir.Node], Dims | None]] = {
    "ConvTranspose": _conv_transpose,
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "MaxUnpool": _max_unpool,
    "GatherND": _gather_nd,
    "STFT": _stft,
    "HannWindow": _fixed(None),
    "HammingWindow": _fixed(None),
    "BlackmanWindow": _fixed(None),
    "MelWeightMatrix": _fixed(None, None),
}
