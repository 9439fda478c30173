"""Marks nodes for which a session may have a kernel of our own.

What is marked stays as it is: standard operators, in files and on devices. A session on a desktop
(`runtime/session/kernels.py`) compares marked nodes with what its kernels compute. A node in the
body of another one is not marked.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ..graph.nodes import known
from ..operators import KERNEL
from .sizes import elements_of

ELEMENTS = 8192
"""A tensor from which on a kernel is worth being loaded: as for elementwise groups (`fusion.py`),
not measured kernel by kernel."""
SHORT_COPY = 512
"""Elements of a copy up to which onnxruntime's Pad spends more time on beginning copies."""
AS_LARGE = frozenset({"GatherElements", "Mul", "Reshape", "ScatterElements"})
"""The result is about as large as the first operand: in gradients nobody has inferred shapes."""


def mark_for_kernels(model: ir.Model) -> ir.Model:
    """Mark what a kernel can compute and is large enough; marks of another time are taken away."""
    for node in model.graph:
        if node.doc_string == KERNEL:
            node.doc_string = None
        if not node.domain and not node.doc_string and _has_kernel(node) and _is_large(node):
            node.doc_string = KERNEL
    return model


def _has_kernel(node: ir.Node) -> bool:
    match node.op_type:
        case "ScatterND":  # the gradient of Gather
            return _is_zeros(node.inputs[0])
        case "ScatterElements":  # of pools, and of images that are read between their pixels
            is_known = node.inputs[1] is not None and node.inputs[1].dtype != ir.DataType.INT32
            return is_known and (_is_zeros(node.inputs[0]) or _is_last_tap(node))
        case "ReduceSum":
            return _sums_read(node)
        case "MaxPool":  # without indices onnxruntime's kernel is fast
            return len(node.outputs) > 1
        case "MaxUnpool":
            return len(node.inputs) == 2
        case "Pad":  # onnxruntime's is fast for long rows
            return _pads_short_rows(node)
        case "GridSample":  # of images, not of volumes
            image, mode = node.inputs[0], node.attributes.get_string("mode", "")
            is_image = image is not None and image.shape is not None and len(image.shape) == 4
            return is_image and mode == "nearest"
    return node.op_type == "CumSum"


def _pads_short_rows(node: ir.Node) -> bool:
    """Whether a Pad is of numbers, by constant sizes, and what it copies at once is short."""
    x, pads, named = node.inputs[0], known(node.inputs[1]), (*node.inputs, None, None)[3]
    if x is None or x.dtype != ir.DataType.FLOAT or x.shape is None or pads is None:
        return False
    axes = known(named)
    if named is not None and axes is None:
        return False
    rank, amounts = len(x.shape), [int(n) for n in pads.numpy().ravel()]
    numbers = range(rank) if axes is None else [int(a) % rank for a in axes.numpy()]
    count = len(amounts) // 2
    each = zip(numbers, amounts[:count], amounts[count:])
    last = max((axis for axis, *both in each if any(both)), default=0)
    return elements_of(x.shape[last:]) < SHORT_COPY


def _is_zeros(value: ir.Value | None) -> bool:
    maker = _maker(value)
    return maker is not None and maker.op_type == "ConstantOfShape"


def _is_last_tap(node: ir.Node) -> bool:
    """Whether a node adds to what such nodes added, from zeros on, and none adds to its result."""
    first = _maker(node.inputs[0])
    while first is not None and first.op_type == node.op_type:
        first = _maker(first.inputs[0])
    is_zero = first is not None and first.op_type == "Reshape" and _is_zeros(first.inputs[0])
    return is_zero and not any(u.op_type == node.op_type for u, _ in node.outputs[0].uses())


def _sums_read(node: ir.Node) -> bool:
    """Whether a node sums a product with what GatherElements has read."""
    factors = _maker(node.inputs[0])
    is_product = factors is not None and factors.op_type == "Mul"
    read = _maker(factors.inputs[0]) if factors is not None and is_product else None
    return read is not None and read.op_type == "GatherElements"


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_large(node: ir.Node) -> bool:
    """Whether a float operand or result has enough elements."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return any(v.dtype in (ir.DataType.FLOAT, None) and _elements(v) >= ELEMENTS for v in values)


def _elements(value: ir.Value) -> int:
    """How many there are, as far as the graph says."""
    maker = value.producer()
    while value.shape is None and maker is not None and maker.op_type in AS_LARGE:
        source = maker.inputs[0]
        if source is None:
            break
        value, maker = source, source.producer()
    if value.shape is not None:
        return elements_of(value.shape)
    sizes = known(maker.inputs[0]) if maker is not None and _is_zeros(value) else None
    return 0 if sizes is None else math.prod(int(size) for size in sizes.numpy().ravel())
