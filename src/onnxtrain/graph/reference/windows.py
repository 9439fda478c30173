"""Window operators for `onnx.reference`, whose own are wrong in places or take minutes.

Wrong there: ConvTranspose with groups, MaxPool's indices and SAME_LOWER, AveragePool's padding
and GlobalMaxPool other than 2-D. Each operator here is a loop over kernel positions on strided
views, in the type of its input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
Index = tuple[Any, ...]


class Geometry:
    """Window positions along all spatial axes, from an operator's attributes."""

    def __init__(
        self,
        image: Any,
        kernel: Any,
        strides: Any,
        dilations: Any,
        pads: Any,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        *,
        pool: bool = False,
    ) -> None:
        self.image, self.kernel = [int(i) for i in image], [int(k) for k in kernel]
        rank = len(self.kernel)
        self.strides = list(strides or [1] * rank)
        self.dilations = list(dilations or [1] * rank)
        pads = list(pads or [0] * 2 * rank)
        self.begin, self.end = pads[:rank], pads[rank:]
        self.span = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]
        self.windows = []
        for i in range(rank):
            size, s, span = self.image[i], self.strides[i], self.span[i]
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                count = -(-size // s)
                # onnxruntime pads for a pool as if it were not dilated
                total = max((count - 1) * s + (self.kernel[i] if pool else span) - size, 0)
                small, large = total // 2, total - total // 2
                upper = auto_pad == "SAME_UPPER"
                self.begin[i], self.end[i] = (small, large) if upper else (large, small)
                if pool:
                    count = (size + total - span) // s + 1
            else:
                if auto_pad == "VALID":
                    self.begin[i] = self.end[i] = 0
                room = size + self.begin[i] + self.end[i] - span
                count = (-(-room // s) if ceil_mode else room // s) + 1
                if ceil_mode and (count - 1) * s >= size + self.begin[i]:
                    count -= 1
            self.windows.append(count)

    def positions(self) -> Iterator[tuple[Index, Index]]:
        """For each kernel position its index, and that of its places in the padded image."""
        for offset in itertools.product(*map(range, self.kernel)):
            places = (
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, n, s in zip(offset, self.dilations, self.windows, self.strides)
            )
            yield (..., *offset), (..., *places)

    def padded_sizes(self) -> list[int]:
        return [
            max(b + i + e, (n - 1) * s + span)
            for b, i, e, n, s, span in zip(
                self.begin, self.image, self.end, self.windows, self.strides, self.span
            )
        ]

    def inner(self) -> Index:
        """The index of the image in the padded one."""
        return (..., *(slice(b, b + i) for b, i in zip(self.begin, self.image)))

    def pad(self, x: Array, value: float) -> Array:
        out = np.full((*x.shape[:2], *self.padded_sizes()), value, x.dtype)
        out[self.inner()] = x
        return out


def _sum_of_windows(geometry: Geometry, padded: Array) -> Array:
    total = np.zeros((*padded.shape[:2], *geometry.windows), padded.dtype)
    for _, places in geometry.positions():
        total += padded[places]
    return total


def _mix_channels(weights: Array, x: Array) -> Array:
    """Weights [group, m, c] times [n, group, c, places…], by the fast product of matrices."""
    flat = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    mixed = weights * flat if x.shape[2] == 1 else weights @ flat
    return mixed.reshape(*mixed.shape[:3], *x.shape[3:])


class Conv(OpRun):
    def _run(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        auto_pad: Any = "NOTSET",
        dilations: Any = None,
        group: Any = 1,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        g = Geometry(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
        n, m = x.shape[0], w.shape[0]
        xp = g.pad(x, 0).reshape(n, group, -1, *g.padded_sizes())
        wg = w.reshape(group, m // group, *w.shape[1:])
        y = np.zeros((n, group, m // group, *g.windows), x.dtype)
        for offset, places in g.positions():
            y += _mix_channels(wg[offset], xp[places])
        y = y.reshape(n, m, *g.windows)
        return (y if b is None else y + b.reshape(-1, *[1] * len(g.windows)),)


class ConvTranspose(OpRun):
    def _run(
        self,
        x: Any,
        w: Any,
        b: Any = None,
        auto_pad: Any = "NOTSET",
        dilations: Any = None,
        group: Any = 1,
        kernel_shape: Any = None,
        output_padding: Any = None,
        output_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        rank = x.ndim - 2
        g = Geometry(x.shape[2:], w.shape[2:], strides, dilations, None)
        g.windows = list(x.shape[2:])
        extra = list(output_padding or [0] * rank)
        full = [(n - 1) * s + k for n, s, k in zip(g.windows, g.strides, g.span)]
        pads = list(pads or [0] * 2 * rank) if auto_pad == "NOTSET" else [0] * 2 * rank
        begin = pads[:rank]
        size = [f + e - p - q for f, e, p, q in zip(full, extra, begin, pads[rank:])]
        if output_shape or auto_pad.startswith("SAME"):
            size = list(output_shape or [n * s for n, s in zip(g.windows, g.strides)])
            total = [max(f + e - s, 0) for f, e, s in zip(full, extra, size)]
            upper = auto_pad == "SAME_UPPER"
            begin = [t // 2 if upper else t - t // 2 for t in total]
        c, m = x.shape[1], w.shape[1]
        xg = x.reshape(x.shape[0], group, c // group, *g.windows)
        wg = w.reshape(group, c // group, *w.shape[1:])
        room = [max(f, b + s) for f, b, s in zip(full, begin, size)]
        y = np.zeros((x.shape[0], group, m, *room), x.dtype)
        for offset, places in g.positions():
            y[places] += _mix_channels(wg[offset].swapaxes(1, 2), xg)
        cut: Index = (..., *(slice(b, b + s) for b, s in zip(begin, size)))
        y = y[cut]
        y = y.reshape(x.shape[0], group * m, *size)
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class Col2Im(OpRun):
    def _run(
        self,
        x: Any,
        image_shape: Any,
        block_shape: Any,
        dilations: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        g = Geometry(image_shape, block_shape, strides, dilations, pads)
        cells = x.reshape(x.shape[0], -1, int(np.prod(block_shape)), *g.windows)
        y = np.zeros((*cells.shape[:2], *g.padded_sizes()), x.dtype)
        for i, (_, places) in enumerate(g.positions()):
            y[places] += cells[:, :, i]
        return (y[g.inner()],)


class MaxPool(OpRun):
    def _run(
        self,
        x: Any,
        auto_pad: Any = "NOTSET",
        ceil_mode: Any = 0,
        dilations: Any = None,
        kernel_shape: Any = None,
        pads: Any = None,
        storage_order: Any = 0,
        strides: Any = None,
    ) -> Any:
        g = Geometry(
            x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, pool=True
        )
        order: Literal["C", "F"] = "F" if storage_order else "C"
        # Column-major numbering is within one channel; channels stay row-major.
        place: Array = np.arange(int(np.prod(g.image)))
        place = place.reshape(g.image, order=order)
        start = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(g.image))
        number = g.pad(place[None, None], -1)
        xp = g.pad(x, -np.inf)
        y = np.full((*x.shape[:2], *g.windows), -np.inf, x.dtype)
        index: Array = np.zeros(y.shape, np.int64)
        for _, places in g.positions():
            new = xp[places]
            index = np.where(new > y, number[places], index)
            y = np.maximum(y, new)
        return (y, index + start * place.size) if len(self.output) > 1 else (y,)


class AveragePool(OpRun):
    def _run(
        self,
        x: Any,
        auto_pad: Any = "NOTSET",
        ceil_mode: Any = 0,
        count_include_pad: Any = 0,
        dilations: Any = None,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        g = Geometry(
            x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, pool=True
        )
        ones = np.ones((1, 1, *g.image))
        counted = g.pad(ones, 0)
        if count_include_pad:  # all but what ceil_mode added behind the padding
            spans = (slice(0, b + i + e) for b, i, e in zip(g.begin, g.image, g.end))
            around: Index = (..., *spans)
            counted[around] = 1
        xp = g.pad(x, 0)
        total, count = (_sum_of_windows(g, values) for values in (xp, counted))
        return ((total / count).astype(x.dtype),)


class LpPool(OpRun):
    def _run(
        self,
        x: Any,
        auto_pad: Any = "NOTSET",
        ceil_mode: Any = 0,
        dilations: Any = None,
        kernel_shape: Any = None,
        p: Any = 2,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        g = Geometry(
            x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, pool=True
        )
        xp = np.abs(g.pad(x, 0)) ** p
        total = _sum_of_windows(g, xp)
        return ((total ** (1 / p)).astype(x.dtype),)


class GlobalLpPool(OpRun):
    def _run(self, x: Any, p: Any = 2) -> Any:
        axes = tuple(range(2, x.ndim))
        return ((np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p),)


class GlobalMaxPool(OpRun):
    def _run(self, x: Any) -> Any:
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


OPS = [
    Conv, ConvTranspose, Col2Im, MaxPool, AveragePool, LpPool, GlobalLpPool, GlobalMaxPool,
]  # fmt: skip
