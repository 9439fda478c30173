"""A product and the bias that is added to it become one Gemm.

onnxruntime would do that by itself, and have all shapes inferred again for it: up to a sixth of the
time that a session takes. As it does, a product of more than two axes is written as one of matrices
between two Reshapes, where all of its sizes are known, and a Gemm transposes its operands itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from ..graph.edit import become, remove_nodes
from ..graph.nodes import constant, insert, permutation, producer_of
from ..graph.tensor import dims_of
from ..operators import BIASED
from .transposed import only_reader

TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
WAY = ("Reshape", "Transpose")
"""What may lie between a weight of few bits and its product."""


class Layer(NamedTuple):
    """A product, the sum that alone reads it, and what is added."""

    product: ir.Node
    total: ir.Node
    x: ir.Value
    weight: ir.Value
    bias: ir.Value
    sizes: list[int]
    """Of the result, where it has more than two axes."""


def biases_in_products(model: ir.Model) -> ir.Model:
    """Write products that only the sum with a bias reads as Gemms."""
    for graph in [*model.graph.subgraphs(), model.graph]:
        for product in [n for n in graph if n.op_type == "MatMul" and not n.domain]:
            layer = _layer(product)
            if layer is None or (layer.sizes and graph is not model.graph):
                continue
            turned = [n for n in map(_turned, product.inputs) if n is not None]
            if layer.sizes:
                _use_matrices(layer)
            else:
                _become_gemm(layer)
            remove_nodes(graph, [product])
            unread = [n for n in turned if n.graph is graph and not n.outputs[0].uses()]
            remove_nodes(graph, unread)
    return model


def _layer(product: ir.Node) -> Layer | None:
    """A product whose only reader adds a row to it."""
    total, (x, weight) = only_reader(product), product.inputs
    if total is None or total.op_type != "Add" or total.domain or total.graph is not product.graph:
        return None
    bias = next((v for v in total.inputs if v is not product.outputs[0]), None)
    if x is None or weight is None or bias is None or product.outputs[0].dtype not in TYPES:
        return None
    dims, (columns, *_) = dims_of(x) or (), (dims_of(weight) or ())[1:] or (None,)
    if len(dims_of(weight) or ()) != 2 or len(dims) < 2 or 0 in (*dims, *(dims_of(weight) or ())):
        return None
    if dims_of(bias) not in ((columns,), (1, columns)) or not isinstance(columns, int):
        return None
    if _has_few_bits(weight):
        return None
    known = [d for d in dims if isinstance(d, int)]
    if len(dims) > 2 and len(known) < len(dims):
        return None
    return Layer(product, total, x, weight, bias, [*known[:-1], columns] if len(dims) > 2 else [])


def _has_few_bits(weight: ir.Value) -> bool:
    """Whether a weight is stored in few bits: sessions have kernels for its product."""
    value: ir.Value | None = weight
    while (node := producer_of(value, *WAY)) is not None:
        value = node.inputs[0]
    return producer_of(value, "DequantizeLinear") is not None


def _become_gemm(layer: Layer) -> None:
    """Of matrices: the sum becomes a Gemm."""
    x, turned_x = _operand(layer.x)
    weight, turned = _operand(layer.weight)
    become(layer.total, "Gemm", x, weight, layer.bias)
    for name, value in (("transA", turned_x), ("transB", turned)):
        if value:
            layer.total.attributes.add(ir.AttrInt64(name, 1))
    layer.total.doc_string = BIASED


def _use_matrices(layer: Layer) -> None:
    """Of more axes: a Gemm of all rows, which the sum brings into their shape."""
    total, count = layer.total, math.prod(layer.sizes[:-1])
    width = (dims_of(layer.x) or (1,))[-1]
    assert isinstance(width, int)
    rows = insert(total, "Reshape", [layer.x, constant(total, [count, width], "rows")], "rows")
    rows.shape = ir.Shape([count, width])
    weight, turned = _operand(layer.weight)
    attributes = {"transB": 1} if turned else {}
    sums = insert(total, "Gemm", [rows, weight, layer.bias], "Gemm", **attributes)
    sums.shape = ir.Shape([count, layer.sizes[-1]])
    gemm = sums.producer()
    assert gemm is not None
    gemm.doc_string = BIASED
    become(total, "Reshape", sums, constant(total, layer.sizes, "shape"))


def _operand(value: ir.Value) -> tuple[ir.Value, bool]:
    """What a Gemm reads instead of a transposed matrix, and whether it has to transpose it."""
    node = _turned(value)
    source = None if node is None else node.inputs[0]
    return (value, False) if source is None else (source, True)


def _turned(value: ir.Value | None) -> ir.Node | None:
    """The node that swaps the axes of a matrix for one reader alone."""
    node = producer_of(value, "Transpose")
    if node is None or permutation(node) != [1, 0] or len(node.outputs[0].uses()) > 1:
        return None
    return None if node.outputs[0].is_graph_output() else node
