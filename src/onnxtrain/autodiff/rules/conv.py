"""Convolutions: Conv and ConvTranspose, 1-D to 3-D, each the transpose of the other.

With P the image cut into windows, Conv is ``y = W·P(x)``. So ``dW = dy·P(x)ᵀ``, and
``dx = Pᵀ(Wᵀ·dy)``, which is ConvTranspose. ConvTranspose is the same with x and y swapped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...graph import OpBuilder, Tensor
from ...operators import blocked_convolution
from ..registry import gradient
from ._index import Size, dim, vector
from .conv_weight import signal_rows, weight_gradient
from .windows import Axis, at_least, axes_of, kernel_of, pad_image, quotient

FOLD_WINDOWS = 16
"""Up to this many windows per image, one product over the whole batch beats ConvTranspose."""

FLIP_WINDOWS = 8
"""From this many windows per channel of dy on, in the whole batch, turning the kernel around costs
less than a Conv, which lays out windows on all threads, saves against ConvTranspose, which adds
them up on one."""

IMAGE_AXES, EVEN = 2, 4
"""A Conv of images with such multiples of channels is carried out in onnxruntime's blocked layout
(`passes/blocked.py`), which ConvTranspose does not have."""

OPEN_BATCH = 4
"""How many images are expected where their number is open."""


@gradient("Conv")
def conv(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    kernel = kernel_of(kernel_shape, w)
    axes = axes_of(op, x, y, kernel, strides, dilations, pads, auto_pad)
    dx = input_gradient(op, dy, w, axes, group)
    return dx, weight_gradient(op, x, dy, w, axes, group), bias_gradient(op, dy, b, len(axes))


@gradient("ConvTranspose")
def conv_transpose(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    kernel = kernel_of(kernel_shape, w)
    extra = list(output_padding) or [0] * len(kernel)
    if output_shape or auto_pad.startswith("SAME"):
        bare = axes_of(op, y, x, kernel, strides, dilations)
        axes = [_cropped(op, a, e, auto_pad) for a, e in zip(bare, extra)]
        exact = False
    else:
        before, behind = list(pads[: len(kernel)]), list(pads[len(kernel) :]) or [0] * len(kernel)
        unused = [e - p for e, p in zip(extra, behind)]  # output_padding takes from the padding
        needed = [max(-u, 0) for u in unused]
        around = [*(before or [0] * len(kernel)), *needed]
        axes = axes_of(op, y, x, kernel, strides, dilations, around, auto_pad)
        exact = all(u < a.stride for u, a in zip(unused, axes))
    dx = _over_windows(op, dy, w, axes, group, exact=exact)
    return dx, weight_gradient(op, dy, x, w, axes, group), bias_gradient(op, dy, b, len(axes))


def _cropped(op: OpBuilder, axis: Axis, extra: int, auto_pad: str) -> Axis:
    """What ConvTranspose cuts off when its output's size is given: half of it on each side."""
    full: Size = (axis.windows - 1) * axis.stride + (axis.span + extra)
    total = at_least(op, full - axis.image, 0)
    half = quotient(op, total, 2)
    begin = half if auto_pad == "SAME_UPPER" else total - half
    end = at_least(op, full - extra - begin - axis.image, 0)
    return Axis(axis.kernel, axis.stride, axis.dilation, begin, end, axis.image, axis.windows)


def _over_windows(
    op: OpBuilder, dy: Tensor, w: Tensor, axes: Sequence[Axis], group: int, *, exact: bool
) -> Tensor:
    """Conv over the windows of `dy`; `exact` when there are surely no more than x has elements."""
    if all(isinstance(a.begin, int) and isinstance(a.end, int) for a in axes):
        around = [*(a.begin for a in axes), *(a.end for a in axes)]
        dx = op.Conv(dy, w, None, **_settings(axes, group), pads=around)
    else:
        dx = op.Conv(pad_image(op, dy, axes, 2), w, None, **_settings(axes, group))
    if exact:
        return dx
    return op.Slice(dx, [0] * len(axes), vector(op, *[a.windows for a in axes]), _spatial(axes))


