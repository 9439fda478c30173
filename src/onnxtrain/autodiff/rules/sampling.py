"""Images read at positions between their pixels: what GridSample and DeformConv share.

Along each axis a position has a few taps, each a pixel with a weight; an image is read at all
combinations of taps. Reading is linear in the image, and its derivative by the position is
reading with the derivatives of the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ._index import Size, dim, scatter_elements, vector

CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """One pixel along one axis: INT64 index (inside the image), weight and its derivative.

    None stands for the weight 1, and for the derivative 0.
    """

    index: Tensor
    weight: Tensor | None
    slope: Tensor | None


def as_number(op: OpBuilder, size: Size, like: Tensor) -> Tensor:
    """A size as a number of the type of `like`."""
    if isinstance(size, int):
        return op.const(np.array([size]), like.dtype)
    return op.Cast(size, to=like.dtype)


def clamp(op: OpBuilder, index: Tensor, size: Size) -> Tensor:
    """INT64 indices moved to the nearest that exists."""
    last = op.const(np.array([size - 1], np.int64)) if isinstance(size, int) else size - 1
    return op.Min(op.Max(index, op.const(np.array([0], np.int64))), last)


def linear_taps(op: OpBuilder, position: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(pixel, weight, derivative of the weight) of linear interpolation."""
    low = op.Floor(position)
    part = position - low
    one = op.like(1, position)
    return [(low, 1.0 - part, -one), (low + 1.0, part, one)]


def cubic_taps(op: OpBuilder, position: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The same for cubic convolution (Keys, with the coefficient that torch uses)."""
    low = op.Floor(position)
    part = position - low
    taps = []
    for shift in (-1, 0, 1, 2):
        away = part - float(shift) if shift <= 0 else float(shift) - part
        if shift in (0, 1):
            weight = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1.0
            slope = (3 * (CUBIC + 2) * away - 2 * (CUBIC + 3)) * away
        else:
            weight = ((CUBIC * away - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC
            slope = (3 * CUBIC * away - 10 * CUBIC) * away + 8 * CUBIC
        taps.append((low + float(shift), weight, slope if shift <= 0 else -slope))
    return taps


def inside_only(
    op: OpBuilder, pixel: Tensor, weight: Tensor | None, slope: Tensor | None, size: Size
) -> Tap:
    """A tap that reads zero outside of the image."""
    number = as_number(op, size, pixel)
    inside = op.Cast(op.And(pixel >= 0.0, pixel < number), to=pixel.dtype)
    index = clamp(op, op.Cast(pixel, to=ir.DataType.INT64), size)
    return Tap(
        index,
        inside if weight is None else weight * inside,
        None if slope is None else slope * inside,
    )


class Reader:
    """An image (N, C, *sizes) read at (N, L) positions, each axis with its taps.

    `shape` is the image's, for one that was just built and whose shape is not known yet.
    """

    def __init__(
        self,
        op: OpBuilder,
        image: Tensor,
        taps: Sequence[Sequence[Tap]],
        shape: Sequence[Size] | None = None,
    ) -> None:
        self.op, self.image, self.taps = op, image, taps
        self.shape = shape or [dim(op, image, a) for a in range(len(taps) + 2)]

    def combinations(self) -> Iterator[tuple[Tensor, tuple[Tap, ...]]]:
        """Flat index (N, 1, L) and taps of every pixel that is read."""
        for combination in itertools.product(*self.taps):
            flat = combination[0].index
            for tap, size in zip(combination[1:], self.shape[3:]):
                flat = flat * size + tap.index
            yield self.op.Unsqueeze(flat, [1]), combination

    def _weight(self, weights: Sequence[Tensor | None]) -> Tensor | None:
        total: Tensor | None = None
        for weight in weights:
            if weight is not None:
                total = weight if total is None else total * weight
        if total is None or total.dtype == self.image.dtype:
            return total
        return self.op.Cast(total, to=self.image.dtype)

    def image_gradient(self, dy: Tensor) -> Tensor:
        """Add (N, C, L) up where it was read from."""
        op, shape_now = self.op, vector(self.op, *self.shape)
        total = op.Reshape(op.full(shape_now, 0, self.image.dtype), [0, 0, -1])
        # One tap after the other: all of them in one operator take twice as long, because
        # onnxruntime copies its indices, and every call gets new pages of memory for them.
        for index, combination in self.combinations():
            weight = self._weight([t.weight for t in combination])
            update = dy if weight is None else dy * op.Unsqueeze(weight, [1])
            total = scatter_elements(op, total, self._per_channel(index), update, 2, "add")
        return op.Reshape(total, shape_now)

    def read(self) -> list[tuple[Tensor, tuple[Tap, ...]]]:
        """The pixels (N, C, L) that are read, not weighted yet, and their taps."""
        op = self.op
        flat = op.Reshape(self.image, [0, 0, -1])
        pixels = []
        for index, combination in self.combinations():
            pixel = op.GatherElements(flat, self._per_channel(index), axis=2)
            pixels.append((pixel, combination))
        return pixels

    def _per_channel(self, index: Tensor) -> Tensor:
        """Flat indices (N, 1, L), once for every channel."""
        op = self.op
        shape = op.Concat(vector(op, *self.shape[:2]), op.Shape(index, start=2), axis=0)
        return op.Expand(index, shape)

    def value(self, pixels: Sequence[tuple[Tensor, tuple[Tap, ...]]]) -> Tensor:
        """What was read (N, C, L)."""
        op = self.op
        terms = []
        for pixel, combination in pixels:
            weight = self._weight([t.weight for t in combination])
            terms.append(pixel if weight is None else pixel * op.Unsqueeze(weight, [1]))
        return terms[0] if len(terms) == 1 else op.Sum(*terms)

    def position_gradient(
        self, dy: Tensor, pixels: Sequence[tuple[Tensor, tuple[Tap, ...]]], axis: int
    ) -> Tensor | None:
        """Gradient (N, L) of the positions along one axis, for the gradient (N, C, L) of values."""
        op = self.op
        terms = []
        for pixel, combination in pixels:
            slope = combination[axis].slope
            if slope is None:
                return None
            others = [t.weight for i, t in enumerate(combination) if i != axis]
            weight = self._weight([slope, *others])
            assert weight is not None
            terms.append(op.ReduceSum(pixel * dy, [1], keepdims=0) * weight)
        return terms[0] if len(terms) == 1 else op.Sum(*terms)
