"""Takes the marks off loops over columns for which a session needs no kernel.

The rule that writes recurrent layers in columns marks its Scans (`autodiff/rules/recurrent.py`): a
session on a desktop may take each column through all steps by itself
(`runtime/session/column_loops.py`). What is marked stays as it is: standard operators, in files and
on devices. Here are the shapes and types that tell whether that pays, and whether a loop
computes a product of a matrix and what it stacks, too.
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


SECOND_CACHE = 2**18
"""Elements of all matrices of a loop up to which it computes products of what it stacks, too."""
LANES, MOST_PADDING = 16, 1.25
"""Columns that a loop takes at a time, and up to how many it may compute for each one that there
is: with 33 sequences an RNN of 256 features took 1.06 of the time of a product of all steps."""


def choose_column_loops(graph: ir.Graph) -> None:
    """Keep the marks of loops that are worth it, and mark products that they can compute.

    In a graph and the graphs inside of it.
    """
    for node in graph:
        for body in subgraphs(node):
            choose_column_loops(body)
        if node.doc_string == COLUMN_LOOP and node.op_type in PRODUCTS:
            node.doc_string = None  # of another time
    for node in graph:
        if node.doc_string == COLUMN_LOOP and node.op_type == "Scan":
            if _is_worth(node):
                _mark_products(node)
            else:
                node.doc_string = None


def _mark_products(loop: ir.Node) -> None:
    """Products of a matrix and what a loop stacks, where its step has room for them."""
    body = loop.attributes["body"].as_graph()
    matrices = {n.inputs[0] for n in body if n.op_type in PRODUCTS and not n.domain}
    taken = sum(_elements(matrix) for matrix in matrices)
    for result in loop.outputs:
        if not _is_filled(result):
            continue
        for reader, place in result.uses():
            matrix = reader.inputs[0]
            is_product = reader.op_type == "MatMul" and place == 1 and reader.graph is loop.graph
            if not is_product or reader.doc_string or matrix is None or not _is_known(matrix):
                continue
            if taken + _elements(matrix) <= SECOND_CACHE:
                reader.doc_string = COLUMN_LOOP
                taken += _elements(matrix)


def _is_filled(stack: ir.Value) -> bool:
    """Whether the columns of a stack fill vectors, or nobody knows how many there are."""
    columns = None if stack.shape is None else stack.shape[-1]
    if not isinstance(columns, int):
        return True
    return -(-columns // LANES) * LANES <= MOST_PADDING * columns


def _is_known(matrix: ir.Value) -> bool:
    """Whether a value is a matrix of known size."""
    shape = matrix.shape
    return shape is not None and len(shape) == 2 and all(isinstance(d, int) for d in shape)


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
