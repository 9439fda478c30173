"""Element-wise operators: arithmetic, powers, exponentials, trigonometry, comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..poles import is_selected, zero_where
from ..registry import elementwise, gradient, zero_gradient

# --- helpers -----------------------------------------------------------------------------------

CONTRACTIONS = frozenset(
    {"Col2Im", "Conv", "ConvTranspose", "Gemm", "MatMul", "MaxUnpool", "ReduceMean", "ReduceSum"}
)
REARRANGED = frozenset(
    {"Expand", "Neg", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
ADDED = frozenset({"Add", "Concat", "Sub", "Sum"})
FINITE = frozenset({"HardSigmoid", "LayerNormalization", "Sigmoid", "Softmax", "Tanh"})
"""Operators whose results are finite, or NaN, whatever they are given."""
SEED = "onnxtrain.seed"
"""Marks an input that is the gradient of an output: nobody knows what it was computed from."""
FARTHEST = 12
"""How many nodes to look back."""


def masked(op: OpBuilder, dy: Tensor, keep: Tensor) -> Tensor:
    """`dy` where `keep` holds, zero elsewhere.

    Where is what drops an infinity (the derivative of ``sqrt(relu(x))`` at 0 is one); multiplying
    by the mask takes a third less time, but turns it into NaN. So the product is only used where
    `dy` comes out of a matrix product or convolution, which would have spread an infinity anyway.
    """
    if is_contracted(dy):
        return dy * op.Cast(keep, to=dy.dtype)
    return op.Where(keep, dy, 0)


def by_factor(
    op: OpBuilder, dy: Tensor, product: Callable[[], Tensor], choice: Callable[[], Tensor]
) -> Tensor:
    """`product`, which is fast and makes NaN of an infinity that nobody asked for, or `choice`.

    The former where what `dy` is made of tells that it is finite, as it is behind a product.
    """
    return product() if is_contracted(dy) else choice()


def is_contracted(x: Tensor) -> bool:
    """Whether `x` is made of the results of products, convolutions and sums by finite factors."""
    return _contracted(x.value, FARTHEST, {})


def _contracted(value: ir.Value | None, farthest: int, known: dict[ir.Value, bool]) -> bool:
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain or farthest == 0:
        return False
    if value not in known:
        known[value] = _gives_contracted(node, lambda v: _contracted(v, farthest - 1, known))
    return known[value]


def _gives_contracted(node: ir.Node, contracted: Callable[[ir.Value | None], bool]) -> bool:
    """Whether a node contracts, or changes what is contracted by finite numbers only."""
    if node.op_type in CONTRACTIONS:
        return True
    if node.op_type in REARRANGED:
        return contracted(node.inputs[0])
    if node.op_type in ADDED:
        return all(map(contracted, node.inputs))
    if node.op_type == "BatchNormalization":  # of the gradient, or of x by sums of the gradient
        return any(map(contracted, node.inputs[:2]))
    if node.op_type == "Mul":
        a, b = node.inputs
        return (contracted(a) and (_is_finite(b) or contracted(b))) or (
            contracted(b) and _is_finite(a)
        )
    return False


def _is_finite(value: ir.Value | None) -> bool:
    """Whether a factor is a number, a weight or a result that cannot be infinite."""
    if value is None:
        return False
    node = value.producer()
    if node is None:
        return value.const_value is not None or (value.is_graph_input() and SEED not in value.meta)
    if node.op_type == "Cast" and node.inputs[0] is not None:
        return node.inputs[0].dtype == ir.DataType.BOOL
    if node.op_type in {"Max", "Min", "Mul"}:
        return all(map(_is_finite, node.inputs))
    if node.op_type in REARRANGED:
        return _is_finite(node.inputs[0])
    bounded = node.op_type == "Clip" and len(node.inputs) == 3 and None not in node.inputs
    return (bounded or node.op_type in FINITE) and not node.domain


def step(op: OpBuilder, x: Tensor, below: float, above: float) -> Tensor:
    """One number for negative x and a larger one for positive x; 0 at 0, or what is nearest to it.

    Two passes over memory. A float16 cannot hold the factor, so in single precision only.
    """
    return op.Clip(x * 3e38, op.like(below, x), op.like(above, x))


def as_type(op: OpBuilder, x: Tensor, dtype: ir.DataType) -> Tensor:
    """`x` itself when it has that element type, else a Cast."""
    return x if x.dtype == dtype else op.Cast(x, to=dtype)


def scalar_const(x: Tensor) -> float | None:
    """The value of a constant with one element, else None."""
    array = x.const
    return float(array.reshape(())) if array is not None and array.size == 1 else None


# --- arithmetic --------------------------------------------------------------------------------


@elementwise("Add")
def add(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    return dy, dy


@gradient("Sub")
def sub(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    # Not "elementwise": the sign is changed after the sum over broadcast axes, where it is cheap.
    return op.sum_to(dy, a, y.shape, y), -op.sum_to(dy, b, y.shape, y)


@elementwise("Mul")
def mul(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    return dy * b, dy * a


@gradient("Div")
def div(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    selected = is_selected(y.value)
    da = dy / b
    db = da * y
    if selected:
        da, db = zero_where(op, dy, da), zero_where(op, dy, db)
    return op.sum_to(da, a, y.shape, y), -op.sum_to(db, b, y.shape, y)


@elementwise("Mod", note="float operands; integers have no gradient")
def mod(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    # y = a - kb; the integer k (truncated for fmod=1, floored for fmod=0) is locally constant
    return dy, dy * ((y - a) / b)


@elementwise("Sum")
def sum_(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return (dy,) * len(inputs)


@elementwise("Mean")
def mean(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return (dy * (1.0 / len(inputs)) if len(inputs) > 1 else dy,) * len(inputs)


@elementwise("Max", note="equal operands share the gradient evenly")
def maximum(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return _extremum(op, dy, y, inputs, 3e38)


@elementwise("Min", note="equal operands share the gradient evenly")
def minimum(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return _extremum(op, dy, y, inputs, -3e38)


def _extremum(
    op: OpBuilder, dy: Tensor, y: Tensor, inputs: Sequence[Tensor], steep: float
) -> Tensor | tuple[Tensor | None, ...]:
    if len(inputs) == 1:
        return dy
    bounds = [scalar_const(x) for x in inputs]
    if len(inputs) == 2 and dy.dtype == ir.DataType.FLOAT and any(map(_is_number, bounds)):
        # The share of x beside a number: 0 on one side of it, 1 on the other and ½ at it
        return tuple(
            None if not _is_number(bound) else dy * op.HardSigmoid(x - bound, alpha=steep, beta=0.5)
            for x, bound in zip(inputs, reversed(bounds))
        )
    winners = [op.Cast(op.Equal(x, y), to=dy.dtype) for x in inputs]
    share = dy / op.Sum(*winners)
    return tuple(op.Mul(share, winner) for winner in winners)


def _is_number(bound: float | None) -> bool:
    return bound is not None and math.isfinite(bound)


@gradient("Neg")
def neg(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return -dy


@gradient("Identity")
def identity(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy


@gradient("Abs", note="0 at 0")
def abs_(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    if x.dtype == ir.DataType.FLOAT:  # a quarter of the time of Sign's kernel
        return dy * step(op, x, -1.0, 1.0)
    return dy * op.Sign(x)


@gradient("Reciprocal")
def reciprocal(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return -dy * (y * y)


zero_gradient("Floor", "Ceil", "Round", "Sign")

# --- powers, exponentials ----------------------------------------------------------------------


@gradient("Sqrt")
def sqrt(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / (y * 2.0)


@gradient("Exp")
def exp(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * y


@gradient("Log")
def log(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / x


@elementwise("Pow", note="exponent: only where the base is positive")
def pow_(op: OpBuilder, dy: Tensor, y: Tensor, base: Tensor, exponent: Tensor) -> Any:
    known = scalar_const(exponent)
    if known is not None:
        return _constant_power(op, dy, y, base, known)
    power = as_type(op, exponent, base.dtype)
    # x⁰ has slope 0 at 0 too, where 0·0⁻¹ would be NaN: any exponent but -1 will do there.
    lower = op.Where(op.Equal(power, 0), 1, power - 1)
    d_base = dy * (power * op.Pow(base, lower))
    d_exponent = dy * (y * op.Log(op.Where(base > 0, base, 1)))
    return d_base, as_type(op, d_exponent, exponent.dtype)


def _constant_power(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, power: float) -> Any:
    """The derivative of xᵖ without a Pow where p is one of the usual numbers."""
    if power == 0:
        return op.zeros_like(y)
    if power == 1:
        return dy
    lower = {
        2: lambda: x,
        3: lambda: x * x,
        4: lambda: x * x * x,
        1.5: lambda: op.Sqrt(x),
        0.5: lambda: op.Reciprocal(y),
        -0.5: lambda: y * y * y,
        -1: lambda: y * y,
    }
    slope = lower[power]() if power in lower else op.Pow(x, op.like(power - 1, x))
    return dy * (slope * power)


# --- trigonometry, error function --------------------------------------------------------------


@gradient("Sin")
def sin(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * op.Cos(x)


@gradient("Cos")
def cos(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return -dy * op.Sin(x)


@gradient("Tan")
def tan(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (y * y + 1.0)


@gradient("Asin")
def asin(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / op.Sqrt(1.0 - x * x)


@gradient("Acos")
def acos(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return -dy / op.Sqrt(1.0 - x * x)


@gradient("Atan")
def atan(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / (x * x + 1.0)


@gradient("Sinh")
def sinh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * op.Cosh(x)


@gradient("Cosh")
def cosh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * op.Sinh(x)


@gradient("Asinh")
def asinh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / op.Sqrt(x * x + 1.0)


@gradient("Acosh")
def acosh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / op.Sqrt(x * x - 1.0)


@gradient("Atanh")
def atanh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy / (1.0 - x * x)


@gradient("Erf")
def erf(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (op.Exp(-(x * x)) * (2.0 / math.sqrt(math.pi)))


# --- choosing, converting ----------------------------------------------------------------------


@gradient("Clip", note="passes at the bounds")
def clip(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, low: Tensor | None, high: Tensor | None
) -> Any:
    d_low = None if low is None else _bound(op, dy, low, _below(op, x, low, high))
    d_high = None if high is None else _bound(op, dy, high, _above(op, x, low, high))
    return masked(op, dy, op.Equal(x, y)), d_low, d_high


def _below(op: OpBuilder, x: Tensor, low: Tensor, high: Tensor | None) -> Tensor:
    """Where the lower bound is the answer (crossed bounds: the upper one always is)."""
    return x < low if high is None else op.And(x < low, low <= high)


def _above(op: OpBuilder, x: Tensor, low: Tensor | None, high: Tensor) -> Tensor:
    return x > high if low is None else op.Or(x > high, low > high)


def _bound(op: OpBuilder, dy: Tensor, bound: Tensor, taken: Tensor) -> Tensor:
    total = op.ReduceSum(masked(op, dy, taken), keepdims=0)
    return op.reshape_like(total, bound)


@elementwise("Where", stops=(0,))
def where(op: OpBuilder, dy: Tensor, y: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> Any:
    if is_contracted(dy):  # see `masked`
        first = dy * op.Cast(condition, to=dy.dtype)
        return None, first, dy - first
    return None, op.Where(condition, dy, 0), op.Where(condition, 0, dy)


@gradient("Cast", takes_codes=True, note="between float types")
def cast(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    # What integer arithmetic gives has a gradient of the float type that it is cast to.
    return as_type(op, dy, x.dtype) if x.is_float else dy


@gradient("CastLike", stops=(1,), note="between float types")
def cast_like(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, target: Tensor) -> Any:
    return as_type(op, dy, x.dtype)


zero_gradient(
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf",
    "And", "Or", "Xor", "Not", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
    note="boolean or integer result",
)  # fmt: skip
