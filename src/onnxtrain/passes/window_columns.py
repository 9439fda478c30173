"""A trained convolution with many weights is three matrix products over the windows of the batch.

With P the windows of all images as columns, channels first as the weights have them, and the
channels of the images in front of the batch, (C, N, H, W), all three products of a convolution read
their operands as they lie: ``y = W·P``, ``dW = dy·Pᵀ``, and ``dx`` is ``Wᵀ·dy`` with the windows
added up. Nothing is done to the weights or to their gradient.

The windows are laid out by a Conv, too: each channel is an image of its own, with one filter per
position of the kernel, which is 1 there and 0 elsewhere. Threads share it channel by channel.

Forward and both gradients on two threads, onnxruntime 1.31.1, old ÷ new, while handing work from
thread to thread was fast (and while it was slow): 16 images of 256 channels on 4×4 1.12 (1.3), with
stride 2 from 128 on 8×8 1.17 (1.6), 4 of 512 on 7×7 1.19 (1.3), one of 256 on 4×4 1.76. On one
thread 0.89 to 1.13. On larger maps, and with fewer channels, 0.86 to 1.0: they stay a Conv.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ..autodiff.rules import conv as rules
from ..autodiff.rules.conv_weight import signal_rows
from ..autodiff.rules.windows import Axis
from ..graph import OpBuilder, Tensor
from .few_pixels import FEW_PIXELS, axes_of_conv, flat_weights, operands_of, sizes_if_trained

MOST_AXES = 2
"""A Conv has three axes at most, one of which is the batch here."""

MANY_WEIGHTS = 2**15
"""Pairs of channels from which on the products are worth while."""

MANY_POINTS = 2**18
"""The same for kernels of one pixel, whose columns are the image, on maps of any size."""

WINDOWS = range(FEW_PIXELS + 1, 65)
"""Of an image. With fewer the images are laid out faster by slices (`few_pixels`); with more
onnxruntime's Conv is as fast, and the columns would take more memory than other values do."""


def has_many_weights(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Conv has more to multiply than to lay out; all but the batch has to be known."""
    shapes = sizes_if_trained(node)
    if any(shape is None for shape in shapes):
        return False
    x, w, y = (shape or () for shape in shapes)
    sizes = [*x[1:], *w, *y[1:]]
    if not 1 <= len(w) - 2 <= MOST_AXES or not all(isinstance(d, int) and d > 0 for d in sizes):
        return False
    pairs, windows = _product(w[:2]), _product(y[2:])
    if _product(w[2:]) == 1 and windows == _product(x[2:]):
        return pairs >= MANY_POINTS and windows >= WINDOWS.start
    return pairs >= MANY_WEIGHTS and windows in WINDOWS


def _product(sizes: Sequence[object]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))


class WindowColumns:
    """A Conv as products with the windows of all images.

    Args:
        op: builder of the forward nodes.
        node: the Conv.
    """

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        x, w, bias = operands_of(op, node)
        self._x, self._w, self._bias = x.value, w.value, None if bias is None else bias.value
        self._axes = axes_of_conv(op, node, x, w)
        self._columns = _columns(op, op.transpose(x, 1, 0, *self._spatial), w, self._axes)
        weights = flat_weights(op, w)
        if bias is None:
            product = op.MatMul(weights, self._columns)
        else:
            product = op.Gemm(weights, self._columns, op.Reshape(bias, [-1, 1]))
        self.result = self._images(op, product, w.dim(0), [a.windows for a in self._axes])

    @property
    def _spatial(self) -> range:
        return range(2, len(self._axes) + 2)

    def _images(self, op: OpBuilder, rows: Tensor, channels: object, sizes: list[object]) -> Tensor:
        """(C, N·pixels) as (N, C, …)."""
        by_channel = op.Reshape(rows, op.const(np.array([channels, -1, *sizes], np.int64)))
        return op.transpose(by_channel, 1, 0, *self._spatial)

    def gradient(self, op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor | None]]:
        """Of image, weights and bias, from that of the result."""
        w, columns = op.tensor(self._w), op.tensor(self._columns.value)
        signal = signal_rows(op, dy, self._axes)
        dw = op.Gemm(signal, columns, transB=1)
        cells = op.Gemm(flat_weights(op, w), signal, transA=1)
        gradients: list[tuple[ir.Value, Tensor | None]] = [
            (self._x, self._folded(op, cells, w)),
            (self._w, op.Reshape(dw, op.const(list(w.shape or ())))),
        ]
        if self._bias is not None:
            gradients.append((self._bias, op.ReduceSum(signal, [1], keepdims=0)))
        return gradients

    def _folded(self, op: OpBuilder, cells: Tensor, w: Tensor) -> Tensor:
        """Windows (C·kernel, N·windows) added up to images (N, C, …)."""
        if _are_points(self._axes):
            return self._images(op, cells, w.dim(1), [a.image for a in self._axes])
        # onnxruntime's Col2Im is wrong for dilated windows along one axis: a line is a flat image
        flat = [Axis(1, 1, 1, 0, 0, 1, 1)] * (MOST_AXES - len(self._axes))
        images = rules.folded(op, cells, [*flat, *self._axes])
        return op.Squeeze(images, [2]) if flat else images


def _are_points(axes: Sequence[Axis]) -> bool:
    """Whether each window is a pixel of the image, in their order."""
    return all(a.trivial for a in axes)


def _columns(op: OpBuilder, image: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """All windows as columns (C·kernel, N·windows) of an image (C, N, …)."""
    kernel = [a.kernel for a in axes]
    width = _product((w.shape or ())[1:])
    if _are_points(axes):
        return op.Reshape(image, op.const([width, -1]))
    count = math.prod(kernel)
    filters = np.eye(count, dtype=np.float32).reshape(count, 1, 1, *kernel)
    cells = op.Conv(
        op.Unsqueeze(image, [1]),
        op.const(filters),
        None,
        kernel_shape=[1, *kernel],
        strides=[1, *(a.stride for a in axes)],
        dilations=[1, *(a.dilation for a in axes)],
        pads=[0, *(a.begin for a in axes), 0, *(a.end for a in axes)],
    )
    return op.Reshape(cells, op.const([width, -1]))
