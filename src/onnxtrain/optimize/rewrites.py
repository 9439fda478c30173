"""Local rewrites: a node and what it can be replaced with, one small function each.

A rewrite looks at one node and returns the value that can stand in for its output, or None. The
replacement may be an existing value, or the output of a node that the rewrite inserts before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph.edit import GATE, replace_value
from ..graph.tensor import dims_of

Rewrite = Callable[[ir.Node], "ir.Value | None"]

BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Where", "Pow", "Less", "Greater", "Equal"}
)


def apply_rewrites(graph: ir.Graph) -> None:
    """Apply all rewrites in one forward sweep; later nodes see what earlier ones became."""
    for node in list(graph):
        for rewrite in REWRITES.get(node.op_type, ()) if not node.domain else ():
            result = node.outputs[0]
            replacement = rewrite(node)
            if replacement is None or replacement is result:
                continue
            replace_value(graph, result, replacement)
            break


def scalar(value: ir.Value | None) -> float | None:
    """The number behind a constant with one element and no more dimensions than its partner."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor.size != 1 or len(tensor.shape) > 0:
        return None
    return float(tensor.numpy().reshape(()))


def ints(value: ir.Value | None) -> list[int] | None:
    """The integers behind a constant 1-D operand."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return [int(i) for i in np.atleast_1d(value.const_value.numpy())]


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two values certainly have the same shape (unknown dimensions are not certain)."""
    if a is None or b is None:
        return False
    left, right = dims_of(a), dims_of(b)
    return left is not None and left == right and None not in left


def neutral_operand(node: ir.Node) -> ir.Value | None:
    """x·1, x/1, x+0 and x−0 are x."""
    left, right = node.inputs[0], node.inputs[1]
    unit = 0.0 if node.op_type in ("Add", "Sub") else 1.0
    if scalar(right) == unit:
        return left
    if node.op_type in ("Add", "Mul") and scalar(left) == unit:
        return right
    return None


def pointless_expand(node: ir.Node) -> ir.Value | None:
    """A broadcasting operator repeats its small operand itself.

    Looks at the consumers of an Expand: where another operand already has the full shape, the
    consumer takes the small tensor directly.
    """
    small, big = node.inputs[0], node.outputs[0]
    if small is None:
        return None
    if same_shape(small, big):
        return small
    for user, index in list(big.uses()):
        if user.op_type not in BROADCASTING or user.domain:
            continue
        if user.op_type == "Where" and index == 0:
            continue
        others = [v for i, v in enumerate(user.inputs) if i != index]
        if any(same_shape(other, big) and other is not big for other in others):
            user.replace_input_with(index, small)
    return None


