"""A trained convolution that gives few pixels is one matrix product for the whole batch.

onnxruntime's Conv multiplies image by image, and a product with four columns (maps of 2×2) runs at
a quarter of the rate that one with sixty-four has. So the windows of all images are laid out as
rows of one matrix, channels first, as the weights have them: nothing is done to the weights, which
are many times larger here than the images. The weight's gradient is a product with the same rows.

Both gradients included, a Conv of 512 channels on 2×2 took 1.5 times as long with one image, 1.7
with sixteen and 1.8 with sixty-four, one of 256 channels on 3×3 took 1.3 times, and the smallest
1.1 times as long. With sixteen pixels it is 1.0 to 1.5, and nine times the image would be kept for
the backward pass.

The image's gradient is the Conv's own, image by image, or where weights and images are tiny one
product, too: with a matrix that has the weights in the place of each window. 65,536 images of four
channels and three pixels took 48 ms by ConvTranspose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from ..autodiff.registry import is_rule
from ..autodiff.rules import conv as rules
from ..autodiff.rules.windows import Axis, at_offset, axes_of, kernel_of, offsets_of, pad_image
from ..autodiff.walk import attributes_of
from ..graph import OpBuilder, Tensor
from ..graph.nodes import known
from ..graph.tensor import Dim, dims_of

FEW_PIXELS = 9
"""Of one output image: up to so many the product over the batch is faster, whatever the sizes."""

SMALL_MATRIX = 2**14
"""Elements of the matrix from result to image: up to so many the product takes an image no longer
than the microsecond that a convolution takes to begin."""

MOST_OFFSETS = 27
"""Positions in the kernel, each of which is a node."""


def sizes_if_trained(node: ir.Node) -> list[tuple[Dim, ...] | None]:
    """Dimensions of a Conv's image, weights and result; None where they are not known.

    None of all three where its weights are constant, where it has groups, or where somebody has
    registered another gradient.
    """
    weights = node.inputs[1]
    is_trained = weights is not None and known(weights) is None
    if (
        not is_trained
        or node.attributes.get_int("group", 1) != 1
        or not is_rule(rules.conv, "Conv")
    ):
        return [None, None, None]
    values = (node.inputs[0], weights, node.outputs[0])
    return [None if value is None else dims_of(value) for value in values]


def operands_of(op: OpBuilder, node: ir.Node) -> tuple[Tensor, Tensor, Tensor | None]:
    """Image, weights and bias of a Conv."""
    x, w, bias = (None if v is None else op.tensor(v) for v in (*node.inputs, None)[:3])
    assert x is not None
    assert w is not None
    return x, w, bias


def gives_few_pixels(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Conv is faster as a product; constant weights are for `small_maps`."""
    shapes = sizes_if_trained(node)
    if any(shape is None for shape in shapes):
        return False
    # Beside the number of rows all sizes have to be known.
    x, w, y = ([d for d in (shape or ())[1:] if isinstance(d, int)] for shape in shapes)
    rank = len(shapes[1] or ()) - 2
    if not len(x) == len(w) == len(y) == rank + 1 or not isinstance((shapes[1] or ())[0], int):
        return False
    few = 0 < math.prod(y[-rank:]) <= FEW_PIXELS and math.prod(w[1:]) <= MOST_OFFSETS
    return few and 0 not in (*x, *w)


