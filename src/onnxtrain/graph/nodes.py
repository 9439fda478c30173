"""What rewrites look at and what they put in: constants, shapes, permutations, new nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .tensor import dims_of


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


def permutation(node: ir.Node) -> list[int] | None:
    """That of a Transpose, where it is spelled out."""
    attribute = node.attributes.get("perm")
    return None if attribute is None else list(attribute.as_ints())


def insert(
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
