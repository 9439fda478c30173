"""Quantization, as a straight-through estimator: the QDQ form of quantization-aware training.

QuantizeLinear rounds, so its derivative is zero; what trains is the estimator that PyTorch's
``fake_quantize_per_tensor_affine`` uses: the gradient passes as if nothing was rounded, wherever
the value was inside the range of the integer type, and is zero where it was clipped. The gradient
of a scale is that of a learned step size (LSQ): with y = s·(q − z) and q = round(x/s) + z, the
rounding passed straight through, ∂y/∂s is q − z − x/s inside the range and q − z where it was
clipped, as in PyTorch (``_fake_quantize_learnable_per_tensor_affine``). Zero points are integers
and get none. Between the two operators the gradient belongs to an integer tensor and has
the float type of the scale; `straight_through` tells the walk to let it pass.

Integer products are exact: theirs is the gradient of the same product of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient, gradient_multi
from ._index import dim, vector
from .conv import input_gradient
from .linear import matmul
from .windows import axes_of, kernel_of

ESTIMATOR = "straight-through inside the representable range; scale: learned step size (LSQ)"
DYNAMIC = "straight-through; none through the scale and zero point that it chooses"


@gradient("QuantizeLinear", stops=(2,), straight_through=True, note=ESTIMATOR)
def quantize_linear(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    *,
    axis: int = 1,
    block_size: int = 0,
) -> Any:
    step = op.Cast(along_axis(op, scale, x, axis, block_size), to=x.dtype)
    code = op.Round(x / step)
    if zero_point is not None:
        code = code + op.Cast(along_axis(op, zero_point, x, axis, block_size), to=x.dtype)
    low, high = _range(y.dtype)
    inside = op.And(op.GreaterOrEqual(code, low), op.LessOrEqual(code, high))
    dx = op.Where(inside, op.Cast(dy, to=x.dtype) / step, 0)
    return dx, collected(op, -dx * (x / step), scale, x, axis, block_size)


@gradient("DequantizeLinear", stops=(2,), straight_through=True, note=ESTIMATOR)
def dequantize_linear(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    *,
    axis: int = 1,
    block_size: int = 0,
) -> Any:
    code = op.Cast(x, to=scale.dtype)
    if zero_point is not None:
        code = code - op.Cast(along_axis(op, zero_point, x, axis, block_size), to=scale.dtype)
    dx = dy * along_axis(op, scale, x, axis, block_size)
    return dx, collected(op, dy * code, scale, x, axis, block_size)


@gradient_multi("DynamicQuantizeLinear", straight_through=True, note=DYNAMIC)
def dynamic_quantize_linear(
    op: OpBuilder, dys: Sequence[Tensor | None], ys: Sequence[Tensor], x: Tensor
) -> Any:
    # The scale is chosen so that every value is in range: nothing is clipped.
    return None if dys[0] is None else dys[0] / op.output(1)


# --- integer products ---------------------------------------------------------------------------


@gradient("MatMulInteger", stops=(2, 3), straight_through=True, note=DYNAMIC)
def matmul_integer(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None,
    b_zero: Tensor | None,
) -> Any:
    if a_zero is not None and a_zero.rank == 1 and a_zero.static_shape != (1,):
        a_zero = op.Unsqueeze(a_zero, [1])  # one per row
    plain = _centred(op, a, a_zero, dy), _centred(op, b, b_zero, dy)
    return matmul(op, dy, y, *plain)


@gradient("ConvInteger", stops=(1, 2, 3), straight_through=True, note=DYNAMIC)
def conv_integer(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    if w_zero is not None and w_zero.rank == 1:
        w_zero = op.Reshape(w_zero, [-1, *[1] * (w.rank - 1)])  # one per output channel
    axes = axes_of(op, x, y, kernel_of(kernel_shape, w), strides, dilations, pads, auto_pad)
    return input_gradient(op, dy, _centred(op, w, w_zero, dy), axes, group)


def _centred(op: OpBuilder, codes: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """Integers minus their zero point, as floats."""
    number = op.Cast(codes, to=like.dtype)
    if zero is not None:
        number = number - op.Cast(zero, to=like.dtype)
    number.value.shape = None if codes.value.shape is None else codes.value.shape.copy()
    return number


def _range(dtype: ir.DataType) -> tuple[float, float]:
    """Smallest and largest number of an integer or 8-bit float type."""
    if dtype.is_integer():
        bits = dtype.bitwidth
        return (
            (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
            if dtype.is_signed()
            else (0.0, 2.0**bits - 1)
        )
    return -FLOAT8[dtype.name], FLOAT8[dtype.name]


FLOAT8 = {
    "FLOAT8E4M3FN": 448.0,
    "FLOAT8E4M3FNUZ": 240.0,
    "FLOAT8E5M2": 57344.0,
    "FLOAT8E5M2FNUZ": 57344.0,
    "FLOAT4E2M1": 6.0,
}


def along_axis(op: OpBuilder, p: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point, per tensor, per axis or per block, in a shape that meets x."""
    if p.rank == 0 or p.static_shape == (1,):
        return p
    axis %= x.rank
    if not block_size:
        return op.Unsqueeze(p, list(range(1, x.rank - axis))) if axis < x.rank - 1 else p
    # Repeat every entry block_size times; the last block may be a short one.
    sizes = [dim(op, p, a) for a in range(p.rank)]
    wide = [*sizes[: axis + 1], block_size, *sizes[axis + 1 :]]
    flat = [*sizes[:axis], sizes[axis] * block_size, *sizes[axis + 1 :]]
    repeated = op.Reshape(
        op.Expand(op.Unsqueeze(p, [axis + 1]), vector(op, *wide)), vector(op, *flat)
    )
    return op.Slice(repeated, [0], vector(op, dim(op, x, axis)), [axis])


def collected(op: OpBuilder, t: Tensor, p: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """What belongs to each entry of a scale, summed: the opposite of `along_axis`."""
    t = t if t.dtype == p.dtype else op.Cast(t, to=p.dtype)
    if p.rank == 0 or p.static_shape == (1,):
        total = op.ReduceSum(t, keepdims=0)
        return total if p.rank == 0 else op.Reshape(total, [1])
    axis %= x.rank
    if not block_size:
        return op.ReduceSum(t, [a for a in range(x.rank) if a != axis], keepdims=0)
    blocks = dim(op, p, axis)
    missing = blocks * block_size - dim(op, x, axis)
    t = op.Pad(t, vector(op, 0, missing), None, op.const([axis]))
    sizes = [dim(op, p, a) for a in range(p.rank)]
    parts = op.Reshape(t, vector(op, *sizes[: axis + 1], block_size, *sizes[axis + 1 :]))
    return op.ReduceSum(parts, [axis + 1], keepdims=0)
