"""Data movement: reshaping, transposing, repeating, joining, cutting and padding.

The gradient moves the data back. Rules marked `straight_through` use only `dy` and shapes, so a
straight-through gradient passes them also where the forward value is quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import OpBuilder, Tensor
from ...graph.nodes import ints
from ...graph.slices import taken
from ..registry import gradient, gradient_multi
from ._index import Size, as_int64, dim, flat_index, scatter_flat, vector, zeros

LAST = np.iinfo(np.int64).max
FIRST = np.iinfo(np.int64).min

# --- same elements, another shape --------------------------------------------------------------


@gradient("Reshape", stops=(1,), straight_through=True)
def reshape(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, shape: Tensor, *, allowzero: int = 0
) -> Any:
    sizes = None if allowzero else ints(shape.value)
    copied = [i for i, n in enumerate(sizes or ()) if n == 0] if sizes and -1 in sizes else ()
    return op.reshape_like(dy, x, y.shape, copied)


@gradient("Flatten", straight_through=True)
def flatten(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return op.reshape_like(dy, x)


@gradient("Squeeze", stops=(1,), straight_through=True)
def squeeze(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, axes: Tensor | None) -> Any:
    return op.reshape_like(dy, x) if axes is None else op.Unsqueeze(dy, axes)


@gradient("Unsqueeze", stops=(1,), straight_through=True)
def unsqueeze(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, axes: Tensor) -> Any:
    # onnxruntime takes a single axis without brackets here, but not in Squeeze.
    return op.Squeeze(dy, axes if axes.rank else op.Reshape(axes, [1]))


@gradient("Transpose", straight_through=True)
def transpose(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, perm: Sequence[int] | None = None
) -> Any:
    order = perm if perm is not None else list(range(x.rank))[::-1]
    return op.Transpose(dy, perm=[int(i) for i in np.argsort(order)])


# --- repeating ---------------------------------------------------------------------------------


@gradient("Expand", stops=(1,))
def expand(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, shape: Tensor) -> Any:
    return op.sum_to(dy, x, y.shape, y)


@gradient("Tile", stops=(1,))
def tile(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, repeats: Tensor) -> Any:
    # Each axis of y is (copies, elements); sum over the copies.
    pair = op.Concat(op.Unsqueeze(repeats, [1]), op.Unsqueeze(op.shape_of(x), [1]), axis=1)
    if repeats.const is not None and x.static_shape is not None:
        pair = op.const(np.stack([repeats.const, np.array(x.static_shape)], 1).astype(np.int64))
    copies = op.Reshape(dy, op.Reshape(pair, [-1]))
    axes = [2 * a for a in range(x.rank)]
    return op.ReduceSum(copies, axes, keepdims=0) if axes else dy


# --- joining and cutting -----------------------------------------------------------------------


@gradient("Concat", straight_through=True)
def concat(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor, axis: int) -> Any:
    if len(inputs) == 1:
        return dy
    dims = [x.dim(axis) for x in inputs]
    sizes = op.Concat(*(op.dim_of(x, axis) for x in inputs), axis=0)
    if all(isinstance(d, int) for d in dims):
        sizes = op.const(np.array(dims, np.int64))
    return op.many("Split", dy, sizes, outputs=len(inputs), axis=axis)


@gradient_multi("Split", stops=(1,), straight_through=True)
def split(
    op: OpBuilder,
    dys: tuple[Tensor | None, ...],
    ys: tuple[Tensor, ...],
    x: Tensor,
    sizes: Tensor | None,
    *,
    axis: int = 0,
) -> Any:
    dtype = next(dy.dtype for dy in dys if dy is not None)
    parts = [
        dy if dy is not None else op.full(op.shape_of(op.output(i)), 0, dtype)
        for i, dy in enumerate(dys)
    ]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


@gradient("Slice", stops=(1, 2, 3, 4), straight_through=True)
def slice_(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None,
    steps: Tensor | None,
) -> Any:
    where = _slice_axes(x, starts, axes)
    strides = _slice_steps(starts, steps)
    if where is None or strides is None:
        # Axes or steps only known at run time: slice a tensor of positions the same way.
        positions = op.Slice(flat_index(op, x), starts, ends, axes, steps)
        return scatter_flat(op, x, positions, dy, unique=True)
    few = _few_positions(op, y, x, starts, strides)
    if few is not None:
        return op.ScatterElements(zeros(op, op.shape_of(x), dy.dtype), few, dy, axis=0)
    backwards = [a for a, s in zip(where, strides) if s < 0]
    if backwards:
        dy = reverse(op, dy, backwards)
    for axis, stride in sorted(zip(where, strides)):
        if abs(stride) > 1:
            dy = _spread(op, dy, y, axis, abs(stride))
    if _takes_all(starts, ends, strides):
        return dy
    pads = _slice_pads(op, y, x, starts, ends, where, strides)
    if pads.const is not None and not pads.const.any():
        return dy
    return op.Pad(dy, pads, None, op.const(where))


FAR_APART = 16
"""Elements of a vector, from one that is taken to the next, from which on single elements are put
among zeros. The zeros between them, and then those behind, were two passes: of a diagonal of a
million numbers 0.13 ms, where this takes 0.06 in a session with our kernel (one thread)."""


def _few_positions(
    op: OpBuilder, y: Tensor, x: Tensor, starts: Tensor, strides: list[int]
) -> Tensor | None:
    """What a slice takes of a vector, if that is known and little."""
    count = y.dim(0) if x.rank == 1 else None
    if not isinstance(count, int) or starts.const is None or len(strides) != 1:
        return None
    begin, step = int(starts.const[0]), strides[0]
    is_little = step >= FAR_APART and begin >= 0 and count > 0
    return op.Range(begin, begin + count * step, step) if is_little else None


ANY_LENGTH = 2**31 - 1
"""Where slices of an axis end whose length nobody knows: exporters mean its end."""


def _takes_all(starts: Tensor, ends: Tensor, strides: list[int]) -> bool:
    """Whether a slice takes all of its axes, from the front or from the back."""
    if starts.const is None or ends.const is None:
        return False
    return all(
        (step == 1 and start == 0 and end >= ANY_LENGTH)
        or (step == -1 and start == -1 and end < -ANY_LENGTH)
        for start, end, step in zip(starts.const.tolist(), ends.const.tolist(), strides)
    )


def _slice_axes(x: Tensor, starts: Tensor, axes: Tensor | None) -> list[int] | None:
    """The sliced axes, counted from the front; None when only known at run time."""
    if axes is not None:
        return None if axes.const is None else [int(a) % x.rank for a in axes.const]
    count = starts.dim(0)
    return list(range(count)) if isinstance(count, int) else None


def _slice_steps(starts: Tensor, steps: Tensor | None) -> list[int] | None:
    if steps is not None:
        return None if steps.const is None else [int(s) for s in steps.const]
    count = starts.dim(0)
    return [1] * count if isinstance(count, int) else None


def _slice_begin(op: OpBuilder, starts: Tensor, size: Tensor, down: np.ndarray[Any, Any]) -> Tensor:
    """Where a slice begins, counted from the front, with no node for what is sure already."""
    begin, zeros = as_int64(op, starts), np.zeros(1, np.int64)
    last = size - down.astype(np.int64) if down.any() else size
    if starts.const is None:
        begin = op.Where(begin < 0, begin + size, begin)
        return op.Max(op.Min(begin, last), zeros)
    if not starts.const.any() and not down.any():
        return op.const(np.zeros(len(starts.const), np.int64))
    if (starts.const >= 0).all():
        begin = op.Min(begin, last)
        return op.Max(begin, zeros) if down.any() else begin
    is_behind = starts.const < 0
    begin = begin + size if is_behind.all() else op.Where(op.const(is_behind), begin + size, begin)
    return op.Max(op.Min(begin, last), zeros)


def _dims(op: OpBuilder, x: Tensor, axes: list[int]) -> Tensor:
    """Some dimensions, as a vector."""
    if len(axes) == 1:
        return op.dim_of(x, axes[0])
    return op.Gather(op.shape_of(x), op.const(axes), axis=0)


def _slice_pads(
    op: OpBuilder,
    y: Tensor,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: list[int],
    strides: list[int],
) -> Tensor:
    """How many zeros go before and after, per sliced axis; negative where spreading overshot."""
    width = np.abs(np.array(strides, np.int64))
    down = np.array(strides) < 0
    dims = [x.dim(a) for a in axes]
    if starts.const is not None and ends.const is not None:
        sizes = [d for d in dims if isinstance(d, int)]
        if len(sizes) == len(dims):
            ranges = [
                taken(d, int(s), int(e), step)
                for d, s, e, step in zip(sizes, starts.const, ends.const, strides)
            ]
            first = np.array([min(r) if len(r) else 0 for r in ranges], np.int64)
            last = sizes - first - np.array([len(r) for r in ranges]) * width
            return op.const(np.concatenate([first, last]).astype(np.int64))
    size, length = _dims(op, x, axes), _dims(op, y, axes)
    begin = _slice_begin(op, starts, size, down)
    if down.any():  # the lowest position taken is the last one, if any is taken
        steps_down = op.Max(length - 1, np.zeros(1, np.int64))
        each = np.where(down, width, 0)
        begin = begin - (steps_down if (each == 1).all() else steps_down * each)
    covered = length if (width == 1).all() else length * width
    is_first = begin.const is not None and not begin.const.any()
    return op.Concat(begin, (size if is_first else size - begin) - covered, axis=0)


def reverse(op: OpBuilder, x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x` read backwards along some axes."""
    n = len(axes)
    return op.Slice(x, [-1] * n, [FIRST] * n, list(axes), [-1] * n)


