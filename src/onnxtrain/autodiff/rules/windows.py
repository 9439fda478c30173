"""Sliding windows: the geometry that Conv, ConvTranspose, the pools and Col2Im share.

A size is a Python int where it is known and an INT64 tensor of shape [1] where it is not. Both
take the same arithmetic, so each formula is written once: what is known is folded now, the rest
becomes a few operations on shapes at run time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ._index import Size, dim, line, vector

TO_END = np.iinfo(np.int64).max
FEW_OFFSETS = 49
"""Up to this many positions in the kernel, windows are cut out by a slice per position."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a window operator; a window starts at ``i * stride - begin``.

    Attributes:
        begin: how much padding lies before the image.
        end: how much padding is needed behind it, so that the last window fits.
        image, windows: size of the image and number of windows.
    """

    kernel: int
    stride: int
    dilation: int
    begin: Size
    end: Size
    image: Size
    windows: Size

    @property
    def span(self) -> int:
        """Elements from the first to the last that one window covers."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def static(self) -> bool:
        """Whether all sizes are known now."""
        return all(isinstance(s, int) for s in (self.begin, self.end, self.image, self.windows))

    @property
    def tiles(self) -> bool:
        """Whether windows lie side by side, without gap, overlap or padding."""
        flush = _is(self.begin, 0) and _is(self.end, 0)
        return self.kernel == self.stride == self.span and flush

    @property
    def trivial(self) -> bool:
        """Whether each window is the element of the image at the same place."""
        return self.kernel == self.stride == 1 and _is(self.begin, 0) and _is(self.end, 0)


def _is(size: Size, number: int) -> bool:
    return isinstance(size, int) and size == number


def quotient(op: OpBuilder, size: Size, divisor: int) -> Size:
    """``size // divisor`` for sizes that are not negative."""
    if isinstance(size, int):
        return size // divisor
    return size if divisor == 1 else op.Div(size, divisor)


def at_least(op: OpBuilder, size: Size, minimum: int) -> Size:
    """``max(size, minimum)``."""
    if isinstance(size, int):
        return max(size, minimum)
    return op.Max(size, op.const(np.array([minimum], np.int64)))


def axes_of(
    op: OpBuilder,
    image: Tensor,
    windows: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    *,
    clipped: bool = False,
    pool: bool = False,
) -> list[Axis]:
    """The geometry of all spatial axes (the third and later ones of `image` and `windows`).

    With `clipped` the last window may reach over the padding (`ceil_mode`): what is needed behind
    the image follows from the sizes. Of a `pool` onnxruntime chooses the padding without regard to
    dilations.
    """
    rank = len(kernel)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads if pads and auto_pad in ("", "NOTSET") else [0] * 2 * rank
    axes = []
    for i in range(rank):
        k, s, d = int(kernel[i]), int(strides[i]), int(dilations[i])
        span, size, count = (k - 1) * d + 1, dim(op, image, i + 2), dim(op, windows, i + 2)
        begin: Size = int(pads[i])
        end: Size = int(pads[i + rank])
        if auto_pad.startswith("SAME") and pool and d > 1:
            begin, end = _same(op, s, k, size, quotient(op, size + (s - 1), s), auto_pad)
        elif auto_pad.startswith("SAME"):
            begin, end = _same(op, s, span, size, count, auto_pad)
        elif clipped:
            end = at_least(op, (count - 1) * s + (span - begin) - size, 0)
        axes.append(Axis(k, s, d, begin, end, size, count))
    return axes


def _same(
    op: OpBuilder, stride: int, span: int, size: Size, count: Size, auto_pad: str
) -> tuple[Size, Size]:
    """Padding that SAME_UPPER and SAME_LOWER choose: the odd element behind, or before."""
    # With stride 1 there are as many windows as elements, whatever their number.
    total = span - 1 if stride == 1 else at_least(op, (count - 1) * stride + span - size, 0)
    half = quotient(op, total, 2)
    return (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)


