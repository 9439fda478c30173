"""Reading and writing by index: the Gather, Scatter and selection families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import OpBuilder, Tensor
from ...graph.nodes import producer_of
from ..registry import gradient, gradient_multi
from ._index import (
    Size,
    add_along,
    add_rows,
    dim,
    flat_index,
    line,
    scalar,
    scatter_elements,
    scatter_flat,
    size,
    vector,
    zeros,
)
from ._index import one_hot as hot
from ._positions import add_known

# --- gather ------------------------------------------------------------------------------------


@gradient("Gather", stops=(1,))
def gather(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, indices: Tensor, *, axis: int = 0
) -> Any:
    known = indices.const
    if known is not None and known.size == 1:
        return _put_one(op, dy, x, int(known.ravel()[0]), axis % x.rank, known.ndim)
    dx = None if known is None else add_known(op, x, dy, known, axis % x.rank)
    if dx is not None:
        return dx
    length = x.dim(axis)
    unique = known is not None and _all_different(known, length if isinstance(length, int) else 0)
    return add_along(op, x, indices, dy, axis, unique=unique)


def _put_one(op: OpBuilder, dy: Tensor, x: Tensor, index: int, axis: int, rank: int) -> Tensor:
    """The gradient of taking one fixed slice: that slice between zeros."""
    if rank == 0:
        dy = op.Unsqueeze(dy, [axis])
    elif rank > 1:
        dy = op.Squeeze(dy, list(range(axis, axis + rank - 1)))
    length = dim(op, x, axis)
    before: Size = index if index >= 0 else length + index
    after: Size = length - (index + 1) if index >= 0 else -index - 1
    return op.Pad(dy, vector(op, before, after), None, op.const([axis]))


def _all_different(indices: np.ndarray[Any, Any], length: int) -> bool:
    """Whether constant indices surely name different positions (of `length`, 0 if unknown)."""
    if not length and indices.size and indices.min() < 0 <= indices.max():
        return False
    positions = indices % length if length else indices
    return len(np.unique(positions)) == indices.size


@gradient("GatherElements", stops=(1,))
def gather_elements(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, indices: Tensor, *, axis: int = 0
) -> Any:
    target = zeros(op, op.shape_of(x), dy.dtype)
    return scatter_elements(op, target, indices, dy, axis, "add")


@gradient("GatherND", stops=(1,))
def gather_nd(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, indices: Tensor, *, batch_dims: int = 0
) -> Any:
    depth = indices.dim(-1)
    if not isinstance(depth, int):
        positions = op.GatherND(flat_index(op, x), indices, batch_dims=batch_dims)
        return scatter_flat(op, x, positions, dy)
    rows = _row_numbers(op, x, indices, batch_dims, depth)
    count, width = _rows_of(op, x, batch_dims + depth)
    updates = op.Reshape(dy, op.Concat(op.Shape(rows), vector(op, width), axis=0))
    return op.reshape_like(add_rows(op, count, width, rows, updates), x)


def _rows_of(op: OpBuilder, x: Tensor, lead: int) -> tuple[Size, Size]:
    """Number and width of the rows that the first `lead` axes number."""
    return size(op, x, range(lead)), size(op, x, range(lead, x.rank))


def _row_numbers(op: OpBuilder, x: Tensor, indices: Tensor, batch_dims: int, depth: int) -> Tensor:
    """Index tuples as row numbers, flattened: batch position and tuple read as one number."""
    rows: Tensor | None = None
    for i in range(depth):
        length = scalar(op, dim(op, x, batch_dims + i))
        column = op.Mod(op.Gather(indices, op.const(np.array(i)), axis=-1), length)
        rows = column if rows is None else rows * length + column
    assert rows is not None
    if batch_dims:
        per_batch = size(op, x, range(batch_dims, batch_dims + depth))
        batches = line(op, size(op, x, range(batch_dims))) * per_batch
        lead = [dim(op, x, a) for a in range(batch_dims)]
        ones = [1] * (indices.rank - 1 - batch_dims)
        rows = rows + op.Reshape(batches, vector(op, *lead, *ones))
    return op.Reshape(rows, [-1])


# --- scatter -----------------------------------------------------------------------------------

DUPLICATES = "with reduction none, positions written twice get the gradient of each write"


@gradient("ScatterElements", stops=(1,), note=DUPLICATES)
def scatter_elements_gradient(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Any:
    ddata, dupdates = _scattered(op, dy, y, data, indices, updates, axis, reduction)
    return ddata, None, dupdates


@gradient("ScatterND", stops=(1,), note=DUPLICATES)
def scatter_nd(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    reduction: str = "none",
) -> Any:
    if reduction == "none":
        return op.ScatterND(dy, indices, op.zeros_like(updates)), None, op.GatherND(dy, indices)
    if reduction == "add":
        return dy, None, op.GatherND(dy, indices)
    # Flat, because ScatterElements reduces duplicates one after the other, ScatterND does not.
    positions = op.Reshape(op.GatherND(flat_index(op, data), indices), [-1])
    dy, y, flat, each = (op.Reshape(t, [-1]) for t in (dy, y, data, updates))
    ddata, dupdates = _scattered(op, dy, y, flat, positions, each, 0, reduction)
    return op.reshape_like(ddata, data), None, op.reshape_like(dupdates, updates)


def _scattered(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``ScatterElements(data, indices, updates)``."""

    def read(x: Tensor) -> Tensor:
        return op.GatherElements(x, indices, axis=axis)

    def write(x: Tensor, u: Tensor, how: str) -> Tensor:
        return scatter_elements(op, x, indices, u, axis, how)

    if reduction == "none":
        return write(dy, op.zeros_like(updates), "none"), read(dy)
    if reduction == "add":
        rows = _whole_slices(data, indices, axis)
        return dy, read(dy) if rows is None else op.Gather(dy, op.Reshape(rows, [-1]), axis=axis)
    nothing = op.full(op.Shape(data), 0, data.dtype)
    if reduction == "mul":
        # Divide by the update unless it is 0; a position with another 0 in its product gets none.
        zero = op.Equal(updates, 0)
        is_zero = op.Cast(zero, to=data.dtype)
        safe = op.Where(zero, 1, updates)
        others = read(write(nothing, is_zero, "add")) - is_zero
        product = read(dy * write(data, safe, "mul")) / safe
        ddata = dy * write(nothing + 1, updates, "mul")
        return ddata, op.Where(op.Equal(others, 0), product, 0)
    # Largest or smallest: the gradient is shared equally by all that equal it.
    data_wins = op.Cast(op.Equal(data, y), to=data.dtype)
    update_wins = op.Cast(op.Equal(updates, read(y)), to=data.dtype)
    share = dy / write(data_wins, update_wins, "add")
    return share * data_wins, read(share) * update_wins


