"""Reductions over axes."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import gradient


@gradient("ReduceSum", stops=(1,))
def reduce_sum(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    return op.Expand(keep_axes(op, dy, x, axes, keepdims, noop_with_empty_axes), op.shape_of(x))


@gradient("ReduceMean", stops=(1,))
def reduce_mean(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    count = op.Cast(op.Size(x), to=x.dtype) / op.Cast(op.Size(y), to=x.dtype)
    if axes is None and not noop_with_empty_axes and x.static_shape is not None:
        count = op.count(x)
    elif axes is not None and axes.const is not None and axes.const.size:
        count = op.count(x, [int(a) for a in axes.const])
    dy = keep_axes(op, dy / count, x, axes, keepdims, noop_with_empty_axes)
    return op.Expand(dy, op.shape_of(x))


def keep_axes(
    op: OpBuilder, dy: Tensor, x: Tensor, axes: Tensor | None, keepdims: int, noop: int
) -> Tensor:
    """Give back to `dy` the axes that a reduction without keepdims removed, as ones."""
    if keepdims or (axes is None and noop):
        return dy
    if axes is None or (axes.const is not None and axes.const.size == 0):
        return dy  # a scalar broadcasts by itself
    return op.Unsqueeze(dy, axes)