def _spread(op: OpBuilder, dy: Tensor, y: Tensor, axis: int, step: int) -> Tensor:
    """Put `step - 1` zeros behind every element along an axis; later axes are still those of y."""
    wide = op.Pad(op.Unsqueeze(dy, [axis + 1]), [0, step - 1], None, op.const([axis + 1]))
    behind = [dim(op, y, a) for a in range(axis + 1, y.rank)]
    unchanged = [0] * axis  # in Reshape, 0 keeps a dimension
    return op.Reshape(wide, vector(op, *unchanged, dim(op, y, axis) * step, *behind))


# --- padding -----------------------------------------------------------------------------------


@gradient("Pad", stops=(1, 3))
def pad(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    pads: Tensor,
    fill: Tensor | None,
    axes: Tensor | None,
    *,
    mode: str = "constant",
) -> Any:
    known = _known_pads(x, pads, axes)
    if mode == "constant":
        dx = _crop(op, dy, pads, axes) if known is None else _crop_known(op, dy, known)
        if fill is None:
            return dx
        missing = op.ReduceSum(dy, keepdims=0) - op.ReduceSum(dx, keepdims=0)
        return dx, None, op.reshape_like(missing, fill)
    if known is None or not _folds_once(x, known, mode):
        positions = op.Pad(flat_index(op, x), pads, None, axes, mode=mode)
        return scatter_flat(op, x, positions, dy)
    for axis, (before, after) in known.items():
        if before or after:
            dy = FOLDS[mode](op, dy, dim(op, x, axis), axis, before, after)
    return dy


