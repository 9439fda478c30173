"""Several nodes that are one function, and are differentiated as one.

Exporters spell Gelu with five operators. Differentiated one by one, all their results are kept for
the backward pass, and onnxruntime, which would fuse them, no longer can because they are read.
As a whole the function needs its input only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Composite:
    """Nodes that compute one function.

    Attributes:
        op_type: the operator that computes the same.
        nodes: what it consists of; the last one computes `y`.
        source: `x`.
    """

    op_type: str
    nodes: tuple[ir.Node, ...]
    source: ir.Value

    @property
    def inner(self) -> tuple[ir.Value, ...]:
        """Values between `x` and `y`."""
        return tuple(node.outputs[0] for node in self.nodes[:-1])


def find_composites(nodes: Iterable[ir.Node]) -> dict[ir.Node, Composite]:
    """Composites by their last node; their inner values have no other reader."""
    found = {}
    for node in nodes:
        composite = _gelu(node) if node.op_type == "Erf" and not node.domain else None
        if composite is not None and not any(v.is_graph_output() for v in composite.inner):
            found[composite.nodes[-1]] = composite
    return found


def _gelu(erf: ir.Node) -> Composite | None:
    """x·½·(1 + erf(x/√2)), with the half on either side of the product."""
    scaled = _only_number(erf.inputs[0], {"Div": math.sqrt(2), "Mul": math.sqrt(0.5)})
    if scaled is None:
        return None
    scaling, x = scaled
    sum_ = _next(erf, "Add", 1.0)
    product = _next(sum_, "Mul")
    if sum_ is None or product is None:
        return None
    a, b = product.inputs
    other = b if a is sum_.outputs[0] else a
    if other is x:
        half = _next(product, "Mul", 0.5)
        if half is None:
            return None
        return Composite("Gelu", (scaling, erf, sum_, product, half), x)
    halved = _only_number(other, {"Mul": 0.5})
    if halved is None or halved[1] is not x:
        return None
    return Composite("Gelu", (scaling, erf, sum_, halved[0], product), x)


def _next(node: ir.Node | None, op_type: str, number: float | None = None) -> ir.Node | None:
    """The only reader of a node's result, if it is this operator (with this number)."""
    readers = [] if node is None else list(node.outputs[0].uses())
    if len(readers) != 1:
        return None
    reader = readers[0].node
    if reader.op_type != op_type or reader.domain:
        return None
    return reader if number is None or _operand(reader, number) is not None else None


def _only_number(
    value: ir.Value | None, forms: dict[str, float]
) -> tuple[ir.Node, ir.Value] | None:
    """The node that made a value with one reader from another value and a number."""
    node = value.producer() if value is not None and len(value.uses()) == 1 else None
    if node is None or node.domain or node.op_type not in forms:
        return None
    operand = _operand(node, forms[node.op_type])
    return None if operand is None else (node, operand)


def _operand(node: ir.Node, number: float) -> ir.Value | None:
    """The operand beside a constant scalar with this value (the right one of a Div)."""
    a, b = node.inputs
    pairs = ((a, b),) if node.op_type == "Div" else ((a, b), (b, a))
    for operand, constant in pairs:
        if constant is None or constant.is_graph_input() or constant.const_value is None:
            continue
        tensor = constant.const_value
        if tensor.size == 1 and math.isclose(float(tensor.numpy().item()), number, rel_tol=1e-3):
            return operand
    return None