class FewPixels:
    """A Conv as a product over the windows of all images.

    Args:
        op: builder of the forward nodes.
        node: the Conv.
    """

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        x, w, bias = operands_of(op, node)
        self._x, self._w, self._bias = x.value, w.value, None if bias is None else bias.value
        self._axes = axes_of_conv(op, node, x, w)
        self._rows = _window_rows(op, x, w, self._axes)
        product = op.Gemm(self._rows, flat_weights(op, w), bias, transB=1)
        windows = [axis.windows for axis in self._axes]
        pixels = op.Reshape(product, op.const([-1, *windows, w.dim(0)]))
        self.result = op.transpose(pixels, 0, len(windows) + 1, *range(1, len(windows) + 1))

    def gradient(self, op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor | None]]:
        """Of image, weights and bias, from that of the result."""
        w, spatial = op.tensor(self._w), range(2, len(self._axes) + 2)
        signal = op.Reshape(op.transpose(dy, 0, *spatial, 1), op.const([-1, w.dim(0)]))
        dw = op.Gemm(signal, op.tensor(self._rows.value), transA=1)
        gradients: list[tuple[ir.Value, Tensor | None]] = [
            (self._x, self._of_image(op, dy, signal, w)),
            (self._w, op.Reshape(dw, op.const(list(w.shape or ())))),
        ]
        if self._bias is not None:
            gradients.append((self._bias, op.ReduceSum(signal, [0], keepdims=0)))
        return gradients

    def _of_image(self, op: OpBuilder, dy: Tensor, signal: Tensor, w: Tensor) -> Tensor:
        """The gradient of the image."""
        places = _places_of(self._axes)
        filters, channels, *_ = (d for d in w.shape or () if isinstance(d, int))
        image = [channels, *(axis.image for axis in self._axes)]
        size = len(places) * filters * _product_of(image)
        if not places or size > SMALL_MATRIX:
            return rules.input_gradient(op, dy, w, self._axes, 1)
        rows = [op.Reshape(op.Pad(w, pads), op.const([filters, -1])) for pads in places]
        matrix = rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0)
        signals = op.Reshape(signal, op.const([-1, len(places) * filters]))
        return op.Reshape(signals @ matrix, op.const([-1, *image]))


def _places_of(axes: Sequence[Axis]) -> list[list[int]]:
    """Of each window, how weights are padded to stand in its place in the image.

    None if that is not known, or if the weights have holes.
    """
    along = list[list[tuple[int, int]]]()
    for axis in axes:
        begin, image, windows = axis.begin, axis.image, axis.windows
        sizes = (begin, image, windows)
        if axis.dilation != 1 or not all(isinstance(size, int) for size in sizes):
            return []
        assert isinstance(begin, int)
        assert isinstance(image, int)
        assert isinstance(windows, int)
        befores = [n * axis.stride - begin for n in range(windows)]
        along.append([(b, image - b - axis.kernel) for b in befores])
    return [
        [0, 0, *(before for before, _ in place), 0, 0, *(behind for _, behind in place)]
        for place in itertools.product(*along)
    ]


def _product_of(sizes: Sequence[object]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))


def axes_of_conv(op: OpBuilder, node: ir.Node, x: Tensor, w: Tensor) -> list[Axis]:
    """The geometry of a Conv."""
    attributes = attributes_of(node, None)
    geometry = {n: attributes[n] for n in ("strides", "dilations", "pads") if n in attributes}
    auto_pad = attributes.get("auto_pad", "NOTSET")
    kernel = kernel_of(attributes.get("kernel_shape", ()), w)
    y = op.tensor(node.outputs[0])
    return axes_of(op, x, y, kernel, **geometry, auto_pad=auto_pad)


def _window_rows(op: OpBuilder, x: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """All windows as rows (N·windows, C·kernel).

    Cut out with the channels last, where each position of the kernel is a copy of long runs; then
    the positions go behind the channels.
    """
    spatial = range(2, len(axes) + 2)
    padded = pad_image(op, op.transpose(x, 0, *spatial, 1), axes, 1)
    cells = [
        op.Reshape(at_offset(op, padded, axes, offset, 1), op.const([1, -1]))
        for offset in offsets_of(axes)
    ]
    stacked = cells[0] if len(cells) == 1 else op.transpose(op.Concat(*cells, axis=0), 1, 0)
    return op.Reshape(stacked, op.const([-1, _width(w)]))


def flat_weights(op: OpBuilder, w: Tensor) -> Tensor:
    """A row per filter."""
    return op.Reshape(w, op.const([w.dim(0), _width(w)]))


def _width(w: Tensor) -> int:
    """Of a window: channels times positions."""
    return math.prod(size for size in (w.shape or ())[1:] if isinstance(size, int))
