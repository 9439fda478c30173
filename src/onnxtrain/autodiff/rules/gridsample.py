"""GridSample: gradients of the image and of the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import Size, dim
from .sampling import Reader, Tap, as_number, clamp, cubic_taps, inside_only, linear_taps


@gradient("GridSample")
def grid_sample(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Any:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank = x.rank - 2
    taps, slopes = [], []
    for axis in range(rank):  # the grid names the last axis first
        coordinate = rank - 1 - axis
        normal = op.Reshape(op.Slice(grid, [coordinate], [coordinate + 1], [-1]), [0, -1])
        size = dim(op, x, axis + 2)
        axis_taps, slope = _axis_taps(op, normal, size, bool(align_corners), mode, padding_mode)
        taps.append(axis_taps)
        slopes.append(slope)
    reader = Reader(op, x, taps)
    flat = op.Reshape(dy, [0, 0, -1])
    pixels = reader.read()
    parts = []
    for axis in reversed(range(rank)):
        part = reader.position_gradient(flat, pixels, axis)
        if part is None:  # nearest: the grid moves nothing
            return reader.image_gradient(flat), op.zeros_like(grid)
        if part.dtype != grid.dtype:
            part = op.Cast(part, to=grid.dtype)
        parts.append(op.Unsqueeze(part * slopes[axis], [-1]))
    return reader.image_gradient(flat), op.reshape_like(op.Concat(*parts, axis=-1), grid)


def _axis_taps(
    op: OpBuilder, normal: Tensor, size: Size, align: bool, mode: str, padding: str
) -> tuple[list[Tap], Tensor]:
    """Taps along one axis, and the derivative of the position by the normalized coordinate."""
    number = as_number(op, size, normal)
    half = (number - 1.0) * 0.5 if align else number * 0.5
    position = (normal + 1.0) * half
    if not align:
        position = position - 0.5
    if mode == "nearest":
        pixel = op.Round(position)
        return [_bounded(op, pixel, None, None, size, align, padding)], half
    slope = half
    if padding == "reflection":
        turn = op.Sign(position - _low(align)) * _direction(op, position, size, align)
        inner = op.And(position >= _low(align), position <= number - 1.0 - _low(align))
        slope = half * op.Where(inner, op.like(1, position), turn)
        position = _reflect(op, position, size, align)
    if padding == "border" or (padding == "reflection" and mode == "linear"):
        # Cubic interpolation keeps positions between the outer pixels' centres and their edges.
        edge = 0.0 if mode == "linear" else _low(align)
        last = number - 1.0
        within = op.And(position > edge, position < last - edge)
        held = op.Min(op.Max(position, op.like(0, position)), last)
        slope = slope * op.Cast(within, to=position.dtype)
        position = held if mode == "linear" else op.Where(within, position, held)
    make = linear_taps if mode == "linear" else cubic_taps
    taps = [
        _bounded(op, pixel, weight, change, size, align, padding)
        for pixel, weight, change in make(op, position)
    ]
    return taps, slope


def _bounded(
    op: OpBuilder,
    pixel: Tensor,
    weight: Tensor | None,
    slope: Tensor | None,
    size: Size,
    align: bool,
    padding: str,
) -> Tap:
    if padding == "zeros":
        return inside_only(op, pixel, weight, slope, size)
    if padding == "reflection":
        pixel = _reflect(op, pixel, size, align)
    return Tap(clamp(op, op.Cast(pixel, to=ir.DataType.INT64), size), weight, slope)


def _low(align: bool) -> float:
    """Where the image begins: at the first pixel's centre or at its edge."""
    return 0.0 if align else -0.5


def _extent(op: OpBuilder, size: Size, align: bool, like: Tensor) -> Tensor:
    number = as_number(op, size, like)
    return op.Max(number - 1.0, op.like(1, like)) if align else number


def _folded(op: OpBuilder, position: Tensor, size: Size, align: bool) -> tuple[Tensor, Tensor]:
    """Distance from the beginning within one period there and back, and half that period."""
    extent = _extent(op, size, align, position)
    distance = op.Abs(position - _low(align))
    return op.Mod(distance, extent * 2.0, fmod=1), extent


def _reflect(op: OpBuilder, position: Tensor, size: Size, align: bool) -> Tensor:
    distance, extent = _folded(op, position, size, align)
    return extent - op.Abs(distance - extent) + _low(align)


def _direction(op: OpBuilder, position: Tensor, size: Size, align: bool) -> Tensor:
    distance, extent = _folded(op, position, size, align)
    return op.Sign(extent - distance)


@gradient("AffineGrid", stops=(1,))
def affine_grid(
    op: OpBuilder, dy: Tensor, y: Tensor, theta: Tensor, size: Tensor, *, align_corners: int = 0
) -> Any:
    # y = theta · (p, 1) at each position p, and the positions are the grid of the identity
    axes = op.dim_of(theta, 1)
    square = op.full(op.Concat(axes, axes + 1, axis=0), 0, dy.dtype)
    one_image = op.Concat([1], op.Slice(size, [1], [np.iinfo(np.int64).max]), axis=0)
    grid = op.AffineGrid(
        op.Unsqueeze(op.EyeLike(square), [0]), one_image, align_corners=align_corners
    )
    positions = op.Reshape(grid, op.Concat([-1], axes, axis=0))
    ones = op.full(op.Concat(op.Shape(positions, end=1), [1], axis=0), 1, dy.dtype)
    flat = op.Reshape(dy, op.Concat(op.dim_of(theta, 0), [-1], axes, axis=0))
    return op.Transpose(flat, perm=[0, 2, 1]) @ op.Concat(positions, ones, axis=1)
