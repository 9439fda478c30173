"""Pools: MaxPool, AveragePool, LpPool, their global forms, MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import line, scatter_flat, size, vector
from .axis_maps import back_along, counted, membership
from .windows import Axis, axes_of

VOLUME = 3
"""Axes of a volume."""
KERNELS = ("FLOAT", "FLOAT16")
"""Types for which onnxruntime has MaxUnpool, Resize and AveragePool on a CPU."""

# --- maximum -----------------------------------------------------------------------------------


@gradient("MaxPool", note="the first of equal elements gets the gradient")
def max_pool(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    storage_order: int = 0,
    strides: Sequence[int] = (),
) -> Any:
    if storage_order:  # the forward's indices, if any, are column-major
        settings = {
            "auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": list(dilations) or None,
            "kernel_shape": list(kernel_shape), "pads": list(pads) or None,
            "strides": list(strides) or None,
        }  # fmt: skip
        indices = op.many("MaxPool", x, outputs=2, **settings)[1]
    else:
        indices = op.output(1)
    axes = axes_of(op, x, y, kernel_shape, strides, dilations, pads, auto_pad, pool=True)
    disjoint = all(a.stride >= a.span for a in axes)
    rest = [_rest(a) for a in axes]
    if disjoint and x.dtype.name in KERNELS and all(r is not None for r in rest):
        # The kernel says only how large the result is: exactly as large as x.
        return op.MaxUnpool(dy, indices, kernel_shape=rest, strides=[a.stride for a in axes])
    return scatter_flat(op, x, indices, dy, unique=disjoint)


def _rest(axis: Axis) -> int | None:
    """What the image has from the place of the last window on; None when not known or nothing."""
    rest = axis.image - (axis.windows - 1) * axis.stride
    return rest if isinstance(rest, int) and rest > 0 else None


@gradient("MaxUnpool", stops=(1, 2))
def max_unpool(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, indices: Tensor, output_shape: Tensor | None
) -> Any:
    # As in onnxruntime and torch, an index counts elements of the output, whatever its shape.
    return op.Gather(op.Reshape(dy, [-1]), indices, axis=0)


@gradient("GlobalMaxPool", note="the first of equal elements gets the gradient")
def global_max_pool(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    flat = op.Reshape(x, [0, 0, -1])
    first = op.ArgMax(flat, axis=2, keepdims=1)
    chosen = op.Equal(line(op, size(op, x, range(2, x.rank))), first)
    return op.reshape_like(op.Where(chosen, op.Reshape(dy, [0, 0, -1]), op.like(0, x)), x)


# --- averages and norms ------------------------------------------------------------------------


@gradient("AveragePool")
def average_pool(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    axes = axes_of(op, x, y, kernel_shape, strides, dilations, pads, auto_pad, pool=True)
    padded = not all(isinstance(s, int) and s == 0 for a in axes for s in (a.begin, a.end))
    if not ceil_mode and (count_include_pad or not padded):
        return spread(op, dy, axes, 1 / math.prod(kernel_shape), ceil_mode)
    for i, axis in enumerate(axes):  # the number of elements is a product over the axes
        count = counted(op, axis, x, padding=bool(count_include_pad))
        dy = dy / op.Reshape(count, [-1, *[1] * (len(axes) - 1 - i)])
    return spread(op, dy, axes, 1.0, ceil_mode)


@gradient("GlobalAveragePool")
def global_average_pool(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    sizes = [x.dim(a) for a in range(2, x.rank)]
    known = [s for s in sizes if isinstance(s, int)]
    if len(known) == len(sizes):  # onnxruntime multiplies faster than it expands
        return op.Mul(dy, op.const(np.full((1, 1, *known), 1 / math.prod(known)), x.dtype))
    return op.Expand(dy / op.count(x, range(2, x.rank)), op.shape_of(x))


@gradient("LpPool")
def lp_pool(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int] = (),
    p: int = 2,
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    # y = (Σ|x|ᵖ)^(1/p):  dx = sign(x)·|x|ᵖ⁻¹ · Σ over windows of dy·y¹⁻ᵖ
    axes = axes_of(op, x, y, kernel_shape, strides, dilations, pads, auto_pad, pool=True)
    return _power(op, x, p) * spread(op, _by_norm(op, dy, y, p), axes, 1.0, ceil_mode)


@gradient("GlobalLpPool")
def global_lp_pool(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, p: int = 2) -> Any:
    return _power(op, x, p) * _by_norm(op, dy, y, p)


def _power(op: OpBuilder, x: Tensor, p: int) -> Tensor:
    """``sign(x)·|x|ᵖ⁻¹``."""
    if p == 1:
        return op.Sign(x)
    return x if p == 2 else x * op.Abs(x) ** float(p - 2)


def _by_norm(op: OpBuilder, dy: Tensor, y: Tensor, p: int) -> Tensor:
    """``dy·y¹⁻ᵖ``, zero where the norm is."""
    if p == 1:
        return dy
    zero = op.Equal(y, 0.0)
    safe = op.Where(zero, op.like(1, y), y)
    scaled = dy / (safe if p == 2 else safe ** float(p - 1))
    return op.Where(zero, op.like(0, y), scaled)


def spread(op: OpBuilder, t: Tensor, axes: Sequence[Axis], factor: float, ceil_mode: int) -> Tensor:
    """Give each window's value to all its elements and add up, times `factor`.

    Side by side that is enlarging, at stride 1 it is again a sum over windows, and else a product
    with one matrix per axis.
    """
    fast = t.dtype.name in KERNELS
    fits = [a.static and a.windows * a.stride == a.image for a in axes]
    if fast and all(a.tiles for a in axes) and (not ceil_mode or all(fits)):
        return _enlarged(op, _times(t, factor), axes, exact=all(fits))
    if fast and all(_slides(a) for a in axes):
        kernel = [a.kernel for a in axes]
        around = [a.span - 1 - a.begin for a in axes] + [a.span - 1 - a.end for a in axes]
        mean = op.AveragePool(t, kernel_shape=kernel, pads=around, count_include_pad=1)
        return _times(mean, factor * math.prod(kernel))
    t = _times(t, factor)
    for i, axis in enumerate(axes):
        if not axis.trivial:
            t = back_along(op, t, membership(op, axis, t), i + 2, len(axes) + 2)
    return t


def _times(t: Tensor, factor: float) -> Tensor:
    return t if factor == 1 else t * factor


def _slides(axis: Axis) -> bool:
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int)):
        return False
    return axis.stride == axis.dilation == 1 and max(axis.begin, axis.end) < axis.span


def _enlarged(op: OpBuilder, t: Tensor, axes: Sequence[Axis], *, exact: bool) -> Tensor:
    """Each element repeated over its window; zeros for a rest that no window covers."""
    if len(axes) == VOLUME and all(a.static for a in axes):
        large = _enlarged_volume(op, t, axes)
    else:
        large = _repeated(op, t, [a.stride for a in axes])
    if exact:
        return large
    behind = [a.image - a.windows * a.stride for a in axes]
    amounts = vector(op, *[0] * len(axes), *behind)
    return op.Pad(large, amounts, op.like(0, t), list(range(2, len(axes) + 2)))


def _enlarged_volume(op: OpBuilder, t: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Images first, then their repetition: for volumes Resize takes 20 times as long."""
    depth, height, width = axes
    rows, columns = height.windows * height.stride, width.windows * width.stride
    images = op.Reshape(t, [0, -1, height.windows, width.windows])
    images = _repeated(op, images, [height.stride, width.stride])
    repeated = op.Expand(op.Reshape(images, [0, -1, 1, rows * columns]), [1, 1, depth.stride, 1])
    return op.Reshape(repeated, [0, -1, depth.windows * depth.stride, rows, columns])


def _repeated(op: OpBuilder, t: Tensor, times: Sequence[int]) -> Tensor:
    """Each element so many times along each axis behind the second."""
    scales = op.const(np.array([1, 1, *times], np.float32))
    return op.Resize(
        t, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip
