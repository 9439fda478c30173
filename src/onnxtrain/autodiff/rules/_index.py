"""Integer arithmetic on shapes, and sums into positions: what several rule families share.

Duplicate positions decide the form. onnxruntime's ScatterND with a reduction runs its updates on
several threads without a lock, so duplicates lose contributions (seen on 1.31.1: a third of the
runs with 20,000 rows); it is used here only where every position occurs once. ScatterElements is
sequential: right, and slow. Rows are therefore summed by sorting (see `add_rows`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor

Size: TypeAlias = "int | Tensor"
"""A number of elements: known now, or an INT64 tensor of shape [1]."""

LARGEST = np.iinfo(np.int64).max

FEW_ROWS = 32
"""Up to this many rows, a product with a one-hot matrix is the fastest sum of rows."""

FEW_ELEMENTS = 4096
"""Up to this many elements, adding one by one is as fast as sorting, in a quarter of the nodes.

On one thread of AVX-512, into 100 rows: 16 × 32 elements take 13 µs against 20, 64 × 64 take 28
against 28, 64 × 256 take 89 against 53.
"""


NARROW = 8
"""Elements of a row below which rows are added one by one."""


def dim(op: OpBuilder, x: Tensor, axis: int) -> Size:
    """One dimension."""
    size = x.dim(axis)
    return size if isinstance(size, int) else op.dim_of(x, axis)


def size(op: OpBuilder, x: Tensor, axes: Iterable[int] | None = None) -> Size:
    """The product of some dimensions (by default all)."""
    factors = [dim(op, x, axis) for axis in (range(x.rank) if axes is None else axes)]
    known = math.prod(f for f in factors if isinstance(f, int))
    unknown = [f for f in factors if not isinstance(f, int)]
    if not unknown:
        return known
    product = functools.reduce(lambda a, b: a * b, unknown)
    return product if known == 1 else product * known


def vector(op: OpBuilder, *parts: Size) -> Tensor:
    """A 1-D INT64 tensor out of numbers and [1]-shaped tensors; a constant when all are known."""
    tensors: list[Tensor] = []
    known: list[int] = []
    for part in parts:
        if isinstance(part, int):
            known.append(part)
            continue
        if known:
            tensors.append(op.const(np.array(known, np.int64)))
            known = []
        tensors.append(part)
    if known or not tensors:
        tensors.append(op.const(np.array(known, np.int64)))
    return tensors[0] if len(tensors) == 1 else op.Concat(*tensors, axis=0)


def scalar(op: OpBuilder, number: Size) -> Tensor:
    """A size as a tensor without dimensions."""
    if isinstance(number, int):
        return op.const(np.array(number, np.int64))
    return op.Squeeze(number, [0])


def line(op: OpBuilder, length: Size) -> Tensor:
    """0, 1, … length - 1."""
    if isinstance(length, int) and length <= 1024:
        return op.const(np.arange(length, dtype=np.int64))
    return op.Range(0, scalar(op, length), 1)


def as_int64(op: OpBuilder, x: Tensor) -> Tensor:
    """Indices and bounds may be INT32; shapes are not."""
    return x if x.dtype == ir.DataType.INT64 else op.Cast(x, to=ir.DataType.INT64)


def flat_index(op: OpBuilder, x: Tensor) -> Tensor:
    """Every element's own position in the flattened tensor, in the shape of `x`."""
    return op.reshape_like(line(op, size(op, x)), x)


def zeros(op: OpBuilder, shape: Tensor, dtype: ir.DataType) -> Tensor:
    return op.full(shape, 0, dtype)


def scatter_flat(
    op: OpBuilder, x: Tensor, positions: Tensor, dy: Tensor, *, unique: bool = False
) -> Tensor:
    """A tensor shaped like `x` with `dy` added at flat `positions` (shaped like `dy`)."""
    target = zeros(op, vector(op, size(op, x)), dy.dtype)
    positions, updates = op.Reshape(positions, [-1]), op.Reshape(dy, [-1])
    if unique:
        flat = op.ScatterND(target, op.Unsqueeze(positions, [1]), updates)
    else:
        flat = scatter_elements(op, target, positions, updates, 0, "add")
    return op.reshape_like(flat, x)


SCATTERED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64})


