"""Sums into positions that are constants: what goes where is known when the graph is built.

A table says which slices of the gradient each position gets, so that two or three nodes without
any arithmetic on indices do the work. Slices that nobody has taken are zeros. Columns are moved by
a product with a constant matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor

Indices = np.ndarray[Any, np.dtype[np.int64]]

LONGEST_TABLE = 1024
"""Positions along an axis up to which a table is written for all of them."""
MOST_FILLER = 2
"""How many times as long as the indices a table of those that belong together may be."""
WIDE = 32
"""Elements behind the axis from which on whole slices are moved as fast as ScatterND moves them.

Against ScatterND on one thread of AVX-512: 64 × 256 × 64 with half of the middle axis 437 µs
against 629, and 64 × 512 × 8 419 against 292.
"""
LARGEST_PRODUCT = 2**14
"""Elements up to which a constant matrix moves columns: with 32 of 64 columns and 4,096 rows it
takes a tenth of the time of ScatterND."""
EXACT = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def add_known(
    op: OpBuilder, x: Tensor, dy: Tensor, indices: np.ndarray[Any, Any], axis: int
) -> Tensor | None:
    """The gradient of ``Gather(x, indices, axis)``; None if another form is better."""
    length, shape = x.dim(axis), _one_axis(x, axis, indices.size)
    if not isinstance(length, int) or not indices.size or shape is None:
        return None
    places: Indices = indices.ravel().astype(np.int64) % length
    positions, counts = np.unique(places, return_counts=True)
    is_summed = len(positions) < len(places)
    placed = positions if is_summed else places
    is_product = shape[axis:] == [len(places)] and axis > 0 and dy.dtype in EXACT
    if is_product and not _is_range(places) and len(places) * length <= LARGEST_PRODUCT:
        return _merged(op, dy, indices, shape) @ _one_hot(op, places, length, dy.dtype)
    if is_summed and len(positions) * int(counts.max()) > MOST_FILLER * len(places):
        return None
    is_wide = -1 not in shape[axis + 1 :] and math.prod(shape[axis + 1 :]) >= WIDE
    if not _is_range(places) and not (is_wide and (_is_range(placed) or length <= LONGEST_TABLE)):
        return None
    dy = _merged(op, dy, indices, shape)
    if is_summed:
        dy = _sums(op, dy, places, positions, counts, axis, x.rank)
    return _spread(op, dy, placed, length, axis, x.rank)


def _merged(
    op: OpBuilder, dy: Tensor, indices: np.ndarray[Any, Any], shape: Sequence[int]
) -> Tensor:
    """`dy` with one axis for all axes of the indices."""
    return dy if indices.ndim == 1 else op.Reshape(dy, list(shape))


def _one_hot(op: OpBuilder, places: Indices, length: int, dtype: ir.DataType) -> Tensor:
    hot = np.zeros((len(places), length))
    hot[np.arange(len(places)), places] = 1
    return op.const(hot, dtype)


def _is_range(places: Indices) -> bool:
    """Whether places follow each other."""
    return bool((np.diff(places) == 1).all())


def _one_axis(x: Tensor, axis: int, count: int) -> list[int] | None:
    """A shape in which all axes of the indices are one; None if too little is known."""
    behind = [d if isinstance(d, int) else -1 for d in (x.shape or ())[axis + 1 :]]
    if behind.count(-1) > 1 or 0 in behind:
        return None
    return [*[0] * axis, count, *behind]


def _sums(
    op: OpBuilder,
    dy: Tensor,
    places: Indices,
    positions: Indices,
    counts: Indices,
    axis: int,
    rank: int,
) -> Tensor:
    """One slice per position, the sum of those that go there."""
    if len(positions) == 1:
        return op.ReduceSum(dy, [axis], keepdims=1)
    table = np.full((len(positions), int(counts.max())), len(places), np.int64)
    for row, position in enumerate(positions):
        (taken,) = np.nonzero(places == position)
        table[row, : len(taken)] = taken
    if (table == len(places)).any():
        dy = _with_zeros(op, dy, axis, rank)
    return op.ReduceSum(op.Gather(dy, op.const(table), axis=axis), [axis + 1], keepdims=0)


def _spread(
    op: OpBuilder, dy: Tensor, places: Indices, length: int, axis: int, rank: int
) -> Tensor:
    """Slices at their places, all different, between zeros."""
    if len(places) == length and _is_range(places):
        return dy
    if _is_range(places):
        before = int(places[0])
        return _padded(op, dy, [before, length - before - len(places)], axis, rank)
    table = np.full(length, len(places), np.int64)
    table[places] = np.arange(len(places))
    if len(places) < length:
        dy = _with_zeros(op, dy, axis, rank)
    return op.Gather(dy, op.const(table), axis=axis)


def _with_zeros(op: OpBuilder, dy: Tensor, axis: int, rank: int) -> Tensor:
    """One more slice, of zeros, which tables name as the last."""
    return _padded(op, dy, [0, 1], axis, rank)


def _padded(op: OpBuilder, dy: Tensor, pads: Sequence[int], axis: int, rank: int) -> Tensor:
    full = np.zeros((2, rank), np.int64)
    full[:, axis] = pads
    return op.Pad(dy, op.const(full.ravel()))
