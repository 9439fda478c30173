"""GroupNorm as exporters write it: InstanceNormalization over groups, a product and a sum."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph.nodes import known
from ..graph.tensor import dims_of


@dataclass(frozen=True)
class GroupNorm:
    """What is normalized, in how many groups, with which factor and summand per channel."""

    x: ir.Value
    groups: int
    epsilon: float
    scale: ir.Value
    bias: ir.Value
    inner: tuple[ir.Value, ...]
    """The values in between."""


def group_norm_parts(add: ir.Node) -> GroupNorm | None:
    """The GroupNorm whose last node this is."""
    for product, bias in _both_ways(add):
        mul = _maker(product, "Mul")
        for normal, scale in _both_ways(mul) if mul is not None else ():
            back = _maker(normal, "Reshape")
            norm = _maker(back.inputs[0], "InstanceNormalization") if back is not None else None
            if back is None or norm is None or norm.inputs[0] is None:
                continue
            split = norm.inputs[0].producer()
            if split is None or split.op_type != "Reshape" or split.domain:
                continue
            x, grouped = split.inputs[0], dims_of(norm.inputs[0])
            if x is None or not grouped or len(grouped) != 3 or not _is_plain(norm):
                continue
            groups = grouped[1]
            if isinstance(groups, int) and _per_channel((scale, bias), x, normal):
                epsilon = norm.attributes.get_float("epsilon", 1e-5)
                return GroupNorm(
                    x, groups, epsilon, scale, bias, (product, normal, norm.outputs[0])
                )
    return None


def _both_ways(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    a, b = node.inputs
    if a is not None and b is not None:
        yield from ((a, b), (b, a))


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes a value, if nobody else reads it."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.op_type != op_type or node.domain:
        return None
    # A CastLike that was left out reads it still
    readers = [
        n for n, _ in value.uses() if any(o.uses() or o.is_graph_output() for o in n.outputs)
    ]
    return node if len(readers) == 1 and not value.is_graph_output() else None


def _is_plain(norm: ir.Node) -> bool:
    """Whether an InstanceNormalization multiplies by 1 and adds 0."""
    return _is_filled(norm.inputs[1], 1.0) and _is_filled(norm.inputs[2], 0.0)


def _is_filled(value: ir.Value | None, number: float) -> bool:
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Expand" and not node.domain:
        value = node.inputs[0]
    tensor = known(value)
    return tensor is not None and bool(np.all(tensor.numpy() == number))


def _per_channel(operands: Collection[ir.Value], x: ir.Value, normal: ir.Value) -> bool:
    """Whether operands have one number per channel of `x`, which has the shape of `normal`."""
    dims = dims_of(x)
    if dims is None or len(dims) < 3 or None in dims or dims != dims_of(normal):
        return False
    per_channel = (dims[1], *[1] * (len(dims) - 2))
    return isinstance(dims[1], int) and all(
        dims_of(v) in (per_channel, (1, *per_channel)) for v in operands
    )
