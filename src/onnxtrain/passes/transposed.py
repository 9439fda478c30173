"""Marks products with the transpositions and factors around them, for sessions to make one node.

onnxruntime would do the same by itself, and have all shapes inferred again for it. Whoever makes a
session (`runtime/session/products.py`) finds the marks in the bytes of the model. A mark is a
node's documentation: it goes where the node goes, be it into another order, half or piece.
"""

from __future__ import annotations

import onnx_ir as ir

from ..operators import BLOCKED, TRANSPOSED


def mark_transposed(model: ir.Model) -> ir.Model:
    """Mark what only products read, Transposes of the last two axes and Muls and Divs by a number.

    A Mul or a Div that alone reads a product is marked too, and so are these products. Of gradients
    the shapes are known only once they are inferred (`fusion.py`): then more can be marked.
    """
    for node in model.graph:
        group = [*_products(node, model.graph), *_scaled_product(node)]
        marked = [node, *group] if group else []
        if not any((n.doc_string or "").startswith(BLOCKED) for n in marked):
            for one in marked:
                one.doc_string = TRANSPOSED
    return model


def is_scale(node: ir.Node) -> bool:
    """Whether a node multiplies floats with a constant number, or divides them by one."""
    if node.op_type not in ("Div", "Mul") or node.domain or len(node.inputs) != 2:
        return False
    factor = node.inputs[1]
    if node.outputs[0].dtype != ir.DataType.FLOAT or factor is None or not factor.is_initializer():
        return False
    value = factor.const_value
    return value is not None and len(value.shape) == 0 and node.inputs[0] is not factor


def has_bias(node: ir.Node) -> bool:
    """Whether only an Add reads a product, and adds what may be a vector or a matrix.

    onnxruntime makes a Gemm of both, of more than two axes if it knows all sizes.
    """
    reader = only_reader(node) if node.op_type == "MatMul" else None
    if reader is None or reader.op_type != "Add":
        return False
    shapes = [None if v is None else v.shape for v in node.inputs]
    if any(s is not None and s.rank() > 2 and not s.is_static() for s in shapes):
        return False
    if shapes[1] is not None and shapes[1].rank() > 2:
        return False
    others = [v for v in reader.inputs if v is not None and v.producer() is not node]
    return any(v.shape is None or v.shape.rank() <= 2 for v in others)


def only_reader(node: ir.Node) -> ir.Node | None:
    """The node that alone reads the result of another: what onnxruntime puts together."""
    uses = node.outputs[0].uses() if node.outputs else ()
    is_alone = len(uses) == 1 and not node.outputs[0].is_graph_output()
    return next(iter(uses))[0] if is_alone else None


def _scaled_product(node: ir.Node) -> list[ir.Node]:
    """The product that a Mul or a Div by a number alone reads."""
    if not is_scale(node) or node.inputs[0] is None:
        return []
    product = node.inputs[0].producer()
    if product is None or product.graph is not node.graph or not _is_product(product):
        return []
    output = product.outputs[0]
    return [product] if len(output.uses()) == 1 and not output.is_graph_output() else []


def _is_product(node: ir.Node) -> bool:
    is_own = node.op_type == "MatMul" and not node.domain and not has_bias(node)
    return is_own and all(v is not None and _is_matrix(v) for v in node.inputs)


def is_left_to_onnxruntime(model: ir.Model) -> bool:
    """Whether a product without a mark reads what onnxruntime may put together with it."""
    return any(
        _may_be_fused(source)
        for node in model.graph.all_nodes()
        if node.op_type in ("MatMul", "FusedMatMul")
        for source in (v.producer() for v in node.inputs if v is not None)
        if source is not None and not (source.doc_string or "").startswith(TRANSPOSED)
    )


def _may_be_fused(node: ir.Node) -> bool:
    """Whether a node swaps the last two axes, or moves the first one behind the others."""
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", ()))
        return not order or _swaps_last_two(node) or order[0] == 1
    return node.op_type == "Cast"


def _products(node: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    """The readers of a node if they are all products that can do its work themselves."""
    is_turned = node.op_type == "Transpose" and not node.domain and _swaps_last_two(node)
    if not is_turned and not is_scale(node):
        return []
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if not is_turned and source is not None and _is_product(source) and not _scaled_product(node):
        return []  # others read the product as it is
    output = node.outputs[0]
    if output.dtype != ir.DataType.FLOAT or output.is_graph_output() or not output.uses():
        return []
    readers = [user for user, _ in output.uses()]
    fits = all(reader.graph is graph and _is_product(reader) for reader in readers)
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
