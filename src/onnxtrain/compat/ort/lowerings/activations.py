"""Gradients of activations and other element-wise operators, and Dropout."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ....autodiff.rules import activations as rules
from ....autodiff.rules import softmax as softmax_rules
from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering
from ._vjp import vjp


def relu_grad(op: OpBuilder, dy: Tensor, y: Tensor) -> Any:
    """dY where the output was positive."""
    return rules.relu(op, dy, y, y)


def leaky_relu_grad(op: OpBuilder, dy: Tensor, y: Tensor, *, alpha: float = 0.01) -> Any:
    """The slope from the sign of the output, which is that of the input."""
    return rules.leaky_relu(op, dy, y, y, alpha=alpha)


def sigmoid_grad(op: OpBuilder, dy: Tensor, y: Tensor) -> Any:
    """From the output."""
    return rules.sigmoid(op, dy, y, y)


def tanh_grad(op: OpBuilder, dy: Tensor, y: Tensor) -> Any:
    """From the output."""
    return rules.tanh(op, dy, y, y)


def gelu_grad(op: OpBuilder, dy: Tensor, x: Tensor) -> Any:
    """With the error function."""
    return rules.gelu(op, dy, x, x)


def fast_gelu_grad(op: OpBuilder, dy: Tensor, x: Tensor, bias: Tensor | None) -> Any:
    """With the tanh approximation."""
    x = x if bias is None else x + bias
    return rules.gelu(op, dy, x, x, approximate="tanh")


def quick_gelu_grad(op: OpBuilder, dy: Tensor, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """Of x·σ(αx)."""
    s = op.Sigmoid(x * alpha)
    return dy * (s + x * alpha * (s * (1.0 - s)))


def bias_gelu_grad(op: OpBuilder, dy: Tensor, x: Tensor, bias: Tensor) -> Any:
    """Of Gelu(x + bias), with respect to x."""
    return gelu_grad(op, dy, x + bias)


def softmax_grad(op: OpBuilder, dy: Tensor, y: Tensor, *, axis: int = 1) -> Tensor:
    """Before opset 13: over all axes from `axis` on."""
    axes = list(range(axis % y.rank, y.rank))
    return y * (dy - op.ReduceSum(dy * y, axes))


def log_softmax_grad(op: OpBuilder, dy: Tensor, y: Tensor, *, axis: int = 1) -> Tensor:
    """Before opset 13: over all axes from `axis` on."""
    axes = list(range(axis % y.rank, y.rank))
    return dy - op.Exp(y) * op.ReduceSum(dy, axes)


def softmax_grad_13(op: OpBuilder, dy: Tensor, y: Tensor, *, axis: int = -1) -> Any:
    """Over one axis."""
    return softmax_rules.softmax(op, dy, y, y, axis=axis)


def log_softmax_grad_13(op: OpBuilder, dy: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    """Over one axis."""
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis])


def div_grad(op: OpBuilder, dy: Tensor, a: Tensor, b: Tensor, *, outputs: tuple[bool, ...]) -> Any:
    """Both gradients of a quotient, summed over what was broadcast."""
    present_at = [i for i, present in enumerate(outputs) if present]
    gradients = dict(zip(present_at, vjp(op, lambda op, a, b: a / b, [a, b], [dy], present_at)))
    return [gradients.get(i) for i in range(2)]


def scale(op: OpBuilder, x: Tensor, factor: Tensor, *, scale_down: int = 0) -> Tensor:
    """x times, or divided by, one number of any type."""
    factor = factor if factor.dtype == x.dtype else op.Cast(factor, to=x.dtype)
    return x / factor if scale_down else x * factor


def dropout_grad(
    op: OpBuilder, dy: Tensor, mask: Tensor, ratio: Tensor | None, training: Tensor | None
) -> Tensor:
    """dY / (1 - ratio) where the mask is set."""
    rate: Tensor | float = 0.5 if ratio is None else op.Cast(ratio, to=dy.dtype)
    scaled = op.Where(mask, dy / (op.like(1, dy) - rate), op.like(0, dy))
    if training is None or (training.const is not None and training.const.all()):
        return scaled
    return op.Where(training, scaled, dy)


def batch_scale(op: OpBuilder, x: Tensor, *, scale0: float, scale1: float, scale2: float) -> Any:
    """One operand, three multiples of it."""
    return x * scale0, x * scale1, x * scale2


def scaled_sum(
    op: OpBuilder, a: Tensor, b: Tensor, c: Tensor | None,
    *, scale_0: float, scale_1: float, scale_2: float | None = None,
) -> Tensor:  # fmt: skip
    """A weighted sum of two or three tensors."""
    total = a * scale_0 + b * scale_1
    return total if c is None or scale_2 is None else total + c * scale_2


def fake_quant(
    op: OpBuilder,
    x: Tensor,
    step: Tensor,
    zero: Tensor,
    *,
    quant_min: int = 0,
    quant_max: int = 255,
) -> Any:
    """Quantize and back; the mask says where nothing was cut off."""
    zero = op.Cast(zero, to=x.dtype)
    raw = op.Round(x / step) + zero
    cut = op.Clip(raw, op.like(quant_min, x), op.like(quant_max, x))
    mask = op.And(raw >= float(quant_min), raw <= float(quant_max))
    return (cut - zero) * step, mask


def fake_quant_grad(op: OpBuilder, dy: Tensor, mask: Tensor) -> Tensor:
    """Straight through, where nothing was cut off."""
    return dy * op.Cast(mask, to=dy.dtype) if mask.dtype == ir.DataType.BOOL else dy * mask


TABLE: dict[str, Lowering] = {
    "ReluGrad": relu_grad,
    "LeakyReluGrad": leaky_relu_grad,
    "SigmoidGrad": sigmoid_grad,
    "TanhGrad": tanh_grad,
    "GeluGrad": gelu_grad,
    "FastGeluGrad": fast_gelu_grad,
    "QuickGeluGrad": quick_gelu_grad,
    "BiasGeluGrad_dX": bias_gelu_grad,
    "BiasFastGeluGrad_dX": fast_gelu_grad,
    "SoftmaxGrad": softmax_grad,
    "LogSoftmaxGrad": log_softmax_grad,
    "SoftmaxGrad_13": softmax_grad_13,
    "LogSoftmaxGrad_13": log_softmax_grad_13,
    "DivGrad": div_grad,
    "Scale": scale,
    "DropoutGrad": dropout_grad,
    "BatchScale": batch_scale,
    "ScaledSum": scaled_sum,
    "FakeQuant": fake_quant,
    "FakeQuantGrad": fake_quant_grad,
}