def double_transpose(node: ir.Node) -> ir.Value | None:
    """Two transpositions in a row are one, or none (but see `transpose_for_product`)."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    if inner is None or inner.op_type != "Transpose" or inner.domain:
        return None
    first, second = _permutation(inner), _permutation(node)
    if first is None or second is None:
        return None
    combined = [first[i] for i in second]
    if combined == list(range(len(combined))):
        return inner.inputs[0]
    if _swaps_last(second) and not _swaps_last(combined) and _only_for_products(node):
        return None
    node.replace_input_with(0, inner.inputs[0])
    node.attributes["perm"] = ir.AttrInt64s("perm", combined)
    return None


def transpose_for_product(node: ir.Node) -> ir.Value | None:
    """Operands of a product: move whole rows, and leave the swap of rows and columns apart.

    onnxruntime makes that swap part of the product, for nothing; moving single elements instead of
    rows costs twice as much as moving rows.
    """
    perm = _permutation(node)
    if perm is None or len(perm) < 3 or _swaps_last(perm) or not _only_for_products(node):
        return None
    rows = [*perm[:-2], perm[-1], perm[-2]]
    if rows[-1] != len(rows) - 1:
        return None
    moved = _insert(node, "Transpose", node.inputs[:1], "rows", perm=rows)
    shape = node.outputs[0].shape
    if shape is not None:
        moved.shape = ir.Shape([*shape.dims[:-2], shape.dims[-1], shape.dims[-2]])
    return _insert(node, "Transpose", [moved], perm=_swap_of(len(perm)))


def _swap_of(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _swaps_last(perm: Sequence[int]) -> bool:
    return list(perm) == _swap_of(len(perm))


def _only_for_products(node: ir.Node) -> bool:
    uses = node.outputs[0].uses()
    return bool(uses) and all(u.node.op_type == "MatMul" and not u.node.domain for u in uses)


def transposed_product(node: ir.Node) -> ir.Value | None:
    """(AB)ᵀ is BᵀAᵀ: a Gemm transposes its operands for nothing."""
    source = node.inputs[0]
    product = source.producer() if source is not None else None
    if product is None or product.op_type != "Gemm" or product.domain:
        return None
    if _permutation(node) != [1, 0] or len(product.inputs) > 2 or len(source.uses()) != 1:  # type: ignore[union-attr]
        return None
    flags = {n: product.attributes.get_int(n, 0) for n in ("transA", "transB")}
    alpha = product.attributes.get_float("alpha", 1.0)
    a, b = product.inputs
    return _insert(
        node, "Gemm", [b, a], transA=1 - flags["transB"], transB=1 - flags["transA"], alpha=alpha
    )


def _permutation(node: ir.Node) -> list[int] | None:
    attribute = node.attributes.get("perm")
    return None if attribute is None else list(attribute.as_ints())


def trivial_transpose(node: ir.Node) -> ir.Value | None:
    """A transposition that moves nothing."""
    perm = _permutation(node)
    return node.inputs[0] if perm is not None and perm == sorted(perm) else None


def reshape_of_reshape(node: ir.Node) -> ir.Value | None:
    """Only the last of several Reshape (or Squeeze, Unsqueeze, Flatten) nodes counts."""
    source = node.inputs[0]
    if (node.name or "").startswith(f"{GATE}/"):
        return None  # it delays what reads it
    if same_shape(source, node.outputs[0]):
        return source
    inner = source.producer() if source is not None else None
    if inner is None or inner.domain:
        return None
    if inner.op_type not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        return None
    target = ints(node.inputs[1])
    if target is None and not _is_shape_of_something(node.inputs[1]):
        return None
    if target is not None and 0 in target:
        return None  # zeros refer to dimensions of the tensor in between
    node.replace_input_with(0, inner.inputs[0])
    return inner.inputs[0] if same_shape(inner.inputs[0], node.outputs[0]) else None


def _is_shape_of_something(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "Shape"


def pointless_cast(node: ir.Node) -> ir.Value | None:
    """A Cast to the type that the value has."""
    source = node.inputs[0]
    if source is None or source.dtype is None:
        return None
    return source if source.dtype == ir.DataType(node.attributes["to"].as_int()) else None


def double_negation(node: ir.Node) -> ir.Value | None:
    """−(−x) is x."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    return inner.inputs[0] if inner is not None and inner.op_type == "Neg" else None


def add_of_negation(node: ir.Node) -> ir.Value | None:
    """a + (−b) is a − b."""
    left, right = node.inputs
    for kept, negated in ((left, right), (right, left)):
        inner = negated.producer() if negated is not None else None
        if inner is not None and inner.op_type == "Neg" and len(negated.uses()) == 1:  # type: ignore[union-attr]
            return _insert(node, "Sub", [kept, inner.inputs[0]])
    return None


def _insert(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    suffix: str = "",
    **attributes: Any,
) -> ir.Value:
    """A new node in front of `node`, with an output described like its output."""
    suffix = suffix or op_type
    made = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
    new = ir.Node("", op_type, inputs, made, name=f"{node.name}/{suffix}")
    result, old = new.outputs[0], node.outputs[0]
    result.name, result.type, result.shape = f"{old.name}/{suffix}", old.type, old.shape
    assert node.graph is not None
    node.graph.insert_before(node, new)
    return result


REWRITES: dict[str, tuple[Rewrite, ...]] = {
    "Add": (neutral_operand, add_of_negation),
    "Sub": (neutral_operand,),
    "Mul": (neutral_operand,),
    "Div": (neutral_operand,),
    "Neg": (double_negation,),
    "Expand": (pointless_expand,),
    "Transpose": (double_transpose, trivial_transpose, transposed_product, transpose_for_product),
    "Reshape": (reshape_of_reshape,),
    "Cast": (pointless_cast,),
}
"""Which rewrites look at which operator; they are tried in this order."""
