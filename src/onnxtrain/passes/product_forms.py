"""Convolutions, products with vectors and powers in other forms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from ..autodiff.registry import is_rule
from ..autodiff.rules import linear
from ..graph import OpBuilder, Tensor
from ..graph.nodes import scalar
from .batch_as_depth import BatchAsDepth, has_small_maps
from .conv_transpose import Mirrored, as_product, is_few_elements, is_mirrored
from .few_pixels import FewPixels, gives_few_pixels
from .forms import Written, composite, operand
from .window_columns import WindowColumns, has_many_weights

MOST_EXACT = 2**24
"""The largest integer up to which single precision has all of them."""


def conv(op: OpBuilder, node: ir.Node) -> Written:
    """A product over the windows of all images, laid out here or by onnxruntime."""
    form = next(form for applies, form in CONVOLUTIONS if applies(node, ()))(op, node)
    return Written(form.result, lambda nodes: composite(nodes, form.gradient))


CONVOLUTIONS: tuple[
    tuple[
        Callable[[ir.Node, Collection[str]], bool],
        Callable[[OpBuilder, ir.Node], WindowColumns | FewPixels | BatchAsDepth],
    ],
    ...,
] = (
    (has_many_weights, WindowColumns),
    (gives_few_pixels, FewPixels),
    (has_small_maps, BatchAsDepth),
)
"""Forms of a trained convolution; the first that applies is taken."""


def is_small_conv(node: ir.Node, named: Collection[str]) -> bool:
    """Whether one of the forms of a convolution applies."""
    return any(applies(node, named) for applies, _ in CONVOLUTIONS)


def conv_transpose(op: OpBuilder, node: ir.Node) -> Written:
    """A product of all elements with all, or a Conv with the kernel turned around."""
    if is_few_elements(node, ()):
        return Written(as_product(op, node))
    form = Mirrored(op, node)
    return Written(form.result, lambda nodes: composite(nodes, form.gradient))


def is_fast_transpose(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a transposed convolution is of few elements, or can be turned around."""
    return is_few_elements(node, named) or is_mirrored(node, named)


def times_vector(op: OpBuilder, node: ir.Node) -> Written:
    """A product with a vector as one with a matrix of one column, or of one row where both are.

    onnxruntime takes a product for each row of the left operand otherwise: a million numbers take
    1.4 ms instead of 0.07, and those of two vectors 1.6 instead of 0.1.
    """
    a, b = (op.tensor(value) for value in node.inputs if value is not None)
    if a.rank == 1:
        single = op.Gemm(op.Unsqueeze(a, [0]), op.Unsqueeze(b, [0]), transB=1)
        y = op.Squeeze(single, [0, 1])
    else:
        y = op.Squeeze(op.MatMul(a, op.Unsqueeze(b, [1])), [-1])

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        da, db = linear.of_vectors(op, dy, op.tensor(a.value), op.tensor(b.value))
        return [(a.value, da), (b.value, db)]

    return Written(y, lambda nodes: composite(nodes, gradient))


def is_with_vector(node: ir.Node, named: Collection[str]) -> bool:
    """Whether the right operand of a product surely is a vector."""
    right = node.inputs[1].shape if node.inputs[1] is not None else None
    left = node.inputs[0].shape if node.inputs[0] is not None else None
    is_known = left is not None and right is not None and len(right) == 1
    return is_known and is_rule(linear.matmul, "MatMul")


def power(op: OpBuilder, node: ir.Node) -> Written:
    """A power whose exponent is an integer, with a float that is equal.

    onnxruntime computes it in double precision if the exponent is an integer: 65,536 numbers to the
    sixth take 0.70 ms instead of 0.39.
    """
    x, exponent = operand(op, node), scalar(node.inputs[1])
    assert exponent is not None
    return Written(op.Pow(x, op.like(exponent, x)))


def has_integer(node: ir.Node, _: Collection[str]) -> bool:
    """Whether the exponent of a power is an integer that single precision has."""
    exponent, number = node.inputs[1], scalar(node.inputs[1])
    is_integer = exponent is not None and exponent.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return is_integer and number is not None and abs(number) <= MOST_EXACT
