"""Reductions over axes, and cumulative sums.

In all of them `axes` is an optional input: absent or empty it means all axes or, with
`noop_with_empty_axes`, none. It may be a constant or computed at run time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient, zero_gradient

# --- helpers -----------------------------------------------------------------------------------


def keep_axes(
    op: OpBuilder, dy: Tensor, x: Tensor, axes: Tensor | None, keepdims: int, noop: int
) -> Tensor:
    """Give back to `dy` the axes that a reduction without keepdims removed, as ones."""
    if keepdims or (axes is None and noop):
        return dy
    if axes is None or (axes.const is not None and axes.const.size == 0):
        return dy  # a scalar broadcasts by itself
    return op.Unsqueeze(dy, axes)


def inverse_count(op: OpBuilder, x: Tensor, y: Tensor, like: Tensor | None = None) -> Tensor:
    """One over the number of elements of `x` behind each of `y`, typed like `like` or `x`.

    Divided in single precision at least: a float16 cannot hold a count above 65,504.
    """
    dtype = (like or x).dtype
    if x.static_shape is not None and y.static_shape is not None:
        n, m = math.prod(x.static_shape), math.prod(y.static_shape)
        return op.const(m / n if n else 0.0, dtype)
    wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    if y.static_shape is not None:
        count = op.const(np.array(math.prod(y.static_shape)), wide)
    else:
        count = op.Cast(op.Size(y), to=wide)
    ratio = count / op.Cast(op.Size(x), to=wide)
    return ratio if dtype == wide else op.Cast(ratio, to=dtype)


# --- sums and norms ----------------------------------------------------------------------------


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
    one = _one_over_length(op, dy, x, axes)
    share = dy * (inverse_count(op, x, y) if one is None else one)
    share = keep_axes(op, share, x, axes, keepdims, noop_with_empty_axes)
    return op.Expand(share, op.shape_of(x))


def _one_over_length(op: OpBuilder, dy: Tensor, x: Tensor, axes: Tensor | None) -> Tensor | None:
    """One over the length of an axis, in a vector; None unless one axis of several is reduced.

    Its length is not known: what is would be a constant.
    """
    if axes is None or axes.const is None or axes.const.size != 1 or x.shape is None:
        return None
    axis = int(axes.const.ravel()[0])
    if x.rank < 2 or isinstance(x.dim(axis), int) or dy.dtype not in EXACT_LENGTHS:
        return None
    return op.Reciprocal(op.Cast(op.dim_of(x, axis), to=dy.dtype))


EXACT_LENGTHS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types that can hold a length: a float16 ends at 65,504."""


@gradient("ReduceSumSquare", stops=(1,))
def reduce_sum_square(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    return x * keep_axes(op, dy * 2.0, x, axes, keepdims, noop_with_empty_axes)


@gradient("ReduceL1", stops=(1,), note="0 at 0")
def reduce_l1(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    return op.Sign(x) * keep_axes(op, dy, x, axes, keepdims, noop_with_empty_axes)


@gradient("ReduceL2", stops=(1,), note="0 where the norm is 0")
def reduce_l2(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    scale = dy / op.Where(op.Equal(y, 0), 1, y)  # where the norm is 0 so is x, and the product
    return x * keep_axes(op, scale, x, axes, keepdims, noop_with_empty_axes)


@gradient("ReduceLogSum", stops=(1,))
def reduce_log_sum(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    dy = keep_axes(op, dy / op.Exp(y), x, axes, keepdims, noop_with_empty_axes)
    return op.Expand(dy, op.shape_of(x))


@gradient("ReduceLogSumExp", stops=(1,), note="0 for -inf, also where all are")
def reduce_log_sum_exp(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    finite = op.Where(op.Equal(op.Abs(y), float("inf")), 0, y)
    y, dy = (keep_axes(op, t, x, axes, keepdims, noop_with_empty_axes) for t in (finite, dy))
    return op.Exp(x - y) * dy


# --- extrema and products ----------------------------------------------------------------------


@gradient("ReduceMax", "ReduceMin", stops=(1,), note="equal elements share the gradient evenly")
def reduce_extremum(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    y, dy = (keep_axes(op, t, x, axes, keepdims, noop_with_empty_axes) for t in (y, dy))
    winners = op.Cast(op.Equal(x, y), to=x.dtype)
    count = op.ReduceSum(winners, axes, noop_with_empty_axes=noop_with_empty_axes)
    return winners * (dy / count)


@gradient("ReduceProd", stops=(1,), note="right with zeros among the factors, twice too")
def reduce_prod(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axes: Tensor | None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Any:
    # ∂y/∂xᵢ is the product of the other factors: the product of all that are not zero, without
    # xᵢ, unless a zero is left among the others. A single one that is left is multiplied in as
    # what it is, because the second derivative is by that one.
    dy = keep_axes(op, dy, x, axes, keepdims, noop_with_empty_axes)
    dx = _product_of_few(op, dy, x, axes)
    if dx is not None:
        return dx
    is_zero = op.Equal(x, 0)
    factors = op.Where(is_zero, 1, x)
    zeros = op.Cast(is_zero, to=x.dtype)
    product = op.ReduceProd(factors, axes, noop_with_empty_axes=noop_with_empty_axes)
    others = op.ReduceSum(zeros, axes, noop_with_empty_axes=noop_with_empty_axes) - zeros
    only_zeros = op.Where(is_zero, x, 0)
    left = op.ReduceSum(only_zeros, axes, noop_with_empty_axes=noop_with_empty_axes) - only_zeros
    dx = (dy * product) / factors
    return op.Where(op.Equal(others, 0), dx, op.Where(op.Equal(others, 1), dx * left, 0))


def _product_of_few(op: OpBuilder, dy: Tensor, x: Tensor, axes: Tensor | None) -> Tensor | None:
    """The gradient of products of one factor, or of two, of which each is the other's factor."""
    if axes is None or axes.const is None or not axes.const.size or x.shape is None:
        return None
    several = [a for a in (int(a) % x.rank for a in axes.const) if x.dim(a) != 1]
    if not several:
        return dy
    if len(several) > 1 or x.dim(several[0]) != 2:
        return None
    return dy * op.Gather(x, op.const([1, 0]), axis=several[0])


zero_gradient("ArgMax", "ArgMin", note="integer result")

# --- cumulative --------------------------------------------------------------------------------


@gradient("CumSum", stops=(1,))
def cum_sum(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    axis: Tensor,
    *,
    exclusive: int = 0,
    reverse: int = 0,
) -> Any:
    return op.CumSum(dy, axis, exclusive=exclusive, reverse=1 - reverse)