def _known_pads(x: Tensor, pads: Tensor, axes: Tensor | None) -> dict[int, tuple[int, int]] | None:
    """(before, after) by axis; None when only known at run time."""
    named = np.arange(x.rank) if axes is None else axes.const
    if pads.const is None or named is None:
        return None
    where = [int(a) % x.rank for a in named]
    half = pads.const.size // 2
    return {a: (int(pads.const[i]), int(pads.const[half + i])) for i, a in enumerate(where)}


def _crop(op: OpBuilder, dy: Tensor, pads: Tensor, axes: Tensor | None) -> Tensor:
    return op.Pad(dy, -pads, None, axes)


def _crop_known(op: OpBuilder, dy: Tensor, pads: dict[int, tuple[int, int]]) -> Tensor:
    """Undo constant padding; a negative pad had cropped, so zeros come back there."""
    used = {a: p for a, p in pads.items() if any(p)}
    if not used:
        return dy
    befores, afters = [b for b, _ in used.values()], [a for _, a in used.values()]
    if min(*befores, *afters) >= 0:  # Slice is faster than a Pad by negative amounts
        return op.Slice(dy, befores, [-a if a else LAST for a in afters], list(used))
    negated = [-p for p in (*befores, *afters)]
    return op.Pad(dy, negated, None, op.const(list(used)))


def _folds_once(x: Tensor, pads: dict[int, tuple[int, int]], mode: str) -> bool:
    """Whether no padding is negative or reaches around the axis more than once."""
    if any(min(p) < 0 for p in pads.values()):
        return False
    sizes = [(x.dim(a), max(p)) for a, p in pads.items() if max(p)]
    limit = {"edge": 0, "reflect": 1, "wrap": 0}[mode]
    return mode == "edge" or all(isinstance(d, int) and p <= d - limit for d, p in sizes)