def bias_gradient(op: OpBuilder, dy: Tensor, b: Tensor | None, spatial: int) -> Tensor | None:
    """Sum over the batch and all pixels; None without a bias."""
    if b is None:
        return None
    # Pixels first, then the batch: onnxruntime is faster than with both at once.
    return op.ReduceSum(op.ReduceSum(dy, list(range(2, spatial + 2)), keepdims=0), [0], keepdims=0)


# --- the input's gradient ----------------------------------------------------------------------


def input_gradient(
    op: OpBuilder, dy: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """``Pᵀ(Wᵀ·dy)``, in the form that onnxruntime runs fastest for these sizes."""
    counts = [a.windows for a in axes if isinstance(a.windows, int)]
    # Images only: onnxruntime's Col2Im is wrong for dilated windows in one or three dimensions.
    few = len(counts) == len(axes) == 2 and math.prod(counts) <= FOLD_WINDOWS
    if few and group == 1 and dy.dtype.name == "FLOAT" and all(a.static for a in axes):
        return _folded(op, dy, w, axes)
    points = all(a.kernel == 1 for a in axes)
    if (points or group > 1 or _turning_pays(dy, w, axes)) and all(_mirrors(a) for a in axes):
        return flipped(op, dy, w, axes, group)
    return _transposed(op, dy, w, axes, group)


def _turning_pays(dy: Tensor, w: Tensor, axes: Sequence[Axis]) -> bool:
    """Whether a Conv with the kernel turned around is faster than ConvTranspose.

    onnxruntime lays out the windows of a Conv on all threads if there are at least as many of them
    as the Conv gives channels.
    """
    channels_out, channels_in, images = w.dim(0), w.dim(1), dy.dim(0)
    if not isinstance(channels_out, int) or not isinstance(channels_in, int):
        return False
    if len(axes) == IMAGE_AXES and channels_out % EVEN == channels_in % EVEN == 0:
        return True
    windows = [a.windows for a in axes if isinstance(a.windows, int)]
    if len(windows) != len(axes) or channels_out > 2 * channels_in:
        return False
    count = math.prod(windows)
    batch = images if isinstance(images, int) else OPEN_BATCH
    return count >= channels_in and batch * count >= FLIP_WINDOWS * channels_out


def _mirrors(axis: Axis) -> bool:
    """Whether the transpose along this axis is again a Conv with padding."""
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int)):
        return False
    return axis.stride == 1 and max(axis.begin, axis.end) < axis.span


