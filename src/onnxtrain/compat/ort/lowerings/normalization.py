"""Batch and layer normalization with the statistics they keep, and their gradients."""

from __future__ import annotations

from typing import Any

from ....autodiff.rules.normalization import channel_sum, per_channel, project
from ....errors import ModelError
from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering


def batch_norm_internal(
    op: OpBuilder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
    *, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    """Batch normalization in training mode, with the batch's mean and 1/√(variance + ε)."""
    if not training_mode:
        return op.BatchNormalization(x, scale, bias, mean, var, epsilon=epsilon)
    axes = [0, *range(2, x.rank)]
    centre = op.ReduceMean(x, axes, keepdims=0)
    centred = x - per_channel(op, centre, x.rank)
    variance = op.ReduceMean(centred * centred, axes, keepdims=0)
    inverse = op.Reciprocal(op.Sqrt(variance + epsilon))
    slope = per_channel(op, inverse * scale, x.rank)
    y = centred * slope + per_channel(op, bias, x.rank)
    running_mean = mean * momentum + centre * (1 - momentum)
    running_var = var * momentum + variance * (1 - momentum)
    return y, running_mean, running_var, centre, inverse


def batch_normalization_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor,
    *, epsilon: float = 1e-5,
) -> Any:  # fmt: skip
    """dX, dscale and dB from the statistics of the batch."""
    rank = x.rank
    normal = (x - per_channel(op, mean, rank)) * per_channel(op, inverse, rank)
    d_bias = channel_sum(op, dy, x, scale)
    d_scale = channel_sum(op, dy * normal, x, scale)
    count = op.count(x, [0, *range(2, rank)])
    along = per_channel(op, d_bias / count, rank)
    across = per_channel(op, d_scale / count, rank)
    dx = (dy - along - normal * across) * per_channel(op, inverse * scale, rank)
    return dx, d_scale, d_bias


def layer_normalization_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor,
    *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    """dX, dscale and dbias from the statistics that the forward kept."""
    return _layer_grad(op, dy, (x - mean) * inverse, scale, inverse, axis)


def invertible_layer_normalization_grad(
    op: OpBuilder, dy: Tensor, y: Tensor, scale: Tensor, bias: Tensor, inverse: Tensor,
    *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    """As before, with the normalized input worked out from the output."""
    return _layer_grad(op, dy, (y - bias) / scale, scale, inverse, axis)


def simplified_layer_normalization_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, scale: Tensor, inverse: Tensor,
    *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    """dX and dscale of RMS normalization."""
    axes = list(range(axis % x.rank, x.rank))
    normal, g = x * inverse, dy * scale
    dx = (g - normal * op.ReduceMean(g * normal, axes)) * inverse
    return dx, _sum_leading(op, dy * normal, axes[0])


def _layer_grad(
    op: OpBuilder, dy: Tensor, normal: Tensor, scale: Tensor, inverse: Tensor, axis: int
) -> Any:
    if axis >= 0 and dy.shape is None:
        raise ModelError("LayerNormalizationGrad over an axis from the front needs known shapes.")
    axes = list(range(axis % dy.rank, dy.rank))
    dx = project(op, dy * scale, normal, inverse, axes)
    return dx, _sum_leading(op, dy * normal, axes[0]), _sum_leading(op, dy, axes[0])


def _sum_leading(op: OpBuilder, x: Tensor, axis: int) -> Tensor:
    return op.ReduceSum(x, list(range(axis)), keepdims=0) if axis else x


TABLE: dict[str, Lowering] = {
    "BatchNormInternal": batch_norm_internal,
    "BatchNormalizationGrad": batch_normalization_grad,
    "LayerNormalizationGrad": layer_normalization_grad,
    "InvertibleLayerNormalizationGrad": invertible_layer_normalization_grad,
    "SimplifiedLayerNormalizationGrad": simplified_layer_normalization_grad,
}
