"""Fourier transforms: DFT in both its forms, and STFT.

A transform is linear, so its gradient is its adjoint: for the full transform the other direction
without (or with) the division by N. What the operator cut off or filled up comes back as zeros or
is dropped, and a real signal takes the real part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ..registry import gradient, zero_gradient
from ._index import Size, add_along, as_int64, dim, line, scalar, vector

zero_gradient(
    "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix",
    note="made from sizes, not from data",
)  # fmt: skip


@gradient("DFT", stops=(1, 2))
def dft(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    dft_length: Tensor | None,
    axis_operand: Tensor | None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Any:
    options = {"inverse": inverse, "onesided": onesided}
    if op.opset >= 20:
        if axis_operand is not None and axis_operand.const is None:
            dy, y, middle = (_with_axis_1(op, t, x, axis_operand) for t in (dy, y, x))
            dx = _transformed_back(op, dy, y, middle, dft_length, 1, **options)
            return op.reshape_like(dx, x)
        axis = -2 if axis_operand is None else int(axis_operand.const)  # type: ignore[arg-type]
    return _transformed_back(op, dy, y, x, dft_length, axis % x.rank, **options)


def _with_axis_1(op: OpBuilder, t: Tensor, x: Tensor, axis: Tensor) -> Tensor:
    """A tensor as [before the axis, the axis, behind it, parts], the axis known at run time."""
    sizes = op.shape_of(x)
    position = op.Mod(op.Reshape(as_int64(op, axis), [1]), op.Shape(sizes))
    before = op.ReduceProd(op.Concat([1], op.Slice(sizes, [0], position), axis=0), [0])
    behind = op.ReduceProd(op.Concat([1], op.Slice(sizes, position + 1, [-1]), axis=0), [0])
    own = op.Gather(op.shape_of(t), op.Concat(position, [-1], axis=0))
    length, parts = op.many("Split", own, op.const([1, 1]), outputs=2, axis=0)
    seen: Tensor = op.Reshape(t, op.Concat(before, length, behind, parts, axis=0))
    seen.value.shape = ir.Shape([None, None, None, t.dim(-1)])
    return seen


def _transformed_back(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    dft_length: Tensor | None,
    axis: int,
    *,
    inverse: int,
    onesided: int,
) -> Tensor:
    length = dim(op, x, axis)
    if onesided and inverse:  # half a spectrum to a real signal
        count = _number(op, dft_length, (length - 1) * 2)
        spectrum = _dft(op, dy, axis, onesided=1) * _halves(op, count, dy, x.rank - axis)
        half = count // 2 + 1 if isinstance(count, int) else None
        return _fit(op, spectrum, axis, half, length)
    count = _number(op, dft_length, length)
    dx = _adjoint(op, dy, y, axis, count, inverse=inverse, onesided=onesided)
    return _parts(op, _fit(op, dx, axis, count, length), x)


def _number(op: OpBuilder, operand: Tensor | None, default: Size) -> Size:
    """An optional scalar operand as a size."""
    if operand is None:
        return default
    if operand.const is not None:
        return int(operand.const.item())
    return op.Reshape(as_int64(op, operand), [1])


def _dft(op: OpBuilder, x: Tensor, axis: int, *, inverse: int = 0, onesided: int = 0) -> Tensor:
    """DFT in the form of the opset that is emitted."""
    if op.opset < 20:
        return op.DFT(x, axis=axis, inverse=inverse, onesided=onesided)
    where = op.const(np.array(axis, np.int64))
    return op.DFT(x, None, where, inverse=inverse, onesided=onesided)


def _adjoint(
    op: OpBuilder, dy: Tensor, y: Tensor, axis: int, count: Size, *, inverse: int, onesided: int
) -> Tensor:
    """The adjoint of a transform of `count` points, of which onesided kept the first half."""
    if onesided:
        dy = _fit(op, dy, axis, _length(op, y, axis), count)
    factor = (
        op.like(count, dy) if isinstance(count, int) else op.Cast(scalar(op, count), to=dy.dtype)
    )
    result = _dft(op, dy, axis, inverse=1 - inverse)
    return result / factor if inverse else result * factor


def _halves(op: OpBuilder, count: Size, like: Tensor, behind: int) -> Tensor:
    """Weights of a half spectrum: inner points stand for two, all divided by the length."""
    total = op.const(np.array([count])) if isinstance(count, int) else count
    twice = line(op, count + 1) if isinstance(count, int) else op.Range(0, scalar(op, count + 1), 1)
    even = op.Slice(twice, [0], [np.iinfo(np.int64).max], [0], [2])  # 2k for k = 0 … N/2
    alone = op.Or(op.Equal(even, 0), op.Equal(even, total))
    one, two = op.like(1, like), op.like(2, like)
    weights = op.Where(alone, one, two) / op.Cast(total, to=like.dtype)
    return op.Unsqueeze(weights, list(range(1, behind)))


def _fit(op: OpBuilder, x: Tensor, axis: int, have: Size | None, want: Size) -> Tensor:
    """Cut or fill up with zeros at the end of an axis."""
    if isinstance(have, int) and isinstance(want, int):
        if have == want:
            return x
        if have > want:
            return op.Slice(x, [0], [want], [axis])
    have = _length(op, x, axis) if have is None else have
    return op.Pad(x, vector(op, 0, want - have), None, op.const([axis]))


def _length(op: OpBuilder, x: Tensor, axis: int) -> Size:
    """A dimension also where the rank is not known, as of STFT's result."""
    return dim(op, x, axis) if x.shape is not None else op.Gather(op.shape_of(x), [axis], axis=0)


def _parts(op: OpBuilder, dx: Tensor, x: Tensor) -> Tensor:
    """Real and imaginary part, or only the real one, as the signal has."""
    parts = dim(op, x, -1)
    return dx if parts == 2 else op.Slice(dx, [0], vector(op, parts), [-1])


@gradient("STFT", stops=(1, 3))
def stft(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None,
    frame_length: Tensor | None,
    *,
    onesided: int = 1,
) -> Any:
    whole = signal
    if signal.rank == 2:  # onnxruntime takes real signals without the axis of parts, too
        signal = op.Unsqueeze(signal, [2])
        assert whole.value.shape is not None
        signal.value.shape = ir.Shape([*whole.value.shape.dims, 1])
    count = _number(op, frame_length, 0 if window is None else dim(op, window, 0))
    dframes = _adjoint(op, dy, y, 2, count, inverse=0, onesided=onesided)
    dframes = _parts(op, dframes, signal)
    first = op.Unsqueeze(line(op, _length(op, y, 1)) * as_int64(op, frame_step), [1])
    where = first + line(op, count)  # [frame, position in it]
    weighed = dframes if window is None else dframes * op.Unsqueeze(window, [1])
    dsignal = add_along(op, signal, where, weighed, 1)
    dsignal = dsignal if whole.rank == 3 else op.Squeeze(dsignal, [2])
    if window is None:
        return dsignal
    dwindow = op.ReduceSum(dframes * op.Gather(signal, where, axis=1), [0, 1, 3], keepdims=0)
    return dsignal, None, dwindow
