"""Several nodes that are one function, and are differentiated as one.

Exporters spell Gelu with five operators. Differentiated one by one, all their results are kept for
the backward pass, and onnxruntime, which would fuse them, no longer can because they are read.
As a whole the function needs its input only.

A pass that writes an operator as several nodes knows that they are one function: it declares them,
and says what their gradient is. Where that is lost (in a file that is differentiated again), the
nodes are differentiated one by one, which is right as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from ..graph import Tensor
from .registry import lookup

if TYPE_CHECKING:
    from .walk import Walk

Gradient: TypeAlias = Callable[
    ["Walk", Sequence[Tensor | None]], Iterable[tuple[ir.Value, Tensor | None]]
]
"""(walk, gradients of the results) → values, each with its gradient."""

DECLARED = "onnxtrain.composite"
"""Where a node remembers the composite that a pass declared."""


@dataclass(frozen=True)
class Composite:
    """Nodes that compute one function.

    Attributes:
        last: the node that computes the results; the others come before it.
        inner: values in between. Where somebody asks for the gradient of one of them, the nodes
            are differentiated one by one.
        gradient: what the function's gradient is.
        nodes: those that may not be among the ones at which gradients stop.
    """

    last: ir.Node
    inner: tuple[ir.Value, ...]
    gradient: Gradient
    nodes: tuple[ir.Node, ...] = ()


def declare(composite: Composite) -> None:
    """Let the walk differentiate these nodes as one, for as long as they read what they read now.

    The gradient names values. A pass that lets a node read another one has changed the function,
    and its nodes are differentiated one by one.
    """
    composite.last.meta[DECLARED] = (composite, _reads(composite))


def _declared(node: ir.Node) -> Composite | None:
    composite, reads = node.meta.get(DECLARED, (None, ()))
    if composite is None or composite.last is not node:  # a copy has other nodes around it
        return None
    return composite if _reads(composite) == reads else None


def _reads(composite: Composite) -> list[tuple[ir.Value | None, ...]]:
    return [tuple(node.inputs) for node in composite.nodes or (composite.last,)]


def find_composites(nodes: Iterable[ir.Node]) -> dict[ir.Node, Composite]:
    """Composites by their last node: those that were declared, and those with a known form."""
    composites = {}
    for node in nodes:
        declared = _declared(node)
        if declared is not None:
            composites[node] = declared
        form = FORMS.get(node.op_type) if not node.domain else None
        formula = form(node) if form is not None else None
        if formula is not None and not any(v.is_graph_output() for v in formula.inner):
            composites[formula.last] = formula
    return composites


def as_operator(
    op_type: str, nodes: Sequence[ir.Node], x: ir.Value, **attributes: object
) -> Composite:
    """Nodes that compute what one operator with these attributes does with `x`."""
    last = nodes[-1]

    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        op, rule = walk.op, lookup("", op_type)
        assert rule is not None
        y = op.tensor(last.outputs[0])
        return [(x, rule.function(op, dys[0], y, op.tensor(x), **attributes))]

    return Composite(last, tuple(n.outputs[0] for n in nodes[:-1]), gradient, tuple(nodes))


def _silu(sigmoid: ir.Node) -> Composite | None:
    """y = x·σ(x), whose slope is σ + y·(1 - σ): four passes over memory instead of six."""
    x, product = sigmoid.inputs[0], _next(sigmoid, "Mul")
    if x is None or product is None or x not in product.inputs:
        return None

    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        assert dys[0] is not None
        sigma, y = (walk.op.tensor(n.outputs[0]) for n in (sigmoid, product))
        return [(x, dys[0] * (y * (1.0 - sigma) + sigma))]

    return Composite(product, (sigmoid.outputs[0],), gradient, (sigmoid, product))


def _rms(mean: ir.Node) -> Composite | None:
    """y = x·r with r = 1/√(mean(x²) + ε): dx = r·(dy - y·mean(dy·y)), five nodes, not sixteen."""
    square, x = _square(mean.inputs[0]) or (None, None)
    axes = mean.inputs[1] if len(mean.inputs) > 1 else None
    if square is None or x is None or axes is None or mean.attributes.get_int("keepdims", 1) != 1:
        return None
    sum_ = _next(mean, "Add")
    root = _next(sum_, "Sqrt")
    reciprocal = _next(root, "Reciprocal") or _one_over(root)
    last = _next(reciprocal, "Mul") if reciprocal is not None else _next(root, "Div")
    if sum_ is None or root is None or last is None or _number(_beside(sum_, mean)) is None:
        return None
    before = root if reciprocal is None else reciprocal
    if _beside(last, before) is not x or (reciprocal is None and last.inputs[0] is not x):
        return None

    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        op, dy = walk.op, dys[0]
        assert dy is not None
        y, factor = (op.tensor(n.outputs[0]) for n in (last, before))
        rest = dy - y * op.ReduceMean(dy * y, op.tensor(axes), keepdims=1)
        return [(x, rest / factor if reciprocal is None else rest * factor)]

    nodes = [n for n in (square, mean, sum_, root, reciprocal) if n is not None]
    return Composite(last, tuple(n.outputs[0] for n in nodes), gradient, (*nodes, last))


def _one_over(node: ir.Node | None) -> ir.Node | None:
    """The only reader of a node's result, if it divides one by it."""
    reader = _next(node, "Div")
    return reader if reader is not None and _number(reader.inputs[0]) == 1.0 else None