def _folded(op: OpBuilder, dy: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Few windows: one product for the whole batch, then the windows are added up."""
    rows = signal_rows(op, dy, axes)
    return folded(op, op.Gemm(op.Reshape(w, [0, -1]), rows, transA=1), axes)


def folded(op: OpBuilder, cells: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Windows (C·kernel, N·windows) of images, all sizes known, added up to (N, C, …).

    Whole images of windows change places. With the windows in front, (N·windows, C·kernel), single
    numbers would, which onnxruntime's threads write into each other's cache lines: sixteen images
    of 256 channels on 4×4 take 0.2 to 0.5 instead of 0.9 to 1.7 ms on two threads.
    """
    count = math.prod(a.windows for a in axes if isinstance(a.windows, int))
    per_image = op.transpose(op.Reshape(cells, [0, -1, count]), 1, 0, 2)
    sizes = vector(op, *[a.image for a in axes])
    return op.Col2Im(per_image, sizes, [a.kernel for a in axes], **_geometry(axes))


def flipped(
    op: OpBuilder,
    dy: Tensor,
    w: Tensor,
    axes: Sequence[Axis],
    group: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Stride 1: Conv with the kernel turned around and its channels swapped."""
    kernel, spatial = [a.kernel for a in axes], len(axes)
    rows, width = quotient(op, dim(op, w, 0), group), dim(op, w, 1)
    around = [a.span - 1 - a.begin for a in axes] + [a.span - 1 - a.end for a in axes]
    if group == 1 and any(k > 1 for k in kernel):
        turned = _turned(op, w, kernel)
        return _marked(op.Conv(dy, turned, bias, **_settings(axes, group), pads=around), w, group)
    swapped = w
    if any(k > 1 for k in kernel):
        axes_turned = [i + 2 for i, k in enumerate(kernel) if k > 1]
        ones, lowest = [-1] * len(axes_turned), [-(2**63)] * len(axes_turned)
        swapped = op.Slice(w, ones, lowest, axes_turned, ones)
    if rows == width == 1:  # one channel each: nothing to swap
        pass
    elif group == 1:
        swapped = op.transpose(swapped, 1, 0, *range(2, spatial + 2))
    else:
        split = op.Reshape(swapped, vector(op, group, -1, width, *kernel))
        swapped = op.transpose(split, 0, 2, 1, *range(3, spatial + 3))
        swapped = op.Reshape(swapped, vector(op, -1, rows, *kernel))
    return _marked(op.Conv(dy, swapped, bias, **_settings(axes, group), pads=around), w, group)


def _marked(convolved: Tensor, w: Tensor, group: int) -> Tensor:
    """The result of a Conv with weights whose channels are swapped, marked for `passes/blocked`.

    The shape of weights that were turned around step by step is not known any more.
    """
    node, sizes = convolved.value.producer(), [s for s in w.shape or () if isinstance(s, int)]
    is_image = len(sizes) == len(w.shape or ()) == 4 and w.dtype.name == "FLOAT"
    if node is not None and is_image and math.prod(sizes[2:]) > 1 and w.const is None:
        filters, channels, *kernel = sizes
        node.doc_string = blocked_convolution([channels * group, filters // group, *kernel], group)
    return convolved


def _turned(op: OpBuilder, w: Tensor, kernel: Sequence[int]) -> Tensor:
    """A weight (M, C, *kernel) as (C, M, *kernel), each kernel from its end to its beginning.

    Step by step, with the kernel's elements in front where they are turned: onnxruntime copies long
    runs then, and 256 × 256 kernels of 3×3 take 0.4 ms instead of 1.8.
    """
    flat = op.Reshape(w, vector(op, 0, 0, math.prod(kernel)))
    planes = op.Slice(op.transpose(flat, 2, 0, 1), [-1], [-(2**63)], [0], [-1])
    swapped = op.transpose(op.transpose(planes, 0, 2, 1), 1, 2, 0)
    return op.Reshape(swapped, vector(op, 0, 0, *kernel))


def _transposed(op: OpBuilder, dy: Tensor, w: Tensor, axes: Sequence[Axis], group: int) -> Tensor:
    """ConvTranspose; where the image's size is known at run time only, too large and then cut."""
    fixed = all(isinstance(a.begin, int) and isinstance(a.end, int) for a in axes)
    around = [*(a.begin for a in axes), *(a.end for a in axes)] if fixed else None
    room = [_room(a) for a in axes]
    extra = [a.stride - 1 if r is None else r for a, r in zip(axes, room)]
    full = op.ConvTranspose(
        dy, w, None, **_settings(axes, group), pads=around,
        output_padding=extra if any(extra) else None,
    )  # fmt: skip
    if fixed and all(r is not None for r in room):
        return full
    starts: list[Size] = [0] * len(axes) if fixed else [a.begin for a in axes]
    ends = [start + a.image for a, start in zip(axes, starts)]
    return op.Slice(full, vector(op, *starts), vector(op, *ends), _spatial(axes))


def _room(axis: Axis) -> int | None:
    """Elements behind the last window that no window covers; None when not known yet."""
    if axis.stride == 1 and isinstance(axis.begin, int):
        return 0
    if not axis.static:
        return None
    room = axis.image + axis.begin + axis.end - (axis.windows - 1) * axis.stride - axis.span
    return room if isinstance(room, int) else None


def _settings(axes: Sequence[Axis], group: int) -> dict[str, Any]:
    return {
        "kernel_shape": [a.kernel for a in axes],
        "strides": [a.stride for a in axes],
        "dilations": [a.dilation for a in axes],
        "group": group,
    }


def _geometry(axes: Sequence[Axis]) -> dict[str, Any]:
    return {
        "strides": [a.stride for a in axes],
        "dilations": [a.dilation for a in axes],
        "pads": [*(a.begin for a in axes), *(a.end for a in axes)],
    }


def _spatial(axes: Sequence[Axis]) -> list[int]:
    return list(range(2, len(axes) + 2))
