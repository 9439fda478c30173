"""Operators on integers that stand for floats, in the form that trains: dequantize, compute, round.

That is what onnxruntime makes of them when it loads a quantized model, the other way round; and
the gradient passes straight through the roundings (rules/quantization.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .rewrite import Lowering

MS = "com.microsoft"


def _real(op: OpBuilder, x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 0) -> Tensor:
    """What integers stand for; scales may be one for all, or one per entry of an axis."""
    return op.DequantizeLinear(x, scale, zero, axis=axis)


def _codes(op: OpBuilder, y: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The integers that stand for floats; they have the type of their zero point."""
    return op.QuantizeLinear(y, scale, zero)


def qlinear_conv(
    op: OpBuilder, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, b: Tensor | None,
    *, channels_last: int = 0, **attributes: Any,
) -> Tensor:  # fmt: skip
    """Conv; the bias counts in steps of both scales multiplied."""
    _channels_first("QLinearConv", channels_last)
    bias = None
    if b is not None:
        steps = op.Reshape(x_scale * w_scale, [-1])
        bias = op.Cast(b, to=x_scale.dtype) * steps
    y = op.Conv(_real(op, x, x_scale, x_zero), _real(op, w, w_scale, w_zero), bias, **attributes)
    return _codes(op, y, y_scale, y_zero)


def qlinear_matmul(
    op: OpBuilder, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    """MatMul; scales of A may be one per row, those of B one per column."""
    left = _real(op, a, a_scale, a_zero, axis=a.rank - 2 if a.rank > 1 else 0)
    right = _real(op, b, b_scale, b_zero, axis=b.rank - 1)
    return _codes(op, left @ right, y_scale, y_zero)


def qgemm(
    op: OpBuilder, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, c: Tensor | None, y_scale: Tensor | None, y_zero: Tensor | None,
    *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    """Gemm; the third operand counts in steps of α and both scales multiplied."""
    left, right = _real(op, a, a_scale, a_zero), _real(op, b, b_scale, b_zero, axis=1 - transB)
    shift = None
    if c is not None:
        shift = op.Cast(c, to=a_scale.dtype) * (a_scale * b_scale * alpha)
    y = op.Gemm(left, right, shift, alpha=alpha, transA=transA, transB=transB)
    return y if y_scale is None else _codes(op, y, y_scale, y_zero)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Lowering:
    def lowering(
        op: OpBuilder, a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor,
        b_scale: Tensor, b_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None,
    ) -> Tensor:  # fmt: skip
        y = function(_real(op, a, a_scale, a_zero), _real(op, b, b_scale, b_zero))
        return _codes(op, y, y_scale, y_zero)

    return lowering


def _unary(operator: str) -> Lowering:
    def lowering(
        op: OpBuilder, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor,
        y_zero: Tensor | None, *, channels_last: int = 0, **attributes: Any,
    ) -> Tensor:  # fmt: skip
        _channels_first(f"QLinear{operator}", channels_last)
        y = op.emit(operator, [_real(op, x, x_scale, x_zero)], 1, **attributes)[0]
        return _codes(op, y, y_scale, y_zero)

    return lowering


def qlinear_softmax(
    op: OpBuilder, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor,
    y_zero: Tensor | None, *, axis: int = -1, opset: int,
) -> Tensor:  # fmt: skip
    """Softmax; before opset 13 it was over all axes from `axis` on."""
    plain = _real(op, x, x_scale, x_zero)
    if opset >= 13 or axis % x.rank == x.rank - 1:
        return _codes(op, op.Softmax(plain, axis=axis), y_scale, y_zero)
    flat = op.Softmax(op.Flatten(plain, axis=axis), axis=-1)
    return _codes(op, op.reshape_like(flat, plain), y_scale, y_zero)


def qlinear_concat(
    op: OpBuilder, y_scale: Tensor, y_zero: Tensor, *parts: Tensor, axis: int
) -> Tensor:
    """Concat of tensors with a scale and a zero point each."""
    triples = zip(parts[::3], parts[1::3], parts[2::3])
    plain = [_real(op, codes, scale, zero) for codes, scale, zero in triples]
    return _codes(op, op.Concat(*plain, axis=axis), y_scale, y_zero)


def _channels_first(name: str, channels_last: int) -> None:
    if channels_last:
        raise ModelError(
            f"{name} with channels_last is not supported: onnxruntime chose that layout for this "
            "machine. Train the model that it was made from."
        )


# --- floats outside, integers inside -----------------------------------------------------------


def dynamic_quantize_matmul(
    op: OpBuilder, a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A rounded in steps of its own range, times a weight of integers."""
    codes, scale, zero = op.many("DynamicQuantizeLinear", a, outputs=3)
    for part, kind in ((codes, ir.DataType.UINT8), (scale, a.dtype), (zero, ir.DataType.UINT8)):
        part.value.type = ir.TensorType(kind)
    y = _real(op, codes, scale, zero) @ _real(op, b, b_scale, b_zero, axis=b.rank - 1)
    return y if bias is None else y + bias


def matmul_integer_to_float(
    op: OpBuilder, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None,
    b_zero: Tensor | None, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A product of integers, scaled."""
    left = _real(op, a, a_scale, a_zero, axis=a.rank - 2 if a.rank > 1 else 0)
    y = left @ _real(op, b, b_scale, b_zero, axis=b.rank - 1)
    return y if bias is None else y + bias


def dynamic_quantize_lstm(
    op: OpBuilder, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None,
    h: Tensor | None, c: Tensor | None, p: Tensor | None, w_scale: Tensor, w_zero: Tensor,
    r_scale: Tensor, r_zero: Tensor, **attributes: Any,
) -> Sequence[Tensor]:  # fmt: skip
    """LSTM with the weights that the integers stand for.

    onnxruntime also rounds the input and, in every step, the hidden state, to 256 levels of their
    range; that is not repeated here: outputs differ by about one such level.
    """

    def weight(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """(directions, in, 4·hidden) to (directions, 4·hidden, in); a scale for all or each."""
        shape = [0, 1, -1] if scale.rank == 2 else [-1, 1, 1]
        centred = op.Cast(codes, to=x.dtype) - op.Cast(op.Reshape(zero, shape), to=x.dtype)
        return op.Transpose(centred * op.Reshape(scale, shape), perm=[0, 2, 1])

    weights = weight(w, w_scale, w_zero), weight(r, r_scale, r_zero)
    return op.many("LSTM", x, *weights, b, lengths, h, c, p, outputs=3, **attributes)


QUANTIZED: dict[tuple[str, str], Lowering] = {
    ("", "QLinearConv"): qlinear_conv,
    ("", "QLinearMatMul"): qlinear_matmul,
    (MS, "QLinearConv"): qlinear_conv,
    (MS, "QGemm"): qgemm,
    (MS, "QLinearAdd"): _binary(lambda a, b: a + b),
    (MS, "QLinearMul"): _binary(lambda a, b: a * b),
    (MS, "QLinearSigmoid"): _unary("Sigmoid"),
    (MS, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MS, "QLinearSoftmax"): qlinear_softmax,
    (MS, "QLinearAveragePool"): _unary("AveragePool"),
    (MS, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MS, "QLinearConcat"): qlinear_concat,
    (MS, "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    (MS, "MatMulIntegerToFloat"): matmul_integer_to_float,
    (MS, "DynamicQuantizeLSTM"): dynamic_quantize_lstm,
}