def _whole_slices(data: Tensor, indices: Tensor, axis: int) -> Tensor | None:
    """Indices before they were repeated, if they name whole slices of `data` along an axis.

    Sums of rows by number are written so (`scatter_add` with one number for each row): to read
    rows is a Gather, which copies a row at once.
    """
    repeated = producer_of(indices.value, "Expand")
    if repeated is None or repeated.inputs[0] is None or data.shape is None:
        return None
    source = indices.op.tensor(repeated.inputs[0])
    if source.shape is None or indices.shape is None or source.rank != data.rank:
        return None
    for a in range(data.rank):
        size = source.dim(a) if a == axis % data.rank else data.dim(a)
        is_repeated = a == axis % data.rank or source.dim(a) == 1
        if not is_repeated or size is None or indices.dim(a) != size:
            return None
    return source


# --- selection ---------------------------------------------------------------------------------


@gradient_multi("TopK", stops=(1,), note="ties: the elements that were returned")
def top_k(
    op: OpBuilder, dys: Sequence[Tensor | None], ys: Any, x: Tensor, k: Tensor, *, axis: int = -1
) -> Any:
    dy = dys[0]
    if dy is None:
        return None
    return op.ScatterElements(zeros(op, op.shape_of(x), dy.dtype), op.output(1), dy, axis=axis)


@gradient_multi("Unique", note="equal elements: the first one")
def unique(
    op: OpBuilder,
    dys: Sequence[Tensor | None],
    ys: Any,
    x: Tensor,
    *,
    axis: int | None = None,
) -> Any:
    return None if dys[0] is None else _put_back(op, x, op.output(1), dys[0], axis)


@gradient("OneHot", stops=(0, 1))
def one_hot(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    indices: Tensor,
    depth: Tensor,
    values: Tensor,
    *,
    axis: int = -1,
) -> Any:
    on = op.ReduceSum(dy * hot(op, indices, depth, axis, dy.dtype), keepdims=0)
    off = op.ReduceSum(dy, keepdims=0) - on
    return None, None, op.Concat(op.Reshape(off, [1]), op.Reshape(on, [1]), axis=0)


@gradient("Compress", stops=(1,))
def compress(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, condition: Tensor, *, axis: int | None = None
) -> Any:
    return _put_back(op, x, op.Reshape(op.NonZero(condition), [-1]), dy, axis)


def _put_back(op: OpBuilder, x: Tensor, taken: Tensor, dy: Tensor, axis: int | None) -> Tensor:
    """`dy` at the positions that were taken, each once, along an axis or of the flat tensor."""
    if axis is not None:
        return add_along(op, x, taken, dy, axis, unique=True)
    flat = zeros(op, vector(op, size(op, x)), dy.dtype)
    return op.reshape_like(op.ScatterND(flat, op.Unsqueeze(taken, [1]), dy), x)
