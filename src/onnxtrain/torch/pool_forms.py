"""Average pools with a divisor of their own, which the dynamo exporter leaves out silently."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

AXES: dict[Any, int] = {functional.avg_pool2d: 2, functional.avg_pool3d: 3}
"""Functions with `divisor_override`, and over how many axes they go."""


def divided(
    function: Callable[..., torch.Tensor], x: torch.Tensor, divisor: int, **settings: Any
) -> torch.Tensor:
    """Sums over windows, by one divisor: averages over whole windows of a padded image."""
    count = AXES[function]
    kernel, stride, padding = (
        _each(settings.get(name) or other, count)
        for name, other in (
            ("kernel_size", 1), ("stride", settings["kernel_size"]), ("padding", 0),
        )
    )  # fmt: skip
    pads: list[int] = []
    for size, k, s, p in zip(reversed(x.shape), *(reversed(t) for t in (kernel, stride, padding))):
        pads += [p, p + (_behind(size, k, s, p) if settings.get("ceil_mode") else 0)]
    means = function(functional.pad(x, pads), kernel, stride)
    return means * (math.prod(kernel) / divisor)


def _each(value: Any, count: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _behind(size: int, kernel: int, stride: int, padding: int) -> int:
    """What the last window of `ceil_mode` reaches over; it begins in the image or before it."""
    windows = (size + 2 * padding - kernel + stride - 1) // stride + 1
    if (windows - 1) * stride >= size + padding:
        windows -= 1
    return max((windows - 1) * stride + kernel - size - 2 * padding, 0)
