"""A trained convolution on small maps takes the whole batch for one image with one axis more.

onnxruntime multiplies image by image. Where an image has fewer pixels than there are filters, it
lays out the windows of each on one thread while the others wait, and the product has few columns.
With the channels in front, (N, C, H, W) is one image of C channels and the axes N, H and W, and a
kernel that is 1 along N does the same to it: the windows of all images are the columns of one
product, which all threads share. The two transposes take a thirtieth of what that saves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import onnx_ir as ir

from ..autodiff.rules import conv as rules
from ..autodiff.rules.conv_weight import weight_gradient
from ..autodiff.rules.windows import axes_of, kernel_of
from ..autodiff.walk import attributes_of
from ..graph import OpBuilder, Tensor
from .few_pixels import operands_of, sizes_if_trained

MOST_AXES = 2
"""A Conv has three axes at most, one of which is the batch here."""


def has_small_maps(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Conv gives fewer pixels than channels, and has more than one image."""
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    x, w, y = sizes_if_trained(node)
    if x is None or w is None or y is None or x[0] == 1 or not 1 <= len(w) - 2 <= MOST_AXES:
        return False
    filters, kernel = w[0], [d for d in w[2:] if isinstance(d, int)]
    pixels = [d for d in y[2:] if isinstance(d, int)]
    if not isinstance(filters, int) or not len(kernel) == len(pixels) == len(w) - 2:
        return False
    return math.prod(kernel) > 1 and 0 < math.prod(pixels) < filters


class BatchAsDepth:
    """A Conv over all images at once.

    Args:
        op: builder of the forward nodes.
        node: the Conv.
    """

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        x, w, bias = operands_of(op, node)
        self._x, self._w, self._bias = x.value, w.value, None if bias is None else bias.value
        self._attributes = attributes_of(node, None)
        rank = len(w.shape or ()) - 2
        geometry = self._geometry()
        pads = list(geometry["pads"]) or [0] * 2 * rank
        spatial = range(2, rank + 2)
        deep = op.Conv(
            op.Unsqueeze(op.transpose(x, 1, 0, *spatial), [0]),
            op.Unsqueeze(w, [2]),
            bias,
            kernel_shape=[1, *kernel_of(self._attributes.get("kernel_shape", ()), w)],
            strides=[1, *(geometry["strides"] or [1] * rank)],
            dilations=[1, *(geometry["dilations"] or [1] * rank)],
            pads=[0, *pads[:rank], 0, *pads[rank:]],
        )
        self.result = op.transpose(op.Squeeze(deep, [0]), 1, 0, *spatial)

    def _geometry(self) -> dict[str, list[int]]:
        return {n: self._attributes.get(n, []) for n in ("strides", "dilations", "pads")}

    def gradient(self, op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor | None]]:
        """Of image, weights and bias: those of the Conv."""
        x, w = op.tensor(self._x), op.tensor(self._w)
        kernel = kernel_of(self._attributes.get("kernel_shape", ()), w)
        geometry = self._geometry()
        sizes = (geometry["strides"], geometry["dilations"], geometry["pads"])
        axes = axes_of(op, x, op.tensor(self.result.value), kernel, *sizes)
        gradients: list[tuple[ir.Value, Tensor | None]] = [
            (self._x, rules.input_gradient(op, dy, w, axes, 1)),
            (self._w, weight_gradient(op, x, dy, w, axes, 1)),
        ]
        if self._bias is not None:
            bias = op.tensor(self._bias)
            gradients.append((self._bias, rules.bias_gradient(op, dy, bias, len(axes))))
        return gradients
