"""Rewrites of matrix products and of the transpositions around them.

Which form runs fastest is measured: onnxruntime fuses a swap of the last two axes into a product,
and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ..graph.nodes import insert, permutation
from ..graph.tensor import dims_of

OUT_OF_CACHE = 6_000_000
"""Elements of an operand from which on reading it by columns is slow."""
ENOUGH_ROWS = 256
"""Rows from which on it pays, if they are no fewer than the result has columns.

The gain grows with them, and transposing the result, for which it is there twice, costs the same:
with a vocabulary of 50,257, 768 columns and two threads of AVX-512, 2,048 rows take 1,053 ms
against 1,195, and 256 rows 168 against 167.
"""


def transpose_for_product(node: ir.Node) -> ir.Value | None:
    """Operands of a product: move whole rows, and leave the swap of rows and columns apart.

    onnxruntime makes that swap part of the product, for nothing; moving single elements instead of
    rows costs twice as much as moving rows.
    """
    perm = permutation(node)
    if perm is None or len(perm) < 3 or swaps_last(perm) or not only_for_products(node):
        return None
    rows = [*perm[:-2], perm[-1], perm[-2]]
    if rows[-1] != len(rows) - 1:
        return None
    moved = insert(node, "Transpose", node.inputs[:1], "rows", perm=rows)
    shape = node.outputs[0].shape
    if shape is not None:
        moved.shape = ir.Shape([*shape.dims[:-2], shape.dims[-1], shape.dims[-2]])
    return insert(node, "Transpose", [moved], perm=_swap_of(len(perm)))


def _swap_of(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def swaps_last(perm: Sequence[int]) -> bool:
    """Whether it swaps the last two axes and no others."""
    return list(perm) == _swap_of(len(perm))


def only_for_products(node: ir.Node) -> bool:
    """Whether all readers of a node are MatMul nodes."""
    uses = node.outputs[0].uses()
    return bool(uses) and all(u.node.op_type == "MatMul" and not u.node.domain for u in uses)


def transposed_product(node: ir.Node) -> ir.Value | None:
    """(AB)ᵀ is BᵀAᵀ: a Gemm transposes its operands for nothing."""
    source = node.inputs[0]
    product = source.producer() if source is not None else None
    if product is None or product.op_type != "Gemm" or product.domain:
        return None
    if permutation(node) != [1, 0] or len(product.inputs) > 2 or len(source.uses()) != 1:  # type: ignore[union-attr]
        return None
    flags = {n: product.attributes.get_int(n, 0) for n in ("transA", "transB")}
    alpha = product.attributes.get_float("alpha", 1.0)
    a, b = product.inputs
    flipped = insert(
        node, "Gemm", [b, a], transA=1 - flags["transB"], transB=1 - flags["transA"], alpha=alpha
    )
    gemm = flipped.producer()
    assert gemm is not None
    return tall_product(gemm) or flipped


def tall_product(node: ir.Node) -> ir.Value | None:
    """The weight gradient of a layer with very many outputs: AᵀB as (BᵀA)ᵀ.

    Where A does not fit into a cache, reading it by columns takes longer than transposing the
    result does (a vocabulary of 28,782, 700 tokens: 74 ms against 54).
    """
    shape, (a, b) = dims_of(node.outputs[0]), node.inputs[:2]
    flags = {n: node.attributes.get_int(n, 0) for n in ("transA", "transB")}
    if len(node.inputs) != 2 or flags != {"transA": 1, "transB": 0} or shape is None:
        return None
    tall, narrow = shape
    if not isinstance(tall, int) or not isinstance(narrow, int) or tall < 4 * narrow:
        return None
    rows = _rows(a)
    if rows < max(ENOUGH_ROWS, narrow) or tall * rows < OUT_OF_CACHE:
        return None
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        return None
    # A MatMul, because onnxruntime turns the Transpose of a Gemm back into what this replaces.
    turned = insert(node, "Transpose", [b], "Transpose", perm=[1, 0])
    turned.shape = ir.Shape([narrow, None])
    product = insert(node, "MatMul", [turned, a])
    product.shape = ir.Shape([narrow, tall])
    return insert(node, "Transpose", [product], "back", perm=[1, 0])


def _rows(matrix: ir.Value | None) -> int:
    """How many rows, with a guess of 32 for each unknown dimension that they are made of."""
    reshape = matrix.producer() if matrix is not None else None
    if reshape is not None and reshape.op_type == "Reshape" and not reshape.domain:
        matrix = reshape.inputs[0]
    dims = dims_of(matrix) if matrix is not None else None
    return math.prod(d if isinstance(d, int) else 32 for d in dims[:-1]) if dims else 0