def kernel_of(kernel_shape: Sequence[int], w: Tensor) -> list[int]:
    """The kernel's sizes, from the attribute or the weight."""
    sizes = kernel_shape or (w.shape or ())[2:]
    known = [s for s in sizes if isinstance(s, int)]
    if not sizes or len(known) != len(sizes):
        raise ModelError(
            f"The kernel size of the convolution with weight {w.name!r} is not known. Give the "
            "node its `kernel_shape` attribute, or the weight a static shape."
        )
    return known


# --- images cut into windows -------------------------------------------------------------------


def pad_image(op: OpBuilder, x: Tensor, axes: Sequence[Axis], first: int) -> Tensor:
    """Zeros around the image, whose spatial axes start at `first`."""
    if all(_is(a.begin, 0) and _is(a.end, 0) for a in axes):
        return x
    amounts = vector(op, *(a.begin for a in axes), *(a.end for a in axes))
    return op.Pad(x, amounts, op.like(0, x), list(range(first, first + len(axes))))


def offsets_of(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """All positions within the kernel, row-major."""
    return itertools.product(*(range(a.kernel) for a in axes))


def at_offset(
    op: OpBuilder, padded: Tensor, axes: Sequence[Axis], offset: Sequence[int], first: int
) -> Tensor:
    """The element at one position of the kernel, from every window of a padded image."""
    if all(a.trivial for a in axes):
        return padded
    starts = [a.dilation * position for a, position in zip(axes, offset)]
    sliced, steps = list(range(first, first + len(axes))), [a.stride for a in axes]
    return op.Slice(padded, starts, _stops(op, axes, starts), sliced, steps)


def _stops(op: OpBuilder, axes: Sequence[Axis], starts: Sequence[int]) -> Tensor:
    """Where slices that begin at `starts` end, so that they have one element per window."""
    known = [_stop(axis, start) for axis, start in zip(axes, starts)]
    if all(stop is not None for stop in known):
        return op.const(np.array(known, np.int64))
    behind = vector(op, *(a.windows * a.stride for a in axes))  # one node for all positions
    return behind + np.array([s + 1 - a.stride for a, s in zip(axes, starts)], np.int64)


def _stop(axis: Axis, start: int) -> int | None:
    if isinstance(axis.windows, int):
        return start + (axis.windows - 1) * axis.stride + 1
    if axis.stride == 1:  # the padded image is exactly `windows + span - 1` long
        return start - (axis.span - 1) or TO_END
    return None


def cell_positions(op: OpBuilder, axis: Axis) -> Tensor:
    """Where the elements of each window lie in the image: INT64 (windows, kernel)."""
    within = np.arange(axis.kernel, dtype=np.int64)[None] * axis.dilation
    if isinstance(axis.windows, int) and isinstance(axis.begin, int):
        starts = np.arange(axis.windows)[:, None] * axis.stride - axis.begin
        return op.const((starts + within).astype(np.int64))
    first = op.Unsqueeze(line(op, axis.windows), [1]) * axis.stride - axis.begin
    return op.Add(first, op.const(within))


def columns(op: OpBuilder, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """All windows of (N, C, *image) as (N, C, kernel elements, windows): im2col."""
    padded = pad_image(op, x, axes, 2)
    if math.prod(a.kernel for a in axes) > FEW_OFFSETS:
        return _gathered(op, padded, axes)
    flat = [op.Reshape(at_offset(op, padded, axes, o, 2), [0, 0, 1, -1]) for o in offsets_of(axes)]
    return flat[0] if len(flat) == 1 else op.Concat(*flat, axis=2)


def _gathered(op: OpBuilder, padded: Tensor, axes: Sequence[Axis]) -> Tensor:
    """`columns` of a padded image, with one node per axis: the kernel's size is no matter."""
    for i, axis in enumerate(axes):
        cells = cell_positions(op, replace(axis, begin=0))  # (windows, kernel)
        by_offset = op.transpose(cells, 1, 0) if cells.const is None else op.const(cells.const.T)
        padded = op.Gather(padded, by_offset, axis=2 + 2 * i)
    if len(axes) > 1:
        kernel = [2 + 2 * i for i in range(len(axes))]
        padded = op.transpose(padded, 0, 1, *kernel, *(k + 1 for k in kernel))
    return op.Reshape(padded, [0, 0, math.prod(a.kernel for a in axes), -1])
