"""What rewrites look at and what they put in: constants, shapes, permutations, new nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..operators import BROADCASTING, KEEPS_RANK
from .tensor import dims_of


def known(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor behind a constant; None for what is none, a parameter with a value included."""
    return None if value is None or value.is_graph_input() else value.const_value


def scalar(value: ir.Value | None) -> float | None:
    """The number behind a constant with one element and no more dimensions than its partner."""
    tensor = known(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 0:
        return None
    return float(tensor.numpy().reshape(()))


def ints(value: ir.Value | None) -> list[int] | None:
    """The integers behind a constant 1-D operand."""
    tensor = known(value)
    return None if tensor is None else [int(i) for i in np.atleast_1d(tensor.numpy())]


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is of one of these standard operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types and not node.domain else None


def is_zeros(value: ir.Value | None) -> bool:
    """Whether a value is made as a tensor of zeros."""
    node = producer_of(value, "ConstantOfShape")
    if node is None:
        return False
    fill = node.attributes.get_tensor("value", None)
    return fill is None or not fill.numpy().any()


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two values certainly have the same shape (unknown dimensions are not certain)."""
    if a is None or b is None:
        return False
    left, right = dims_of(a), dims_of(b)
    return left is not None and left == right and None not in left


def permutation(node: ir.Node) -> list[int] | None:
    """That of a Transpose, where it is spelled out."""
    attribute = node.attributes.get("perm")
    return None if attribute is None else list(attribute.as_ints())


def rank_of(value: ir.Value | None, depth: int = 8) -> int | None:
    """Number of dimensions, from the value or, where it has no shape, from what made it."""
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None or node.domain or not depth or not node.inputs:
        return None
    if node.op_type in BROADCASTING or node.op_type == "MatMul":
        return _highest([rank_of(v, depth - 1) for v in node.inputs], node.op_type == "MatMul")
    if node.op_type == "Reshape":
        target = dims_of(node.inputs[1]) if node.inputs[1] is not None else None
        return target[0] if target and isinstance(target[0], int) else None
    if node.op_type == "Transpose":
        order = permutation(node)
        return None if order is None else len(order)
    before = rank_of(node.inputs[0], depth - 1)
    if before is None or node.op_type in KEEPS_RANK:
        return before
    change = {"Unsqueeze": 1, "Squeeze": -1}.get(node.op_type)
    axes = ints(node.inputs[1]) if change is not None and len(node.inputs) > 1 else None
    return None if change is None or axes is None else before + change * len(axes)


def _highest(ranks: Sequence[int | None], is_product: bool) -> int | None:
    """The rank of a result whose operands broadcast; products with vectors have fewer axes."""
    known = [r for r in ranks if r is not None]
    if len(known) < len(ranks) or (is_product and min(known) < 2):
        return None
    return max(known)


def insert(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    suffix: str = "",
    **attributes: Any,
) -> ir.Value:
    """A new node in front of `node`, with an output described like its output."""
    suffix = suffix or op_type
    converted = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
    new = ir.Node("", op_type, inputs, converted, name=f"{node.name}/{suffix}")
    result, old = new.outputs[0], node.outputs[0]
    result.name, result.type, result.shape = f"{old.name}/{suffix}", old.type, old.shape
    assert node.graph is not None
    node.graph.insert_before(node, new)
    return result


def identity(value: ir.Value, name: str, output: str = "") -> ir.Node:
    """A node that copies a value, typed like it; not in any graph yet.

    Args:
        value: what is copied.
        name: of the node.
        output: name of the copy.
    """
    node = ir.Node("", "Identity", [value], name=name)
    copied = node.outputs[0]
    copied.name, copied.type, copied.shape = output or None, value.type, value.shape
    return node


def constant(
    node: ir.Node, numbers: Sequence[int] | npt.NDArray[np.generic], suffix: str
) -> ir.Value:
    """An array, or an INT64 vector of integers, for a node of a graph; kept with the graph."""
    assert node.graph is not None
    array = numbers if isinstance(numbers, np.ndarray) else np.array(numbers, np.int64)
    return initializer(node.graph, f"{node.name}/{suffix}", array)


def initializer(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A new constant of a graph."""
    tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value
