"""Activation functions. At kinks the derivative is PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import elementwise, gradient, zero_gradient
from .elementwise import by_factor, masked, step

# --- piecewise linear --------------------------------------------------------------------------


@gradient("Relu", note="0 at 0")
def relu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    if y.dtype != ir.DataType.FLOAT:
        return masked(op, dy, y > 0)

    def product() -> Tensor:
        # The cheapest 0/1 mask there is: min(1, 3e38·y). A float16 cannot hold the factor.
        return dy * op.HardSigmoid(y, alpha=3e38, beta=0.0)

    return by_factor(op, dy, product, lambda: op.Where(y > 0, dy, 0))


@gradient("LeakyRelu", note="alpha at 0")
def leaky_relu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, alpha: float = 0.01) -> Any:
    if 0 <= alpha <= 1 and x.dtype == ir.DataType.FLOAT:
        return dy * step(op, x, alpha, 1.0)
    if 0 <= alpha <= 1:  # the larger of the mask and alpha: the fewest passes
        return dy * op.Max(op.Cast(x > 0, to=x.dtype), alpha)
    return dy * _choose(op, x > 0, 1.0, alpha, x)


@elementwise("PRelu", note="slope at 0")
def prelu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, slope: Tensor) -> Any:
    return op.Where(x > 0, dy, dy * slope), dy * op.Min(x, 0)


@gradient("ThresholdedRelu", note="0 at the threshold")
def thresholded_relu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, alpha: float = 1.0) -> Any:
    return masked(op, dy, x > alpha)


@gradient("Shrink", note="0 at both thresholds")
def shrink(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, lambd: float = 0.5) -> Any:
    return masked(op, dy, op.Abs(x) > lambd)


@gradient("HardSigmoid", note="0 at both ends")
def hard_sigmoid(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, alpha: float = 0.2) -> Any:
    def choice() -> Tensor:
        return masked(op, dy * alpha, op.And(y > 0, y < 1))

    def product() -> Tensor:
        # 1 where y is less than ½ away from ½: 3e38·(½ - |y - ½|), cut off
        inside = op.HardSigmoid(op.Abs(y - 0.5), alpha=-3e38, beta=1.5e38)
        return dy * (inside * alpha)

    return by_factor(op, dy, product, choice) if y.dtype == ir.DataType.FLOAT else choice()


@gradient("HardSwish", note="0 at -3, 1 at 3")
def hard_swish(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    # x/3 + 1/2 between -3 and 3, where it runs from -1/2 to 3/2; 0 below and 1 above
    if x.dtype != ir.DataType.FLOAT:
        return masked(op, dy * op.Where(x < 3, x * (1 / 3) + 0.5, 1), x > -3)
    # Three times that. The kernel of ThresholdedRelu takes an eighth of the time of Where's
    slope = 3.0 - op.ThresholdedRelu(1.5 - x, alpha=-1.5)

    def product() -> Tensor:
        return dy * (op.ThresholdedRelu(slope, alpha=-1.5) * (1 / 3))

    return by_factor(op, dy, product, lambda: op.Where(x > -3, dy * (slope * (1 / 3)), 0))


zero_gradient("Hardmax")

# --- exponential -------------------------------------------------------------------------------


@gradient("Sigmoid")
def sigmoid(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (y * (1.0 - y))


@gradient("Tanh")
def tanh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (1.0 - y * y)


FAR = 3e4
"""Of a Softplus, which is its operand long before; infinities have no difference."""


@gradient("Softplus")
def softplus(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    # eˣ/(1 + eˣ): onnxruntime's Sigmoid is exact beside 1 only, and zero below -18.
    return dy * op.Exp(op.Min(x, FAR) - op.Min(y, FAR))


@gradient("Softsign")
def softsign(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    root = op.Abs(x) + 1.0
    return dy / (root * root)


@gradient("Elu", note="alpha at 0")
def elu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, alpha: float = 1.0) -> Any:
    if alpha == 1:
        return dy * (op.Min(y, 0) + 1.0)  # α·eˣ is y + α
    return dy * op.Where(x > 0, 1, y + alpha)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@gradient("Selu", note="alpha·gamma at 0")
def selu(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    alpha: float = SELU_ALPHA,
    gamma: float = SELU_GAMMA,
) -> Any:
    return dy * op.Where(x > 0, gamma, y + gamma * alpha)


@gradient("Celu")
def celu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, alpha: float = 1.0) -> Any:
    return dy * (op.Min(y, 0) * (1 / alpha) + 1.0)  # exp(x/α) is y/α + 1 for negative x


@gradient("Mish")
def mish(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    t = tanh_of_softplus(op, x)
    return dy * (t + x * ((1.0 - t * t) * op.Sigmoid(x)))


def tanh_of_softplus(op: OpBuilder, x: Tensor) -> Tensor:
    """tanh(log(1 + e)) = n/(n + 2) with e = exp(x), n = e(e + 2): much cheaper than Softplus.

    Where x is cut off the quotient is 1 to the last bit.
    """
    e = op.Exp(op.Min(x, 5.0 if x.dtype == ir.DataType.FLOAT16 else 20.0))
    n = e * (e + 2.0)
    return n / (n + 2.0)


@gradient("Gelu")
def gelu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    return dy * (_gelu_tanh_slope(op, x) if approximate == "tanh" else _gelu_slope(op, x))


def _gelu_slope(op: OpBuilder, x: Tensor) -> Tensor:
    """Φ(x) + xφ(x); with s = x/√2 that is ½(1 + erf s) + s·exp(-s² - ln √π)."""
    s = x * math.sqrt(0.5)
    erf = op.Erf(s)
    # One pass over the tensor where onnxruntime has the kernel; between 0 and 1 nothing is cut.
    single = x.dtype == ir.DataType.FLOAT
    half = op.HardSigmoid(erf, alpha=0.5, beta=0.5) if single else erf * 0.5 + 0.5
    return half + s * op.Exp(-0.5 * math.log(math.pi) - s * s)


def _gelu_tanh_slope(op: OpBuilder, x: Tensor) -> Tensor:
    """y = x·σ with σ = ½(1 + tanh u), u = kx(1 + ax²); dσ/dx = 2σ(1 - σ)·du/dx."""
    square = x * x
    sigma = tanh_gelu_share(op, x, square)
    outer = x * (square * (6 * GELU_K * GELU_A) + 2 * GELU_K)
    return sigma + outer * (sigma * (1.0 - sigma))


GELU_K, GELU_A = math.sqrt(2 / math.pi), 0.044715


def tanh_gelu_share(op: OpBuilder, x: Tensor, square: Tensor | None = None) -> Tensor:
    """σ = ½(1 + tanh u), which is the sigmoid of 2u: Gelu's share of x."""
    square = x * x if square is None else square
    return op.Sigmoid(x * (square * (2 * GELU_K * GELU_A) + 2 * GELU_K))


def _choose(op: OpBuilder, condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """Where between two numbers, which have to be told the type of `like`."""
    return op.Where(condition, op.like(yes, like), op.like(no, like))
