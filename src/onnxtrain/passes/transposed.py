"""Marks products and the transpositions before them, for sessions to make one operation of both.

onnxruntime would do the same by itself, and have all shapes inferred again for it. Whoever makes a
session (`runtime/session/products.py`) finds the marks in the bytes of the model. A mark is a
node's documentation: it goes where the node goes, be it into another order, half or piece.
"""

from __future__ import annotations

import onnx_ir as ir

from ..operators import TRANSPOSED


def mark_transposed(model: ir.Model) -> ir.Model:
    """Mark every Transpose of the last two axes that only products read, and these products."""
    for node in model.graph:
        products = _products(node, model.graph)
        for marked in [node, *products] if products else []:
            marked.doc_string = TRANSPOSED
    return model


def is_left_to_onnxruntime(model: ir.Model) -> bool:
    """Whether a product without a mark reads what onnxruntime may put together with it."""
    return any(
        _may_be_fused(source)
        for node in model.graph.all_nodes()
        if node.op_type in ("MatMul", "FusedMatMul")
        for source in (v.producer() for v in node.inputs if v is not None)
        if source is not None and source.doc_string != TRANSPOSED
    )


def _may_be_fused(node: ir.Node) -> bool:
    """Whether a node swaps the last two axes, or moves the first one behind the others."""
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", ()))
        return not order or _swaps_last_two(node) or order[0] == 1
    return node.op_type == "Cast"


def _products(node: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    """The readers of a Transpose if they are all products that can swap the axes themselves."""
    if node.op_type != "Transpose" or node.domain or not _swaps_last_two(node):
        return []
    output = node.outputs[0]
    if output.dtype != ir.DataType.FLOAT or output.is_graph_output() or not output.uses():
        return []
    readers = [user for user, _ in output.uses()]
    fits = all(
        reader.op_type == "MatMul" and not reader.domain and reader.graph is graph
        and all(v is not None and _is_matrix(v) for v in reader.inputs)
        for reader in readers
    )  # fmt: skip
    return readers if fits else []


def _is_matrix(value: ir.Value) -> bool:
    """Whether a value has two axes or more, as far as is known."""
    producer = value.producer()
    if value.shape is None and producer is not None and producer.op_type == "Transpose":
        return _swaps_last_two(producer)
    return value.shape is not None and value.shape.rank() >= 2


def _swaps_last_two(node: ir.Node) -> bool:
    order = list(node.attributes.get_ints("perm", ()))
    last = len(order) - 1
    return last >= 1 and order == [*range(last - 1), last, last - 1]