def scatter_elements(
    op: OpBuilder, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str
) -> Tensor:
    """ScatterElements; half precision goes through float32, which its reductions require."""
    dtype = updates.dtype
    if reduction == "none" or dtype in SCATTERED:
        return op.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)
    wide = ir.DataType.FLOAT
    data, updates = op.Cast(data, to=wide), op.Cast(updates, to=wide)
    result = op.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)
    return op.Cast(result, to=dtype)


def one_hot(op: OpBuilder, indices: Tensor, depth: Tensor, axis: int, dtype: ir.DataType) -> Tensor:
    """OneHot of 0 and 1, by way of float32: the type that its kernels have."""
    hot = op.OneHot(indices, depth, op.const([0.0, 1.0]), axis=axis)
    return hot if dtype == ir.DataType.FLOAT else op.Cast(hot, to=dtype)


def add_along(
    op: OpBuilder, x: Tensor, indices: Tensor, dy: Tensor, axis: int, *, unique: bool = False
) -> Tensor:
    """The gradient of ``Gather(x, indices, axis)``: `dy` added to the slices that were taken.

    `dy` has the axes of `indices` in place of `axis`. The tensor is seen as rows: everything
    before `axis` and `axis` itself count the rows, everything after is in one row.
    """
    axis %= x.rank
    outer, length = size(op, x, range(axis)), dim(op, x, axis)
    inner = size(op, x, range(axis + 1, x.rank))
    is_narrow = isinstance(inner, int) and 0 < inner < NARROW
    is_long = not isinstance(outer, int) or not isinstance(length, int) or outer * length > FEW_ROWS
    if is_narrow and not unique and is_long and (not isinstance(outer, int) or outer > 1):
        return _add_lines(op, x, indices, dy, axis)
    taken = indices.static_shape
    number = None if taken is None or not isinstance(outer, int) else outer * math.prod(taken)
    rows = _rows_along(op, indices, outer, length)
    count = length if isinstance(outer, int) and outer == 1 else outer * length
    flat = vector(op, -1, inner)
    if (isinstance(inner, int) and inner == 0) or x.static_shape is None:
        flat = op.Concat(op.shape_of(rows), vector(op, inner), axis=0)
    dx = add_rows(op, count, inner, rows, op.Reshape(dy, flat), unique=unique, number=number)
    if axis == 0 and x.rank == 2:
        dx.value.shape = x.value.shape  # no Reshape, which copies what comes out of an If
        return dx
    return op.reshape_like(dx, x)


def _add_lines(op: OpBuilder, x: Tensor, indices: Tensor, dy: Tensor, axis: int) -> Tensor:
    """The same for narrow rows, one by one along the axis: no row has to be numbered."""
    indices = as_int64(op, indices)
    if indices.shape is None or indices.rank != 1:
        sizes = [dim(op, x, a) for a in range(x.rank)]
        number = _number_of(op, indices)
        dy = op.Reshape(dy, vector(op, *sizes[:axis], number, *sizes[axis + 1 :]))
    lines = op.Reshape(indices, [-1, *[1] * (x.rank - axis - 1)])
    places = op.Expand(lines, op.Shape(dy))
    target = zeros(op, op.shape_of(x), dy.dtype)
    return scatter_elements(op, target, places, dy, axis - x.rank, "add")


def _number_of(op: OpBuilder, indices: Tensor) -> Size:
    """How many indices there are, also where nobody knows how many axes they have."""
    return op.Shape(op.Reshape(indices, [-1])) if indices.shape is None else size(op, indices)


def _rows_along(op: OpBuilder, indices: Tensor, outer: Size, length: Size) -> Tensor:
    """The rows that indices along an axis of some `length` name, for all that is before it."""
    known = indices.const
    if known is not None and isinstance(outer, int) and isinstance(length, int):
        first = np.arange(outer, dtype=np.int64)[:, None] * length
        if outer * known.size <= FEW_ELEMENTS:
            return op.const((first + known.ravel().astype(np.int64) % length).ravel())
    # negative indices count from the back
    indices = op.Mod(op.Reshape(as_int64(op, indices), [-1]), scalar(op, length))
    if isinstance(outer, int) and outer == 1:
        return indices
    return op.Reshape(op.Unsqueeze(line(op, outer) * length, [1]) + indices, [-1])


