"""Where scales and zero points begin: from the range of an activation, or a weight's numbers.

A weight is symmetric around 0. An activation that is never negative begins at 0, so that all its
codes are of use; another one gets the zero point that its range asks for. Zero points are integers
and stay as they are; the scales are learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .constants import Array, along, limits

WEIGHTS = {4: ir.DataType.INT4, 8: ir.DataType.INT8}
ACTIVATIONS = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8, 16: ir.DataType.UINT16}
"""Types by their number of bits."""
NEWEST = frozenset({4, 16})
"""Bits whose types came with opset 21."""
WEIGHT_OBSERVERS = ("mse", "minmax")
SHARES = np.linspace(0.3, 1.0, 36)
"""Parts of the largest number of a weight that are tried as the end of its range."""
SMALLEST = 2.0**-24
"""A scale is at least this part of the largest scale of its tensor: a channel of zeros has one."""


@dataclass(frozen=True)
class Start:
    """What a quantiser begins with.

    Attributes:
        scale: one number, or one per channel.
        zero: as many integers, 0 for weights.
        dtype: of the codes.
        axis: that the channels lie along; None for one scale.
        size: numbers that share a scale, in a row of data.
    """

    scale: Array
    zero: Array
    dtype: ir.DataType
    axis: int | None
    size: int

    @property
    def gradient_scale(self) -> float:
        """LSQ's: 1 / √(numbers · largest code), so that scales learn as fast as weights."""
        return float(1.0 / np.sqrt(self.size * limits(self.dtype)[1]))


def weight_start(weight: Array, bits: int, axis: int | None, observer: str) -> Start:
    """The scale, or the scales along an axis, that a weight begins with."""
    dtype = WEIGHTS[bits]
    high = limits(dtype)[1]
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others, initial=0.0).reshape(-1).astype(np.float64)
    scale = largest / high
    if observer == "mse":
        scale = _nearest(weight, scale, axis, others, high)
    scale = _positive(scale)
    zero = np.zeros(scale.shape, dtype.numpy())
    return Start(scale, zero, dtype, axis, max(weight.size // scale.size, 1))


def _nearest(
    weight: Array, scale: Array, axis: int | None, others: tuple[int, ...] | None, high: int
) -> Array:
    """Of some parts of the scale the one whose rounded weights have the least squared error."""
    best, least = scale, np.full(scale.shape, np.inf)
    for share in SHARES:
        tried = _positive(scale * share).astype(np.float64)
        step = along(tried, weight, axis or 0)
        rounded = np.clip(np.rint(weight / step), -high - 1, high) * step
        error = np.square(rounded - weight).sum(axis=others).reshape(-1)
        best = np.where(error <= least, scale * share, best)
        least = np.minimum(error, least)
    return best


def activation_start(low: float, high: float, size: int, bits: int) -> Start:
    """The scale and zero point of an activation with this range."""
    dtype = ACTIVATIONS[bits]
    last = limits(dtype)[1]
    low, high = min(low, 0.0), max(high, 0.0)  # 0 is always exact: padding and ReLU give it
    scale = _positive(np.array([(high - low) / last]))
    zero = np.clip(np.rint(-low / scale.astype(np.float64)), 0, last).astype(dtype.numpy())
    return Start(scale, zero, dtype, None, size)


def _positive(scale: Array) -> Array:
    """Scales that can be divided by."""
    largest = float(scale.max(initial=0.0)) or 1.0
    return np.maximum(scale, largest * SMALLEST).astype(np.float32)
