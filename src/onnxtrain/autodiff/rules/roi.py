"""Regions of interest: RoiAlign, MaxRoiPool. Like torchvision, no gradient for the regions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import Size, dim, line, scatter_elements, vector
from .sampling import as_number
from .windows import at_least


@dataclass(frozen=True)
class Samples:
    """Where RoiAlign reads along one axis.

    Attributes:
        position: positions (R, bins, samples), moved into the image.
        inside: whether a position was in the image; outside of it zero is read.
        taken: whether there is such a sample (their number may differ by region).
        count: samples per bin (R, 1, 1), at least one.
    """

    position: Tensor
    inside: Tensor
    taken: Tensor
    count: Tensor


@gradient("RoiAlign", stops=(1, 2), note="no gradient for the regions, as in torchvision")
def roi_align(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    centred = coordinate_transformation_mode == "half_pixel"
    sizes = dim(op, x, 2), dim(op, x, 3)
    rows, cols = (
        _samples(op, rois, i, bins, sizes[1 - i], spatial_scale, sampling_ratio, centred)
        for i, bins in ((1, output_height), (0, output_width))
    )
    if mode == "max":
        return _align_max(op, dy, x, batch, rows, cols, output_height * output_width)
    down, across = (_weights(op, s, size) for s, size in zip((rows, cols), sizes))
    return _back_to_images(op, dy, x, batch, down, across)


def _samples(
    op: OpBuilder,
    rois: Tensor,
    column: int,
    bins: int,
    size: Size,
    scale: float,
    ratio: int,
    centred: bool,
) -> Samples:
    shift = 0.5 if centred else 0.0
    start, end = (
        op.Unsqueeze(op.Slice(rois, [c], [c + 1], [1]), [2]) * float(scale) - shift
        for c in (column, column + 2)
    )
    extent = end - start
    if not centred:
        extent = op.Max(extent, op.like(1, rois))
    width = extent / float(bins)
    if ratio > 0:
        count = op.const(np.full((1, 1, 1), ratio), rois.dtype)
        number: Size = ratio
    else:
        count = op.Ceil(width)
        most = op.ReduceMax(op.Cast(count, to=ir.DataType.INT64), keepdims=0)
        number = at_least(op, op.Reshape(most, [1]), 1)
    count = op.Max(count, op.like(0, rois))
    some = op.Max(count, op.like(1, rois))
    steps = op.Cast(line(op, number), to=rois.dtype)
    within = (steps + 0.5) / some
    bin_number = op.const(np.arange(bins).reshape(1, bins, 1), rois.dtype)
    position = start + (bin_number + within) * width
    limit = as_number(op, size, rois)
    inside = op.And(position >= -1.0, position <= limit)
    moved = op.Min(op.Max(position, op.like(0, rois)), limit - 1.0)
    return Samples(moved, inside, op.Expand(steps < count, op.Shape(position)), some)


# --- average -----------------------------------------------------------------------------------


def _weights(op: OpBuilder, samples: Samples, size: Size) -> Tensor:
    """Share (R, bins, size) of each row or column in each bin: hats around the samples."""
    position = op.Unsqueeze(samples.position, [3])
    here = op.Cast(line(op, size), to=samples.position.dtype)
    hat = op.Max(1.0 - op.Abs(position - here), op.like(0, samples.position))
    valid = op.Cast(op.And(samples.inside, samples.taken), to=samples.position.dtype)
    return op.ReduceSum(hat * op.Unsqueeze(valid, [3]), [2], keepdims=0) / samples.count


def _back_to_images(
    op: OpBuilder, dy: Tensor, x: Tensor, batch: Tensor, down: Tensor, across: Tensor
) -> Tensor:
    """``Σ downᵀ·dy·across`` over the regions of each image, as one product per image."""
    height, width = dim(op, x, 2), dim(op, x, 3)
    channels = dim(op, x, 1)
    wide = op.MatMul(dy, op.Unsqueeze(across, [1]))  # (R, C, bins, W)
    lines = op.Reshape(op.transpose(wide, 0, 2, 1, 3), vector(op, -1, channels * width))
    chosen = _belongs(op, x, batch)  # (N, R)
    masked = op.Unsqueeze(chosen, [2, 3]) * op.Unsqueeze(down, [0])  # (N, R, bins, H)
    left = op.Reshape(op.transpose(masked, 0, 3, 1, 2), vector(op, 0, height, -1))
    images = op.Reshape(op.MatMul(left, lines), vector(op, 0, height, channels, width))
    return op.transpose(images, 0, 2, 1, 3)


def _belongs(op: OpBuilder, x: Tensor, batch: Tensor) -> Tensor:
    """1 where a region (second axis) lies in an image (first axis)."""
    number = op.Unsqueeze(line(op, dim(op, x, 0)), [1])
    return op.Cast(op.Equal(number, op.Unsqueeze(batch, [0])), to=x.dtype)


# --- maximum -----------------------------------------------------------------------------------


def _align_max(
    op: OpBuilder,
    dy: Tensor,
    x: Tensor,
    batch: Tensor,
    rows: Samples,
    cols: Samples,
    bins: int,
) -> Tensor:
    """The operator takes the largest weighted corner of all samples; it gets the gradient."""
    (top, low_row), (left, low_col) = _corners(op, rows), _corners(op, cols)
    width = dim(op, x, 3)
    indices, weights = [], []
    both = op.And(_down(op, rows.inside), _across(op, cols.inside))
    for row, tall in ((top, 1.0 - low_row), (_next(op, top, x, 2), low_row)):
        for col, broad in ((left, 1.0 - low_col), (_next(op, left, x, 3), low_col)):
            flat = _down(op, row) * width + _across(op, col)
            weight = _down(op, tall) * _across(op, broad)
            indices.append(op.Where(both, flat, op.const(np.array(0, np.int64))))
            weights.append(op.Where(both, weight, op.like(0, weight)))
    taken = op.And(_down(op, rows.taken), _across(op, cols.taken))
    # (R, rows, cols, row samples, col samples, corners) to (R, 1, bins, candidates)
    flat_shape = op.const(np.array([0, 1, bins, -1], np.int64))

    def candidates(parts: list[Tensor]) -> Tensor:
        stacked = op.Concat(*(op.Unsqueeze(p, [5]) for p in parts), axis=5)
        return op.Reshape(stacked, flat_shape)

    index, weight = candidates(indices), candidates(weights)
    exists = candidates([taken] * 4)
    if weight.dtype != x.dtype:
        weight = op.Cast(weight, to=x.dtype)
    regions = op.Reshape(op.Gather(x, op.Cast(batch, to=ir.DataType.INT64), axis=0), [0, 0, -1])
    shape = op.Concat(op.Shape(regions, end=2), op.Shape(index, start=2), axis=0)
    everywhere = op.Reshape(op.Expand(index, shape), [0, 0, -1])
    pixels = op.Reshape(op.GatherElements(regions, everywhere, axis=2), shape)
    lowest = op.const(np.array(-np.inf), x.dtype)
    best = op.ArgMax(op.Where(exists, pixels * weight, lowest), axis=3, keepdims=1)
    chosen = op.GatherElements(op.Expand(index, shape), best, axis=3)
    share = op.GatherElements(op.Expand(weight, shape), best, axis=3)
    some = op.GatherElements(op.Expand(exists, shape), best, axis=3)
    update = op.Unsqueeze(op.Reshape(dy, [0, 0, -1]), [3]) * share
    update = op.Where(some, update, op.like(0, update))
    return _add_up(op, x, batch, regions, op.Squeeze(chosen, [3]), op.Squeeze(update, [3]))


def _corners(op: OpBuilder, samples: Samples) -> tuple[Tensor, Tensor]:
    low = op.Floor(samples.position)
    return op.Cast(low, to=ir.DataType.INT64), samples.position - low


def _next(op: OpBuilder, low: Tensor, x: Tensor, axis: int) -> Tensor:
    last = dim(op, x, axis) - 1
    return op.Min(low + 1, vector(op, last))


def _down(op: OpBuilder, t: Tensor) -> Tensor:
    return op.Unsqueeze(t, [2, 4])


def _across(op: OpBuilder, t: Tensor) -> Tensor:
    return op.Unsqueeze(t, [1, 3])


def _add_up(
    op: OpBuilder, x: Tensor, batch: Tensor, regions: Tensor, index: Tensor, update: Tensor
) -> Tensor:
    """Updates (R, C, bins) into images: first within each region, then by image."""
    zeros = op.full(op.Shape(regions), 0, x.dtype)
    per_region = scatter_elements(op, zeros, index, update, 2, "add")
    flat = op.Reshape(per_region, [0, -1])
    return op.reshape_like(op.MatMul(_belongs(op, x, batch), flat), x)


@gradient("MaxRoiPool", stops=(1,), note="no gradient for the regions, as in torchvision")
def max_roi_pool(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    rois: Tensor,
    *,
    pooled_shape: list[int],
    spatial_scale: float = 1.0,
) -> Any:
    batch = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=ir.DataType.INT64)
    rows = _bins(op, rois, 2, pooled_shape[0], dim(op, x, 2), spatial_scale)
    cols = _bins(op, rois, 1, pooled_shape[1], dim(op, x, 3), spatial_scale)
    both = op.And(op.Unsqueeze(rows, [2, 4]), op.Unsqueeze(cols, [1, 3]))
    member = op.Reshape(both, [0, 1, math.prod(pooled_shape), -1])
    regions = op.Reshape(op.Gather(x, batch, axis=0), [0, 0, -1])
    lowest = op.const(np.array(-np.inf), x.dtype)
    values = op.Where(member, op.Unsqueeze(regions, [2]), lowest)
    best = op.ArgMax(values, axis=3, keepdims=0)
    some = op.ReduceMax(op.Cast(member, to=x.dtype), [3], keepdims=0)  # an empty bin gives zero
    update = op.Reshape(dy, [0, 0, -1]) * some
    return _add_up(op, x, batch, regions, best, update)


def _bins(op: OpBuilder, rois: Tensor, column: int, bins: int, size: Size, scale: float) -> Tensor:
    """Whether a row or column of the image (third axis) belongs to a bin: (R, bins, size)."""
    first, last = (
        _half_up(op, op.Slice(rois, [c], [c + 1], [1]) * float(scale)) for c in (column, column + 2)
    )
    width = op.Max(last - first + 1.0, op.like(1, rois)) / float(bins)
    number = op.const(np.arange(bins).reshape(1, bins), rois.dtype)
    begin = op.Unsqueeze(op.Floor(number * width) + first, [2])
    end = op.Unsqueeze(op.Ceil((number + 1.0) * width) + first, [2])
    here = op.Cast(line(op, size), to=rois.dtype)
    return op.And(here >= begin, here < end)


def _half_up(op: OpBuilder, value: Tensor) -> Tensor:
    """Rounded, halves away from zero, as C does."""
    return op.Sign(value) * op.Floor(op.Abs(value) + 0.5)
