"""Transposed convolutions of volumes, and of maps of a few elements, in faster forms.

With stride 1 it is a convolution with its kernel turned around.

onnxruntime's ConvTranspose multiplies image by image and adds the windows of the result up, one by
one; a Conv lays the windows of its input out. One thread, ms, ConvTranspose and this: volumes of 4
channels to 8, 5³ to 7³, 1,213 of them 49.9 and 23.9; 16 to 32, 16³, eight of them 16.4 and 7.1; 8
to 8, 8³, 64 of them 5.9 and 3.2; but 32 to 16, 16³ 9.5 and 10.6. Of images it is the other way
around but for those with more channels in the result (0.93 to 2.45 and 0.49 to 1.38), so they stay.

On a map of a few elements it is a product with all weights at their places and zeros elsewhere, for
all images at once, of which onnxruntime multiplies each by itself: 10,922 signals of 4 channels to
8 and 5 to 7 elements take 0.3 instead of 3.0 ms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..autodiff.registry import is_rule
from ..autodiff.rules import conv as rules
from ..autodiff.rules.windows import Axis, kernel_of
from ..autodiff.walk import attributes_of
from ..graph import OpBuilder, Tensor
from ..graph.tensor import Dim, dims_of
from .few_pixels import operands_of

VOLUME = 5
"""Axes of their tensors."""
MOST_ZEROS = 4
"""How many times as many products there may be with zeros as without: counted, not measured."""
MANY_IMAGES = 64
MOST_PLACES = 4
"""Weights and zeros, for each image: they are laid out anew in each step."""


def is_mirrored(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a ConvTranspose is faster as a Conv; all but the number of images is known."""
    said, w = node.attributes, node.inputs[1]
    x, y = (None if v is None else dims_of(v) for v in (node.inputs[0], node.outputs[0]))
    weights = None if w is None else dims_of(w)
    if x is None or y is None or weights is None or not len(x) == len(y) == len(weights):
        return False
    count = len(weights) - 2
    is_plain = (
        said.get_int("group", 1) == 1
        and set(said.get_ints("strides", [1] * count)) == {1}
        and not any(said.get_ints("output_padding", ()))
        and not said.get_ints("output_shape", ())
        and said.get_string("auto_pad", "NOTSET") in ("", "NOTSET")
        and is_rule(rules.conv_transpose, "ConvTranspose")
    )
    sizes = [d for d in (*x[2:], *y[2:], *weights) if isinstance(d, int) and d > 0]
    if not is_plain or len(sizes) != 3 * count + 2 or sizes[2 * count] > sizes[2 * count + 1]:
        return False
    kernel, dilations = sizes[2 * count + 2 :], said.get_ints("dilations", [1] * count)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if any(pad >= span for pad, span in zip(said.get_ints("pads", ()), [*spans, *spans])):
        return False
    return len(x) == VOLUME


class Mirrored:
    """A ConvTranspose as a Conv.

    Args:
        op: builder of the forward nodes.
        node: the ConvTranspose.
    """

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        x, w, bias = operands_of(op, node)
        self._operands = [None if t is None else t.value for t in (x, w, bias)]
        self._attributes = attributes_of(node, None)
        kernel = kernel_of(self._attributes.get("kernel_shape", ()), w)
        count = len(kernel)
        dilations = self._attributes.get("dilations", [1] * count)
        pads = self._attributes.get("pads", [0] * 2 * count)
        axes = [
            Axis(k, 1, d, begin, end, 0, 0)
            for k, d, begin, end in zip(kernel, dilations, pads[:count], pads[count:])
        ]
        self.result = rules.flipped(op, x, w, axes, 1, bias)

    def gradient(self, op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor | None]]:
        """Of image, weights and bias: those of the ConvTranspose."""
        y, operands = op.tensor(self.result.value), self._operands
        tensors = [None if value is None else op.tensor(value) for value in operands]
        gradients = rules.conv_transpose(op, dy, y, *tensors, **self._attributes)
        return [(v, d) for v, d in zip(operands, gradients) if v is not None]


def is_few_elements(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a ConvTranspose is faster as a product of all elements with all; sizes are known."""
    said, w = node.attributes, node.inputs[1]
    x, y, weights = (
        None if v is None else dims_of(v) for v in (node.inputs[0], node.outputs[0], w)
    )
    sizes = [d for d in (*(x or ()), *(y or ()), *(weights or ())) if isinstance(d, int) and d > 0]
    if x is None or y is None or weights is None or len(sizes) != 3 * len(weights):
        return False
    is_plain = (
        said.get_int("group", 1) == 1
        and not said.get_ints("output_shape", ())
        and said.get_string("auto_pad", "NOTSET") in ("", "NOTSET")
        and is_rule(rules.conv_transpose, "ConvTranspose")
    )
    count = len(weights)
    before, after, kernel = (math.prod(sizes[i * count + 2 : (i + 1) * count]) for i in range(3))
    places = sizes[1] * before * sizes[count + 1] * after
    pays = after <= MOST_ZEROS * kernel and places <= MOST_PLACES * sizes[0]
    return is_plain and sizes[0] >= MANY_IMAGES and pays


def as_product(op: OpBuilder, node: ir.Node) -> Tensor:
    """All channels and elements to all channels and elements."""
    x, w, bias = operands_of(op, node)
    before, after = (dims_of(v) or () for v in (x.value, node.outputs[0]))
    attributes, (channels, filters) = attributes_of(node, None), (w.dim(0), w.dim(1))
    kernel = kernel_of(attributes.get("kernel_shape", ()), w)
    places = _places(attributes, before[2:], after[2:], kernel)
    flat = op.Reshape(w, [channels, filters, -1])
    with_zero = op.Pad(flat, [0, 1], None, op.const([2]))
    laid_out = op.transpose(op.Gather(with_zero, op.const(places), axis=2), 0, 2, 1, 3)
    matrix = op.Reshape(laid_out, [_product(before[1:]), _product(after[1:])])
    rows = op.MatMul(op.Reshape(x, [-1, _product(before[1:])]), matrix)
    y = op.Reshape(rows, [-1, *after[1:]])
    return y if bias is None else y + op.Reshape(bias, [filters, *[1] * len(kernel)])


def _places(
    attributes: Mapping[str, Any], before: Sequence[Dim], after: Sequence[Dim], kernel: list[int]
) -> npt.NDArray[np.int64]:
    """Which place of the kernel leads from an element to an element; the one behind for none."""
    count, behind = len(kernel), math.prod(kernel)
    strides, dilations = (attributes.get(n) or [1] * count for n in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * count
    table, outside = np.zeros((1, 1), np.int64), np.zeros((1, 1), bool)
    for old, new, k, s, d, pad in zip(before, after, kernel, strides, dilations, pads):
        assert isinstance(old, int)
        assert isinstance(new, int)
        steps = np.arange(new)[None] + pad - s * np.arange(old)[:, None]
        place, rest = np.divmod(steps, d)
        off = (rest != 0) | (place < 0) | (place >= k)
        table = np.kron(table, np.ones_like(place)) * k + np.tile(place, table.shape)
        outside = np.kron(outside, np.ones_like(off)) | np.tile(off, outside.shape)
    return np.where(outside, behind, table).astype(np.int64)


def _product(sizes: Iterable[Dim]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))
