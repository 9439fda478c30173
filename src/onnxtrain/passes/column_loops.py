"""Takes the marks off loops over columns for which a session needs no kernel.

The rule that writes recurrent layers in columns marks its Scans (`autodiff/rules/recurrent.py`): a
session on a desktop may take each column through all steps by itself
(`runtime/session/column_loops.py`). What is marked stays as it is: standard operators, in files and
on devices. Here are the shapes and types that tell whether that pays.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.subgraphs import subgraphs
from ..operators import COLUMN_LOOP
from .sizes import elements_of

PRODUCTS = ("Gemm", "MatMul")
ELEMENTS = 8192
"""Of a matrix from which on a loop is worth a kernel that has to be loaded: a step of an LSTM of 32
features."""


def unmark_small_loops(graph: ir.Graph) -> None:
    """In a graph and the graphs inside of it."""
    for node in graph:
        for body in subgraphs(node):
            unmark_small_loops(body)
        if node.doc_string == COLUMN_LOOP and not _is_worth(node):
            node.doc_string = None


def _is_worth(node: ir.Node) -> bool:
    first, body = node.inputs[0], node.attributes["body"].as_graph()
    if first is not None and first.dtype not in (ir.DataType.FLOAT, None):
        return False
    matrices = [n.inputs[0] for n in body if n.op_type in PRODUCTS and not n.domain]
    return any(_elements(matrix) >= ELEMENTS for matrix in matrices)


def _elements(matrix: ir.Value | None) -> int:
    """How many there are, as far as the graph says; many, where it says nothing."""
    if matrix is None or matrix.shape is None:
        return ELEMENTS
    return elements_of(matrix.shape)
