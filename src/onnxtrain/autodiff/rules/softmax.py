"""Softmax and its logarithm (one axis, as since opset 13; older forms arrive converted)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.tensor import Dim
from ..registry import gradient, lookup

ACROSS, MANY_NUMBERS = 64, 4096
"""How many numbers behind the axis, and in all, make `log_softmax_across` the faster form."""
ACROSS_SHORT, TIMES_AS_MANY = 16, 4
"""So many are enough if they are so many times what the axis has."""


def is_across(shape: Sequence[Dim] | None, axis: int) -> bool:
    """Whether the kernel of a softmax along this axis would transpose its operand and the result.

    A million numbers, one thread: (8, 21, 64, 96) along the second axis 9.5 ms by the kernel and
    1.1 written out, (16, 64, 32, 32) 9.2 and 1.4, (2, 8, 256, 256) along the third 1.3 and 1.0;
    (64, 1000, 16) along the second 1.0 and 2.0, which is why what is behind the axis counts; but
    (6990, 3, 5, 10) along the second 24 and 2. Unknown dimensions count 1.
    """
    if shape is None or axis % len(shape) == len(shape) - 1:
        return False
    behind = math.prod(d for d in shape[axis % len(shape) + 1 :] if isinstance(d, int))
    size = shape[axis]
    enough = max(ACROSS_SHORT, TIMES_AS_MANY * size) if isinstance(size, int) else ACROSS
    return (
        behind >= min(ACROSS, enough)
        and math.prod(d for d in shape if isinstance(d, int)) >= MANY_NUMBERS
    )


def softmax_across(op: OpBuilder, x: Tensor, axis: int) -> Tensor:
    """Softmax along an axis that is not the last, without transpositions."""
    e = op.Exp(x - op.ReduceMax(x, [axis]))
    return e / op.ReduceSum(e, [axis])


def log_softmax_across(op: OpBuilder, x: Tensor, axis: int) -> Tensor:
    """LogSoftmax along an axis that is not the last, without transpositions."""
    below = x - op.ReduceMax(x, [axis])
    return below - op.Log(op.ReduceSum(op.Exp(below), [axis]))


@gradient("Softmax")
def softmax(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, axis: int = -1) -> Any:
    y = _without_replaced_rows(op, y, axis)
    return y * (dy - op.ReduceSum(dy * y, [axis]))


def _without_replaced_rows(op: OpBuilder, y: Tensor, axis: int) -> Tensor:
    """Zeros for rows that a Where behind the softmax puts something else in the place of.

    That is how attention treats a row whose keys are all masked: its softmax is NaN. No gradient
    arrives there, but 0 · NaN is NaN. Only if that Where is all that has a gradient: what somebody
    else makes of these rows counts.
    """
    readers = list(_readers(y.value))
    only = readers[0] if len(readers) == 1 else None
    if only is None:
        return y
    node, index = only
    condition = node.inputs[0]
    if node.op_type != "Where" or node.graph is not y.value.graph or condition is None:
        return y
    if not _by_row(condition, y, axis):
        return y
    rows = op.tensor(condition)
    return op.Where(rows, 0.0, y) if index == 2 else op.Where(rows, y, 0.0)


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int] | None]:
    """Where a gradient may come from, behind a Cast, too; None for somebody outside of the graph.

    A Where that chooses by the value itself has none for it.
    """
    if value.is_graph_output():
        yield None
    for node, index in value.uses():
        if node.graph is None:  # a gradient's, not in the graph yet
            continue
        if node.op_type == "Cast" and not node.domain:
            yield from _readers(node.outputs[0])
            continue
        rule = lookup(node.domain, node.op_type)
        if rule is None or not (rule.kind == "zero" or index in rule.stops):
            yield node, index


def _by_row(condition: ir.Value, y: Tensor, axis: int) -> bool:
    """Whether a condition holds for whole rows: it has none of the axis, or finds the NaN."""
    node = condition.producer()
    if node is not None and node.op_type == "IsNaN" and node.inputs[0] is y.value:
        return True
    if condition.shape is None:
        return False
    from_the_end = y.rank - axis % y.rank
    rank = len(condition.shape)
    return rank < from_the_end or condition.shape[rank - from_the_end] == 1


@gradient("LogSoftmax")
def log_softmax(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, axis: int = -1) -> Any:
    picked = _scattered_once(dy, axis % y.rank)
    if picked is None:
        return dy - op.Exp(y) * op.ReduceSum(dy, [axis])
    index, updates = (op.tensor(v) for v in picked)
    return add_at(op, op.Exp(y) * -updates, index, updates, axis % y.rank)


def add_at(op: OpBuilder, x: Tensor, index: Tensor, updates: Tensor, axis: int) -> Tensor:
    """`x` with `updates` added to the elements at `index`, one along `axis`.

    Not with ScatterElements' own reduction, which onnxruntime lacks in half precision.
    """
    changed = op.GatherElements(x, index, axis=axis) + updates
    return op.ScatterElements(x, index, changed, axis=axis)


def _scattered_once(dy: Tensor, axis: int) -> Any:
    """Indices and values when `dy` is zero but for one element along `axis`.

    That is how the gradient of "pick the log-probability of the label" arrives; using it saves
    three of five passes over what is often the largest tensor of a model.
    """
    node = dy.value.producer()
    if node is None or node.op_type != "ScatterElements":
        return None
    data, index, updates = node.inputs[:3]
    if data is None or index is None or updates is None or index.shape is None:
        return None
    zeros = data.producer()
    attribute = node.attributes.get("axis")
    same_axis = (attribute.as_int() if attribute else 0) % len(index.shape) == axis
    if zeros is None or zeros.op_type != "ConstantOfShape" or not same_axis:
        return None
    fill = zeros.attributes.get("value")
    if fill is not None and fill.as_tensor().numpy().any():
        return None
    return (index, updates) if index.shape[axis] == 1 else None
