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

ELEMENTS = 8192
"""A tensor from which on a kernel is worth being loaded: with fewer elements the operators that it
stands for take some ten microseconds."""
SYMBOLIC = 64
"""What a dimension of unknown size counts for."""


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
        case "ScatterND" | "ScatterElements":  # the gradients of Gather and of pools
            return _is_zeros(node.inputs[0])
        case "MaxPool":  # without indices onnxruntime's kernel is fast
            return len(node.outputs) > 1
        case "MaxUnpool":
            return len(node.inputs) == 2
        case "CumSum":
            return True
    return False


def _is_zeros(value: ir.Value | None) -> bool:
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type == "ConstantOfShape"


def _is_large(node: ir.Node) -> bool:
    """Whether a float operand or result has enough elements."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return any(v.dtype in (ir.DataType.FLOAT, None) and _elements(v) >= ELEMENTS for v in values)


def _elements(value: ir.Value) -> int:
    """How many there are, as far as the graph says."""
    if value.shape is not None:
        return math.prod(d if isinstance(d, int) else SYMBOLIC for d in value.shape)
    maker = value.producer()
    shape = maker.inputs[0] if maker is not None and _is_zeros(value) else None
    sizes = None if shape is None else known(shape)
    return 0 if sizes is None else math.prod(int(size) for size in sizes.numpy().ravel())
