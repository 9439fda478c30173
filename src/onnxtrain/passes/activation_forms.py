"""Activations, and losses of single elements, in forms of fewer or faster passes.

Each form is as exact as the kernel it replaces, also for infinities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from ..autodiff.composites import as_operator, tanh_gelu
from ..autodiff.registry import is_rule
from ..autodiff.rules import activations, elementwise
from ..graph import OpBuilder, Tensor
from .forms import Written, composite, operand
from .huber import huber_parts
from .needless_nodes import WRITTEN
from .shrink import shrink_parts

GELU_SINCE = 20
"""The opset that has Gelu as an operator."""


LOG_SERIES = (2.0000000079, 0.6666631468, 0.4002491029, 0.2796060271, 0.2817833511)
"""log(1 + e) = s·Σ cₖ·s²ᵏ with s = e/(2 + e), for e up to 1: to 4·10⁻⁹ of the result."""


def softplus(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + log(1 + exp(-|x|))."""
    x = operand(op, node)
    y = op.Relu(x) + _log_of_one_and(op, op.Exp(-op.Abs(x)))
    last = y.value.producer()
    assert last is not None
    last.meta[WRITTEN] = x.value
    return Written(y, lambda nodes: as_operator("Softplus", nodes, x.value))


def _log_of_one_and(op: OpBuilder, e: Tensor) -> Tensor:
    """log(1 + e), relatively exact also where e is small, for e between 0 and 1.

    2·artanh(s) as a series that was fitted. onnxruntime's Log alone takes longer than these eleven
    passes, and the sum 1 + e has lost what is small in e.
    """
    s = e / (e + 2.0)
    square = s * s
    *rest, second, last = LOG_SERIES
    series = op.HardSigmoid(square, alpha=last, beta=second)  # a·x + b in one pass: is below 1
    for number in reversed(rest):
        series = series * square + number
    return series * s


def mish(op: OpBuilder, node: ir.Node) -> Written:
    """x·tanh(softplus(x)), with the quotient that its gradient needs, too."""
    x = operand(op, node)
    y = x * activations.tanh_of_softplus(op, x)
    return Written(y, lambda nodes: as_operator("Mish", nodes, x.value))


def elu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + exp(min(x, 0)) - 1; the exponential is the slope."""
    x = operand(op, node)
    slope = op.Exp(op.Min(x, 0.0))
    y = op.Relu(x) + (slope - 1.0)

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        return [(x.value, dy * op.tensor(slope.value))]

    return Written(y, lambda nodes: composite(nodes, gradient))


def is_plain_elu(node: ir.Node, named: Collection[str]) -> bool:
    """Whether the slope of an Elu is its exponential."""
    return is_rule(activations.elu, "Elu") and node.attributes.get_float("alpha", 1.0) == 1


def selu(op: OpBuilder, node: ir.Node) -> Written:
    """γ·max(x, 0) + γα·(exp(min(x, 0)) - 1)."""
    x = operand(op, node)
    alpha = node.attributes.get_float("alpha", activations.SELU_ALPHA)
    gamma = node.attributes.get_float("gamma", activations.SELU_GAMMA)
    e = op.Exp(op.Min(x, 0.0))
    y = op.Relu(x) * gamma + (e - 1.0) * (gamma * alpha)

    def slope(op: OpBuilder) -> Tensor:  # γα·e, and γ where e is 1 because x is positive
        above = op.HardSigmoid(op.tensor(x.value), alpha=3e38, beta=0.0)
        return op.tensor(e.value) * (gamma * alpha) - above * (gamma * (alpha - 1))

    return Written(y, lambda new: composite(new, lambda op, dy: [(x.value, dy * slope(op))]))


def celu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + α·(exp(min(x, 0)/α) - 1); the exponential is the slope."""
    x, alpha = operand(op, node), node.attributes.get_float("alpha", 1.0)
    slope = op.Exp(op.Min(x, 0.0) * (1 / alpha))
    y = op.Relu(x) + (slope - 1.0) * alpha
    return Written(y, lambda new: composite(new, lambda op, dy: [(x.value, dy * slope)]))


def prelu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + slope·min(x, 0)."""
    x, slope = (op.tensor(v) for v in node.inputs if v is not None)
    negative = op.Min(x, 0.0)
    y = op.Relu(x) + negative * slope

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        # slope + (1 - slope)·step(x), in two passes over memory
        above = op.HardSigmoid(op.tensor(x.value), alpha=3e38, beta=0.0)
        to, of = op.tensor(slope.value), op.tensor(x.value)
        dx = dy * (above * (1.0 - to) + to)
        return [(x.value, dx), (slope.value, op.sum_to(dy * negative, to, of.shape, of))]

    return Written(y, lambda new: composite(new, gradient))


def log_sigmoid(op: OpBuilder, node: ir.Node) -> Written:
    """min(x, 0) - log(1 + exp(-|x|)), which does not underflow as log(sigmoid(x)) does."""
    x = op.tensor(_argument_of_sigmoid(node))
    y = op.Min(x, 0.0) - _log_of_one_and(op, op.Exp(-op.Abs(x)))

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        return [(x.value, dy * op.Sigmoid(-op.tensor(x.value)))]

    return Written(y, lambda new: composite(new, gradient))


def is_log_sigmoid(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Log is of a Sigmoid that nobody asks for."""
    value = node.inputs[0]
    sigmoid = value.producer() if value is not None else None
    if value is None or sigmoid is None or sigmoid.op_type != "Sigmoid" or sigmoid.domain:
        return False
    plain = is_rule(elementwise.log, "Log") and is_rule(activations.sigmoid, "Sigmoid")
    return plain and value.name not in named


