"""Linear maps that act on each axis by itself: pools of sums, Resize.

Such a map is ``y = A₁ ⊗ A₂ ⊗ … x``, so its gradient is a product with the transposed matrices,
one axis after the other. A matrix is (outputs, inputs) here.
"""

from __future__ import annotations

import numpy as np

from ...graph import OpBuilder, Tensor
from ._index import line
from .windows import Axis, cell_positions


def back_along(op: OpBuilder, dy: Tensor, matrix: Tensor, axis: int, rank: int) -> Tensor:
    """``Aᵀ·dy`` along one axis of `dy`, which has `rank` axes."""
    if axis == rank - 1:
        return op.MatMul(dy, matrix)
    if axis == rank - 2:
        return op.MatMul(op.transpose(matrix, 1, 0), dy)
    order = [*range(axis), *range(axis + 1, rank), axis]
    inverse = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return op.transpose(op.MatMul(op.transpose(dy, *order), matrix), *inverse)


def along(op: OpBuilder, x: Tensor, matrix: Tensor, axis: int, rank: int) -> Tensor:
    """``A·x`` along one axis of `x`, which has `rank` axes."""
    return back_along(op, x, op.transpose(matrix, 1, 0), axis, rank)


def membership(op: OpBuilder, axis: Axis, like: Tensor) -> Tensor:
    """1 where an element of the image (second axis) belongs to a window (first axis)."""
    cells = cell_positions(op, axis)
    if cells.const is not None and isinstance(axis.image, int):
        ones = (cells.const[:, :, None] == np.arange(axis.image)).sum(1)
        return op.const(ones, like.dtype)
    hits = op.Equal(op.Unsqueeze(cells, [2]), line(op, axis.image))
    return op.ReduceSum(op.Cast(hits, to=like.dtype), [1], keepdims=0)


def counted(op: OpBuilder, axis: Axis, like: Tensor, *, padding: bool) -> Tensor:
    """How many elements of each window count; with `padding` those in the padding do, too."""
    cells = cell_positions(op, axis)
    low, limit = (-axis.begin, axis.image + axis.end) if padding else (0, axis.image)
    if cells.const is not None and isinstance(limit, int) and isinstance(low, int):
        inside = (cells.const >= low) & (cells.const < limit)
        return op.const(inside.sum(1), like.dtype)
    within = op.And(cells >= low, cells < limit)
    return op.ReduceSum(op.Cast(within, to=like.dtype), [1], keepdims=0)
