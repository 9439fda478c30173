"""Normalization layers.

Most share one formula. With x̂ = (x - μ)·r normalized over n elements and g = ∂loss/∂x̂,

    ∂loss/∂x = r·(g - mean(g) - x̂·mean(g·x̂))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient, gradient_multi
from .elementwise import as_type
from .linear import as_rows
from .reductions import inverse_count

SMALL_MAP = 16
"""Pixels up to which BatchNormalization's kernel adds a number per channel faster than Sub does."""

# --- helpers -----------------------------------------------------------------------------------


def standardize(
    op: OpBuilder, x: Tensor, axes: Sequence[int], epsilon: float
) -> tuple[Tensor, Tensor]:
    """x̂ over `axes`, and r = 1/√(variance + ε)."""
    centred, rstd = centre(op, x, axes, epsilon)
    return centred * rstd, rstd


def centre(op: OpBuilder, x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """x - μ over `axes`, and r = 1/√(variance + ε)."""
    centred = x - op.ReduceMean(x, list(axes))
    variance = op.ReduceMean(centred * centred, list(axes))
    return centred, op.Reciprocal(op.Sqrt(variance + epsilon))


def project(op: OpBuilder, g: Tensor, normal: Tensor, rstd: Tensor, axes: Sequence[int]) -> Tensor:
    """∂loss/∂x from g = ∂loss/∂x̂: the formula at the top of this file."""
    along, across = op.ReduceMean(g, list(axes)), op.ReduceMean(g * normal, list(axes))
    return (g - (normal * across + along)) * rstd


def channel_sum(op: OpBuilder, t: Tensor, x: Tensor, like: Tensor) -> Tensor:
    """Sum a tensor shaped like `x` over all axes but the second, which the vector `like` has.

    Space first and batch then is the faster order, and `sum_to` knows the fastest sum of rows.
    """
    return batch_sum(op, _space_sum(op, t, x) if x.rank > 2 else t, like)


def _space_sum(op: OpBuilder, t: Tensor, x: Tensor) -> Tensor:
    """Sum a tensor shaped like `x` over all axes behind the second."""
    t = op.ReduceSum(t, list(range(2, x.rank)), keepdims=0)
    t.value.shape = ir.Shape([x.dim(0), x.dim(1)])
    return t


def batch_sum(op: OpBuilder, t: Tensor, like: Tensor) -> Tensor:
    """Sum a matrix over its rows, which are as wide as the vector `like`."""
    width = like.dim(0)
    if isinstance(width, int):
        return op.sum_to(t, like, (None, width), t)
    return op.ReduceSum(t, [0], keepdims=0)


def channel_affine(
    op: OpBuilder, x: Tensor, rank: int, slope: Tensor, shift: Tensor | None, like: Tensor
) -> Tensor:
    """``x·slope + shift`` in one pass; one number of each per channel, as many as `like` has.

    BatchNormalization in inference mode is that kernel; a broadcast (C, 1, 1) product is slow
    when the maps are small, because every map is a loop of its own.
    """
    if rank == 2:
        scaled = x * slope
        return scaled if shift is None else scaled + shift
    zero, one = (_vector(op, like, v, slope) for v in (0, 1))
    return op.BatchNormalization(x, slope, zero if shift is None else shift, zero, one, epsilon=0.0)


def _has_small_maps(x: Tensor) -> bool:
    """Whether it takes longer to begin a map than to go through it."""
    sizes = [x.dim(axis) for axis in range(2, x.rank)]
    known = [size for size in sizes if isinstance(size, int)]
    return 0 < len(known) == len(sizes) and math.prod(known) <= SMALL_MAP


def _vector(op: OpBuilder, like: Tensor, number: float, typed: Tensor) -> Tensor:
    if like.static_shape is not None:
        return op.const(np.full(like.static_shape, number), typed.dtype)
    return op.full(op.shape_of(like), number, typed.dtype)


def per_channel(op: OpBuilder, v: Tensor, rank: int) -> Tensor:
    """A vector with one entry per channel, shaped to broadcast against (N, C, ...)."""
    return op.Reshape(v, [-1] + [1] * (rank - 2)) if rank > 2 else v


# --- batch normalization -----------------------------------------------------------------------


@dataclass(frozen=True)
class BatchStatistics:
    """μ, x - μ and the variance of each channel of a batch; one over the elements of a channel."""

    mean: Tensor
    centred: Tensor
    variance: Tensor
    share: Tensor


def batch_statistics(op: OpBuilder, x: Tensor, scale: Tensor) -> BatchStatistics:
    """In single precision at least: a sum over half-precision maps would overflow."""
    wide = x if x.dtype == ir.DataType.DOUBLE else as_type(op, x, ir.DataType.FLOAT)
    share = inverse_count(op, x, scale, like=wide)
    mu = channel_sum(op, wide, x, scale) * share
    if _has_small_maps(x):  # 16 × 512 maps of 2×2, two threads: 0.04 instead of 0.2 ms
        centred = channel_affine(op, wide, x.rank, _vector(op, scale, 1, wide), -mu, scale)
    else:
        centred = wide - per_channel(op, mu, x.rank)
    variance = channel_sum(op, centred * centred, x, scale) * share
    mu.value.shape = variance.value.shape = scale.value.shape
    centred.value.shape = x.value.shape
    return BatchStatistics(mu, centred, variance, share)


@gradient_multi("BatchNormalization", note="training and inference; statistics carry no gradient")
def batch_normalization(
    op: OpBuilder,
    dys: tuple[Tensor | None, ...],
    ys: tuple[Tensor, ...],
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if dys[0] is None:
        return None
    if training_mode:
        return batch_gradient(op, dys[0], x, scale, bias, batch_statistics(op, x, scale), epsilon)
    centred = x - per_channel(op, as_type(op, mean, x.dtype), x.rank)
    slope, rstd, d_scale, d_bias = _per_channel(op, dys[0], x, scale, centred, variance, epsilon)
    return (
        channel_affine(op, dys[0], x.rank, slope, None, scale),
        as_type(op, d_scale, scale.dtype),
        as_type(op, d_bias, bias.dtype),
        as_type(op, -(d_bias * slope), mean.dtype),
        as_type(op, d_scale * slope * rstd * -0.5, variance.dtype),
    )


def batch_gradient(
    op: OpBuilder,
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    batch: BatchStatistics,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and bias where the statistics are those of the batch itself."""
    centred, rank = as_type(op, op.tensor(batch.centred.value), x.dtype), x.rank
    variance = op.tensor(batch.variance.value)
    slope, rstd, d_scale, d_bias = _per_channel(op, dy, x, scale, centred, variance, epsilon)
    # slope·(dy - mean(dy) - x̂·mean(dy·x̂)), gathered per channel
    is_same = batch.share.dtype == x.dtype
    share = slope * (op.tensor(batch.share.value) if is_same else inverse_count(op, x, scale))
    mean = channel_affine(op, centred, rank, share * rstd * d_scale, share * d_bias, scale)
    dx = channel_affine(op, dy, rank, slope, None, scale) - mean
    return dx, as_type(op, d_scale, scale.dtype), as_type(op, d_bias, bias.dtype)


def _per_channel(
    op: OpBuilder,
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    centred: Tensor,
    variance: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scale·r, r = 1/√(variance + ε), and the gradients of scale and bias, all in x's type."""
    rstd = op.Reciprocal(op.Sqrt(as_type(op, variance, x.dtype) + epsilon))
    d_bias = channel_sum(op, dy, x, scale)
    d_scale = channel_sum(op, dy * centred, x, scale) * rstd
    return as_type(op, scale, x.dtype) * rstd, rstd, d_scale, d_bias


# --- layer, instance, group --------------------------------------------------------------------


@gradient_multi("LayerNormalization")
def layer_normalization(
    op: OpBuilder,
    dys: tuple[Tensor | None, ...],
    ys: tuple[Tensor, ...],
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    axes = list(range(axis % x.rank, x.rank))
    if x.dtype == ir.DataType.DOUBLE:  # the operator's own statistics are single precision
        centred, rstd = centre(op, x, axes, epsilon)
    else:
        mean, rstd = (_statistic(op, i, stash_type, x) for i in (1, 2))
        centred = x - mean
    d_x, d_scale, d_bias = [], None, None
    if dys[0] is not None:
        dy = dys[0]
        d_bias = None if bias is None else op.sum_to(dy, bias, x.shape, x)
        g, weighted = dy * scale, dy * centred  # and r taken out of x̂, which is a number per row
        if scale.rank == 1 and x.rank > 1:  # rows weighted by r and added up, in one product
            d_scale = op.Reshape(rstd, [-1]) @ as_rows(op, weighted, scale)
        else:
            d_scale = op.sum_to(weighted * rstd, scale, x.shape, x)
        along = op.ReduceMean(g, axes)
        across = op.ReduceMean(g * centred, axes) * (rstd * rstd)
        d_x.append((g - (centred * across + along)) * rstd)
    if len(dys) > 1 and dys[1] is not None:
        d_mean = as_type(op, dys[1], x.dtype) * inverse_count(op, x, rstd)
        d_x.append(op.Expand(d_mean, op.shape_of(x)))
    if len(dys) > 2 and dys[2] is not None:  # ∂r/∂x = -r²·x̂/n
        d_rstd = as_type(op, dys[2], x.dtype) * inverse_count(op, x, rstd)
        d_x.append(centred * -(d_rstd * rstd * rstd * rstd))
    return d_x[0] if len(d_x) == 1 else op.Sum(*d_x), d_scale, d_bias


def _statistic(op: OpBuilder, index: int, stash_type: int, x: Tensor) -> Tensor:
    """Mean or 1/deviation from the forward operator, in its own precision, as the type of `x`."""
    statistic = op.output(index)
    statistic.value.type = ir.TensorType(ir.DataType(stash_type))
    return as_type(op, statistic, x.dtype)


@gradient("InstanceNormalization")
def instance_normalization(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
) -> Any:
    # The forward half written out, so that x̂ is computed once, is no faster: its kernel is good.
    centred, rstd = centre(op, op.Reshape(x, [0, 0, -1]), [2], epsilon)
    return group_gradient(op, dy, x, scale, bias, centred, rstd)


def group_gradient(
    op: OpBuilder,
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    centred: Tensor,
    rstd: Tensor,
    groups: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and bias, from x - μ (N, groups, n) and r = 1/√(variance + ε).

    With s = scale·r, per image and group, and c = x - μ

        ∂loss/∂x = s·dy - (c·r²·mean(s·dy·c) + mean(s·dy))

    where the means are sums over maps first, which the gradients of scale and bias are made of,
    too. The scale has an entry per channel or per group; without `groups` both are the same.
    """
    wide = x.dtype if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    dy, centred, rstd = (as_type(op, t, wide) for t in (dy, centred, rstd))

    def by_group(t: Tensor) -> Tensor:
        return op.Reshape(t, [0, -1, 1] if groups is None else [0, groups, -1])

    def by_scale(t: Tensor) -> Tensor:
        target = op.Concat(op.const([0]), op.dim_of(scale, 0), op.const([-1]), axis=0)
        shaped = op.Reshape(t, target)
        shaped.value.shape = ir.Shape([x.dim(0), scale.dim(0), _size_behind(x, scale)])
        return shaped

    flat = by_scale(dy)
    sums, products = (_space_sum(op, t, flat) for t in (flat, flat * by_scale(centred)))
    factors = op.Reshape(as_type(op, scale, wide), [-1, 1] if groups is None else [groups, -1])
    slope = factors * rstd
    totals = (op.ReduceSum(by_group(t) * slope, [2]) for t in (sums, products))
    along, across = (_mean_of_group(op, total, x, rstd, groups) for total in totals)
    across = across * (rstd * rstd)
    if groups is None or scale.dim(0) == x.dim(1):  # all in the shape of x: one pass over memory
        maps, c = [0, -1, *[1] * (x.rank - 2)], op.reshape_like(centred, x)
        of_maps = (
            t if groups is None else op.Expand(t, op.shape_of(slope)) for t in (across, along)
        )
        by, shift = (op.Reshape(t, maps) for t in of_maps)
        dx = dy * op.Reshape(slope, maps) - (c * by + shift)
    else:
        mean = centred * across + along
        # Both in the shape of x before they are subtracted: a Reshape at the end of a graph copies.
        dx = op.reshape_like(flat * op.Reshape(slope, [0, -1, 1]), x) - op.reshape_like(mean, x)
    d_scale = op.Reshape(by_group(products) * rstd, [0, -1])
    return (
        as_type(op, dx, x.dtype),
        as_type(op, batch_sum(op, d_scale, scale), scale.dtype),
        as_type(op, batch_sum(op, sums, bias), bias.dtype),
    )


def _size_behind(x: Tensor, scale: Tensor) -> int | None:
    """Elements of an image that one entry of the scale stands for, if that is known."""
    numbers, entries = [d for d in (x.shape or ())[1:] if isinstance(d, int)], scale.dim(0)
    if len(numbers) < x.rank - 1 or not isinstance(entries, int) or not entries:
        return None
    return math.prod(numbers) // entries


def _mean_of_group(
    op: OpBuilder, total: Tensor, x: Tensor, rstd: Tensor, groups: int | None
) -> Tensor:
    """The sums of groups, divided by how many elements those have.

    A known number is divided by: one over it would be rounded, and a gradient that cancels (of a
    bias in front of a normalization, say) would keep the difference.
    """
    numbers = [d for d in (x.shape or ())[1:] if isinstance(d, int)]
    if len(numbers) < x.rank - 1 or 0 in numbers:
        return total * inverse_count(op, x, rstd, like=rstd)
    return total / op.const(math.prod(numbers) // (groups or numbers[0]), rstd.dtype)


@gradient("GroupNormalization", note="scale per group (opset 18) or per channel (opset 21)")
def group_normalization(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Any:
    centred, rstd = centre(op, op.Reshape(x, [0, num_groups, -1]), [2], epsilon)
    return group_gradient(op, dy, x, scale, bias, centred, rstd, num_groups)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)
) -> Any:
    centred = x - op.ReduceMean(x, list(axes))
    deviation = op.Sqrt(op.ReduceMean(centred * centred, list(axes)))
    # y = c/(σ + ε), and σ has the slope c/(nσ), not c/(n(σ + ε)): it counts where nothing else is
    # left, as of two numbers, which are always ±σ/(σ + ε). (onnxruntime leaves ε out.)
    inverse = op.Reciprocal(deviation + 1e-9)
    along, across = op.ReduceMean(dy, list(axes)), op.ReduceMean(dy * centred, list(axes))
    slope = across * inverse / op.Where(op.Equal(deviation, 0), 1, deviation)
    return (dy - (centred * slope + along)) * inverse


# --- by a norm, by the neighbouring channels ---------------------------------------------------


@gradient("LpNormalization", note="0 where the norm is 0")
def lp_normalization(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, axis: int = -1, p: int = 2
) -> Any:
    norm = op.ReduceL1(x, [axis]) if p == 1 else op.ReduceL2(x, [axis])
    direction = op.Sign(x) if p == 1 else y
    is_zero = op.Equal(norm, 0)
    inverse = op.Where(is_zero, 0, op.Reciprocal(op.Where(is_zero, 1, norm)))
    return (dy - direction * op.ReduceSum(dy * y, [axis])) * inverse


@gradient("LRN")
def lrn(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Any:
    # y = x·D^-β, D = bias + α·mean of x² over a window of channels: ⌊(size-1)/2⌋ back, the rest
    # ahead. The windows that contain a given channel lie the other way round.
    back, ahead = (size - 1) // 2, size // 2
    base = _channel_mean(op, x * x, x, size, back, ahead) * alpha + bias
    scale = op.Pow(base, op.like(-beta, x))
    spread = _channel_mean(op, dy * x * scale / base, x, size, ahead, back)
    return dy * scale - x * spread * (2 * alpha * beta)


def _channel_mean(op: OpBuilder, t: Tensor, x: Tensor, size: int, back: int, ahead: int) -> Tensor:
    """The sum of `t`, shaped like `x`, over a window of channels, divided by its full size."""
    planes = op.Concat(op.dim_of(x, 0), op.const([1]), op.dim_of(x, 1), op.const([-1]), axis=0)
    narrow = x.dtype == ir.DataType.BFLOAT16  # which AveragePool does not take
    means = op.AveragePool(
        op.Reshape(op.Cast(t, to=ir.DataType.FLOAT) if narrow else t, planes),
        kernel_shape=[size, 1],
        pads=[back, 0, ahead, 0],
        count_include_pad=1,
    )
    return op.reshape_like(as_type(op, means, x.dtype), x)