def add_rows(
    op: OpBuilder,
    count: Size,
    width: Size,
    rows: Tensor,
    dy: Tensor,
    *,
    unique: bool = False,
    number: int | None = None,
) -> Tensor:
    """A matrix of `count` rows in which row ``rows[i]`` is the sum of all such ``dy[i]``.

    Few rows: a product with a one-hot matrix. Narrow rows, or few elements: ScatterElements.
    Otherwise the rows are sorted by number, summed cumulatively in float64 and the sum at the end
    of each run is taken: no duplicates remain, and the result is more exact than adding in
    float32. A NaN or infinity in one row would be in all sums behind it, so then ScatterElements
    adds.

    Args:
        op: builds the nodes.
        count: rows of the result.
        width: its columns.
        rows: INT64 numbers, from 0 to `count` - 1.
        dy: as many rows of `width` elements.
        unique: whether all numbers are different.
        number: how many they are, if that is known.
    """
    shape = vector(op, count, width)
    if unique:
        return op.ScatterND(zeros(op, shape, dy.dtype), column(op, rows), dy)
    if isinstance(count, int) and count <= FEW_ROWS:
        return one_hot(op, rows, scalar(op, count), 0, dy.dtype) @ dy
    if isinstance(width, int) and number is not None and number * width <= FEW_ELEMENTS:
        return _add_one_by_one(op, shape, rows, dy, vector(op, number, width))
    if isinstance(width, int) and width < NARROW:
        return _add_one_by_one(op, shape, rows, dy, op.Shape(dy))
    ordered, order = op.many("TopK", rows, op.Shape(rows), outputs=2, largest=0, axis=0)
    sorted_dy = op.Gather(dy, order, axis=0)
    wide = op.Cast(sorted_dy, to=ir.DataType.DOUBLE)
    sums = op.CumSum(wide, op.const(np.array(0, np.int64)))
    # A Pad that also takes a row away writes nothing of a single one in onnxruntime 1.22.
    following = op.Concat(op.Slice(ordered, [1], [LARGEST]), [LARGEST], axis=0)
    last = op.Less(ordered, following)
    ends = op.Compress(sums, last, axis=0)
    total = ends - op.Pad(op.Slice(ends, [0], [-1], [0]), [1, 0], None, op.const([0]))
    target = op.Compress(ordered, last, axis=0)
    # The last sum has seen them all; an infinity in it alone is right where it is.
    final = op.ReduceSum(op.Slice(total, [-1], [LARGEST], [0]), keepdims=0)

    def one_by_one() -> Tensor:
        counted = op.Cast(last, to=ir.DataType.INT64)
        ends_before = op.CumSum(counted, op.const(np.array(0, np.int64)), exclusive=1)
        return _add_one_by_one(op, op.Shape(total), ends_before, sorted_dy, op.Shape(sorted_dy))

    # Only the sums are chosen: what holds all rows is made once, outside of the branches.
    added = choose(op, op.IsNaN(final), one_by_one, lambda: op.Cast(total, to=dy.dtype))
    return op.ScatterND(zeros(op, shape, dy.dtype), op.Unsqueeze(target, [1]), added)


def _add_one_by_one(
    op: OpBuilder, shape: Tensor, rows: Tensor, dy: Tensor, dy_shape: Tensor
) -> Tensor:
    spread = op.Expand(column(op, rows), dy_shape)
    return scatter_elements(op, zeros(op, shape, dy.dtype), spread, dy, 0, "add")


def column(op: OpBuilder, rows: Tensor) -> Tensor:
    """A vector as a matrix of one column."""
    return op.Unsqueeze(rows, [1]) if rows.const is None else op.const(rows.const[:, None])


def choose(
    op: OpBuilder, condition: Tensor, yes: Callable[[], Tensor], no: Callable[[], Tensor]
) -> Tensor:
    """An If with one result; only the branch that is taken is computed."""
    branches = {
        "then_branch": op.body(op.names.fresh("then"), [], lambda: [yes()]),
        "else_branch": op.body(op.names.fresh("else"), [], lambda: [no()]),
    }
    (chosen,) = op.many("If", condition, outputs=1, **branches)
    chosen.value.type = branches["then_branch"].outputs[0].type
    return chosen