def _cut(op: OpBuilder, x: Tensor, axis: int, start: int, end: int) -> Tensor:
    return op.Slice(x, [start], [end], [axis])


def _center(op: OpBuilder, dy: Tensor, axis: int, before: int, after: int) -> Tensor:
    return _cut(op, dy, axis, before, -after if after else LAST)


def _padded_to(op: OpBuilder, part: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    return op.Pad(part, vector(op, before, after), None, op.const([axis]))


FEW_SLICES = 4
"""Up to so many elements along an axis are summed up one by one."""


def _sum_along(op: OpBuilder, dy: Tensor, axis: int, start: int, count: int) -> Tensor:
    """So many elements from the first or, from a negative start on, the last ones as one.

    onnxruntime begins each sum anew: of one row of seven for 41,940 planes 3 ms, as a slice 0.1.
    """
    if count > FEW_SLICES:
        end = start + count if start + count else LAST
        return op.ReduceSum(_cut(op, dy, axis, start, end), [axis], keepdims=1)
    places = range(start, start + count)
    total, *rest = (_cut(op, dy, axis, p, p + 1 if p + 1 else LAST) for p in places)
    for part in rest:
        total = total + part
    return total


def _fold_edge(
    op: OpBuilder, dy: Tensor, length: Size, axis: int, before: int, after: int
) -> Tensor:
    dx = _center(op, dy, axis, before, after)
    if before:
        left = _sum_along(op, dy, axis, 0, before)
        dx = dx + _padded_to(op, left, axis, 0, length - 1)
    if after:
        right = _sum_along(op, dy, axis, -after, after)
        dx = dx + _padded_to(op, right, axis, length - 1, 0)
    return dx


def _fold_reflect(
    op: OpBuilder, dy: Tensor, length: Size, axis: int, before: int, after: int
) -> Tensor:
    dx = _center(op, dy, axis, before, after)
    if before:
        left = _backwards(op, dy, axis, before - 1, FIRST, before)
        dx = dx + _padded_to(op, left, axis, 1, length - (before + 1))
    if after:
        right = _backwards(op, dy, axis, -1, -after - 1, after)
        dx = dx + _padded_to(op, right, axis, length - (after + 1), 1)
    return dx


def _backwards(
    op: OpBuilder, dy: Tensor, axis: int, first: int, behind_last: int, count: int
) -> Tensor:
    """A part of an axis in reverse, from its last element on."""
    if count == 1:
        return _cut(op, dy, axis, first, first + 1 if first + 1 else LAST)
    return op.Slice(dy, [first], [behind_last], [axis], [-1])


def _fold_wrap(
    op: OpBuilder, dy: Tensor, length: Size, axis: int, before: int, after: int
) -> Tensor:
    dx = _center(op, dy, axis, before, after)
    if before:
        dx = dx + _padded_to(op, _cut(op, dy, axis, 0, before), axis, length - before, 0)
    if after:
        dx = dx + _padded_to(op, _cut(op, dy, axis, -after, LAST), axis, 0, length - after)
    return dx


FOLDS = {"edge": _fold_edge, "reflect": _fold_reflect, "wrap": _fold_wrap}

# --- masks and reversals -----------------------------------------------------------------------


@gradient("Trilu", stops=(1,))
def trilu(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, k: Tensor | None, *, upper: int = 1
) -> Any:
    return op.Trilu(dy, k, upper=upper)


@gradient("ReverseSequence", stops=(1,))
def reverse_sequence(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    lengths: Tensor,
    *,
    batch_axis: int = 1,
    time_axis: int = 0,
) -> Any:
    return op.ReverseSequence(dy, lengths, batch_axis=batch_axis, time_axis=time_axis)


# --- made from numbers -------------------------------------------------------------------------


@gradient("Range", stops=(1,), note="for start and delta; the limit only decides the length")
def range_(
    op: OpBuilder, dy: Tensor, y: Tensor, start: Tensor, limit: Tensor, delta: Tensor
) -> Any:
    steps = op.Range(0, op.Size(y), 1)
    ddelta = op.ReduceSum(dy * op.Cast(steps, to=dy.dtype), keepdims=0)
    return op.ReduceSum(dy, keepdims=0), None, ddelta