def _argument_of_sigmoid(node: ir.Node) -> ir.Value:
    sigmoid = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert sigmoid is not None
    assert sigmoid.inputs[0] is not None
    return sigmoid.inputs[0]


def tanh_gelu_product(op: OpBuilder, node: ir.Node) -> Written:
    """Gelu by tanh, which exporters write with eight operators, Pow among them."""
    x = op.tensor(_tanh_gelu_argument(node))
    if op.opset >= GELU_SINCE:
        return Written(op.Gelu(x, approximate="tanh"))
    y = x * activations.tanh_gelu_share(op, x)
    return Written(y, lambda new: as_operator("Gelu", new, x.value, approximate="tanh"))


def is_tanh_gelu(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a product is the last of a Gelu by tanh, of which nobody asks for a part."""
    gelu = _tanh_gelu(node) if is_rule(activations.gelu, "Gelu") else None
    return gelu is not None and not any(
        o.name in named or o.is_graph_output() for n in gelu[0][:-1] for o in n.outputs
    )


def _tanh_gelu_argument(node: ir.Node) -> ir.Value:
    _, x = _tanh_gelu(node) or ((), None)
    assert x is not None
    return x


def _tanh_gelu(product: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value] | None:
    """The nodes of a Gelu by tanh whose last one this is, and what it is of."""
    behind = [v.producer() for v in product.inputs if v is not None]
    for _ in range(2):  # (1 + tanh u), or half or x times that
        sums = [n for n in behind if n is not None and n.op_type in {"Add", "Mul"}]
        behind = [v.producer() for n in sums for v in n.inputs if v is not None]
        for tanh in behind:
            gelu = tanh_gelu(tanh) if tanh is not None and tanh.op_type == "Tanh" else None
            if gelu is not None and gelu[0][-1] is product:
                return gelu
    return None


def huber(op: OpBuilder, node: ir.Node) -> Written:
    """f·d² up to |d| = β, and tangents from there on: (d - c/2)·c·2f, where c is d cut off at ±β.

    In place of a comparison, a Pow and three Where: 1.6 ms for a million numbers instead of 6.1.
    The slope is 2f·c.
    """
    parts = huber_parts(node)
    assert parts is not None
    d = op.tensor(parts.d)
    c = op.Clip(d, op.like(-parts.limit, d), op.like(parts.limit, d))
    c.value.shape = parts.d.shape
    y = _times((d - c * 0.5) * c, parts.curvature)

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        return [(parts.d, dy * _times(op.tensor(c.value), parts.curvature))]

    return Written(y, lambda nodes: composite(nodes, gradient))


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _is_huber(node: ir.Node, named: Collection[str]) -> bool:
    parts = huber_parts(node) if is_rule(elementwise.where, "Where") else None
    return parts is not None and not any(v.name in named for v in parts.inner)


def shrink(op: OpBuilder, node: ir.Node) -> Written:
    """The soft one is what x is beyond its bounds, the hard one x times a mask; both keep NaN."""
    parts = shrink_parts(node)
    assert parts is not None
    x, limit = op.tensor(parts.x), parts.limit
    if parts.is_soft:
        y = x - op.Clip(x, op.like(-limit, x), op.like(limit, x))
    else:
        y = x * op.HardSigmoid(op.Abs(x) - limit, alpha=3e38, beta=0.0)

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        to = op.tensor(y.value)  # 0 between the bounds and nowhere else

        def product() -> Tensor:
            return dy * op.HardSigmoid(op.Abs(to), alpha=3e38, beta=0.0)

        def choice() -> Tensor:
            return op.Where(op.Equal(to, 0), 0, dy)

        return [(parts.x, elementwise.by_factor(op, dy, product, choice))]

    return Written(y, lambda new: composite(new, gradient))


def choice(op: OpBuilder, node: ir.Node) -> Written:
    """What exporters write with a Where."""
    return shrink(op, node) if shrink_parts(node) is not None else huber(op, node)


def is_known_choice(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Where is the last of a shrinking function or of a Huber loss."""
    parts = shrink_parts(node) if is_rule(elementwise.where, "Where") else None
    if parts is None:
        return _is_huber(node, named)
    return not any(v.name in named for v in parts.inner)
