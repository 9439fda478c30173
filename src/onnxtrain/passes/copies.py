"""Large outputs that are copies of another value are written by all threads.

Parameters whose gradients are the same value (150 vectors of which one element each is read, say)
have outputs that are copies. onnxruntime copies with one thread, and writing to memory that is in
no cache is what two threads do nearly twice as fast. Its element-wise operators use all threads, so
a copy is a product with one: with a one that is computed, because it would see through a constant.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ..graph.edit import remove_nodes, replace_value
from ..graph.nodes import constant, insert
from ..graph.tensor import dims_of

LARGE = 65_536
"""Elements from which on it pays to share the work."""


def copies_by_all_threads(model: ir.Model) -> ir.Model:
    """Rewrite the Identity nodes behind large outputs of the graph."""
    ones: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        source = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        if source is None or not node.outputs[0].is_graph_output() or _size(source) < LARGE:
            continue
        if source not in ones:
            ones[source] = _one(node, source)
        product = insert(node, "Mul", [source, ones[source]], "copy")
        replace_value(model.graph, node.outputs[0], product)
        remove_nodes(model.graph, [node])
    return model


def _size(value: ir.Value) -> int:
    """Number of elements of a float32 value, 0 if it is not known or another type."""
    dims = dims_of(value)
    if dims is None or value.dtype != ir.DataType.FLOAT:
        return 0
    return math.prod(d if isinstance(d, int) else 0 for d in dims)


def _one(node: ir.Node, source: ir.Value) -> ir.Value:
    """The number of elements divided by itself."""
    size = np.array(_size(source), np.float32)
    count = insert(node, "Size", [source], "size")
    count.type, count.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    number = insert(node, "Cast", [count], "number", to=ir.DataType.FLOAT)
    one = insert(node, "Div", [number, constant(node, size, "count")], "one")
    number.shape = one.shape = ir.Shape([])
    return one