def _square(value: ir.Value | None) -> tuple[ir.Node, ir.Value] | None:
    """The node that made a value with one reader as x², and x."""
    node = value.producer() if value is not None and len(value.uses()) == 1 else None
    if node is None or node.domain or node.op_type not in {"Mul", "Pow"}:
        return None
    a, b = node.inputs
    is_square = a is b if node.op_type == "Mul" else _number(b) == 2.0
    return (node, a) if is_square and a is not None else None


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
        return as_operator("Gelu", (scaling, erf, sum_, product, half), x)
    halved = _only_number(other, {"Mul": 0.5})
    if halved is None or halved[1] is not x:
        return None
    return as_operator("Gelu", (scaling, erf, sum_, halved[0], product), x)


def _gelu_tanh(tanh: ir.Node) -> Composite | None:
    nodes, x = tanh_gelu(tanh) or ((), None)
    return None if x is None else as_operator("Gelu", nodes, x, approximate="tanh")


def tanh_gelu(tanh: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value] | None:
    """½·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), in whichever order it is multiplied.

    Returns:
        The nodes, and x.
    """
    sum_ = _next(tanh, "Add", 1.0)
    product = _next(sum_, "Mul")
    if sum_ is None or product is None:
        return None
    x = _beside(product, sum_)
    halved, last = _only_number(x, {"Mul": 0.5}), _next(product, "Mul")
    if halved is not None:  # (x/2)·(1 + tanh u)
        x, after = halved[1], (halved[0], sum_, product)
    elif last is not None and (_number(x) == 0.5 or _operand(last, 0.5) is not None):
        # x·(½·(1 + tanh u)), or half of x·(1 + tanh u)
        x, after = _beside(last, product) if _number(x) == 0.5 else x, (sum_, product, last)
    else:
        return None
    before: list[ir.Node] = []
    if x is None or not _is_cubic_of(tanh.inputs[0], x, before):
        return None
    return (*before, tanh, *after), x


def _beside(node: ir.Node, factor: ir.Node) -> ir.Value | None:
    """The other operand of a product with what `factor` computes."""
    a, b = node.inputs
    return b if a is factor.outputs[0] else a


def _is_cubic_of(u: ir.Value | None, x: ir.Value, nodes: list[ir.Node]) -> bool:
    """Whether u is what the approximation of Gelu takes the tanh of; collects its nodes."""
    terms = _polynomial(u, x, nodes) or {}
    k = math.sqrt(2 / math.pi)
    near = math.isclose(terms.get(1, 0), k, rel_tol=1e-3)
    return set(terms) == {1, 3} and near and math.isclose(terms[3], 0.044715 * k, rel_tol=1e-3)


def _polynomial(
    value: ir.Value | None, x: ir.Value, nodes: list[ir.Node]
) -> dict[int, float] | None:
    """From degrees to factors of a polynomial in x, of third degree at most."""
    if value is x:
        return {1: 1.0}
    number = _number(value)
    if number is not None:
        return {0: number}
    node = value.producer() if value is not None and len(value.uses()) == 1 else None
    if node is None or node.domain or node.op_type not in {"Add", "Mul", "Pow"}:
        return None
    left, right = (_polynomial(v, x, nodes) for v in node.inputs)
    if left is None or right is None:
        return None
    nodes.append(node)
    if node.op_type == "Pow":
        power = right.get(0, 0.0) if set(right) == {0} else 0.0
        return {int(power): 1.0} if left == {1: 1.0} and power in {2.0, 3.0} else None
    terms: dict[int, float] = dict(left) if node.op_type == "Add" else {}
    if node.op_type == "Add":
        for degree, factor in right.items():
            terms[degree] = terms.get(degree, 0.0) + factor
        return terms
    for n, a in left.items():
        for m, b in right.items():
            terms[n + m] = terms.get(n + m, 0.0) + a * b
    return terms if max(terms) <= 3 else None


def _number(value: ir.Value | None) -> float | None:
    """What a constant with one element is."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    tensor = value.const_value
    return float(tensor.numpy().item()) if tensor.size == 1 else None


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
        value = _number(constant)
        if value is not None and math.isclose(value, number, rel_tol=1e-3):
            return operand
    return None


FORMS: dict[str, Callable[[ir.Node], Composite | None]] = {
    "Erf": _gelu,
    "ReduceMean": _rms,
    "Sigmoid": _silu,
    "Tanh": _gelu_tanh,
}
"""Which operator a known form is looked for around; rules that know one add it."""
