"""GridSample and DeformConv for `onnx.reference`, whose own round positions to float32."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


def reflect(v: Array, low: float, high: float) -> Array:
    """Positions outside of an interval mirrored at its ends."""
    extent = high - low
    if extent <= 0:
        return np.full_like(v, low)
    t = np.mod(v - low, 2 * extent)
    return low + np.where(t > extent, 2 * extent - t, t)


def cubic(distance: Array) -> Array:
    """What a pixel weighs in cubic interpolation."""
    a, d = -0.75, np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


class GridSample(OpRun):
    def _run(
        self,
        x: Any,
        grid: Any,
        mode: Any = "linear",
        padding_mode: Any = "zeros",
        align_corners: Any = 0,
    ) -> Any:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        rank = x.ndim - 2
        axes = []
        for axis, size in enumerate(x.shape[2:]):
            g = grid[..., rank - 1 - axis]
            v = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
            low, high = (0, size - 1) if align_corners else (-0.5, size - 0.5)
            v = np.rint(v) if mode == "nearest" else v
            outside = (v < low) | (v > high)
            if padding_mode == "border":
                v = np.where(outside, np.clip(v, 0, size - 1), v)
            elif padding_mode == "reflection":
                v = np.where(outside, reflect(v, low, high), v)
            axes.append(self._taps(v, size, mode, padding_mode, low, high))
        out: Any = 0.0
        batch = np.arange(x.shape[0]).reshape(-1, *[1] * rank)
        for combination in itertools.product(*axes):
            places: tuple[Any, ...] = (batch, *(index for index, _ in combination))
            pixel = np.moveaxis(x, 1, -1)[places]
            weight = np.prod(np.broadcast_arrays(*(w for _, w in combination)), axis=0)
            out = out + np.moveaxis(pixel * weight[..., None], -1, 1)
        return (out.astype(x.dtype),)

    @staticmethod
    def _taps(v: Any, size: Any, mode: Any, padding: Any, low: Any, high: Any) -> Any:
        base = np.floor(v)
        if mode == "nearest":
            pixels = [(v, np.ones_like(v))]
        elif mode == "linear":
            pixels = [(base, 1 - (v - base)), (base + 1, v - base)]
        else:
            pixels = [(base + k, cubic(v - base - k)) for k in (-1, 0, 1, 2)]
        taps = []
        for pixel, weight in pixels:
            share = weight * ((pixel >= 0) & (pixel < size)) if padding == "zeros" else weight
            place = reflect(pixel, low, high) if padding == "reflection" else pixel
            taps.append((np.clip(place, 0, size - 1).astype(int), share))
        return taps


def bilinear(image: Array, py: Array, px: Array) -> Array:
    """(C, H, W) read at positions of any shape, zero outside: (C, *positions)."""
    _, h, w = image.shape
    out = np.zeros((image.shape[0], *py.shape), image.dtype)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        iy, ix = np.floor(py) + dy, np.floor(px) + dx
        weight = (1 - np.abs(py - iy)) * (1 - np.abs(px - ix))
        weight = weight * ((iy >= 0) & (iy < h) & (ix >= 0) & (ix < w))
        pixel = image[:, np.clip(iy, 0, h - 1).astype(int), np.clip(ix, 0, w - 1).astype(int)]
        out += weight * pixel
    return out


class DeformConv(OpRun):
    def _run(
        self,
        x: Any,
        w: Any,
        offset: Any,
        b: Any = None,
        mask: Any = None,
        dilations: Any = None,
        group: Any = 1,
        kernel_shape: Any = None,
        offset_group: Any = 1,
        pads: Any = None,
        strides: Any = None,
    ) -> Any:
        kh, kw = w.shape[2:]
        oh, ow = offset.shape[2:]
        (sh, sw), (dh, dw) = strides or (1, 1), dilations or (1, 1)
        top, left = (pads or (0, 0))[:2]
        n, c = x.shape[:2]
        moves = offset.reshape(n, offset_group, kh, kw, 2, oh, ow)
        shares = np.ones((n, offset_group, kh, kw, oh, ow)) if mask is None else mask
        shares = shares.reshape(n, offset_group, kh, kw, oh, ow)
        each = c // offset_group
        cells = np.zeros((n, c, kh, kw, oh, ow), x.dtype)
        for i, g, r, q in itertools.product(*map(range, (n, offset_group, kh, kw))):
            py = np.arange(oh)[:, None] * sh - top + r * dh + moves[i, g, r, q, 0]
            px = np.arange(ow)[None] * sw - left + q * dw + moves[i, g, r, q, 1]
            part = slice(g * each, (g + 1) * each)
            cells[i, part, r, q] = bilinear(x[i, part], py, px) * shares[i, g, r, q]
        cells = cells.reshape(n, group, c // group, kh, kw, oh, ow)
        weights = w.reshape(group, -1, *w.shape[1:])
        y = np.einsum("ngcrqhw,gmcrq->ngmhw", cells, weights).reshape(n, -1, oh, ow)
        return (y if b is None else y + b.reshape(-1, 1, 1),)


OPS = [GridSample, DeformConv]
