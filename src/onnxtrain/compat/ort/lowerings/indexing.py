"""Gradients of gathers and slices, joins and splits that carry lengths, dynamic broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering
from ._vjp import unknown_rank, vjp


def _operand(op: OpBuilder, shape: Tensor, dtype: ir.DataType) -> Tensor:
    """A tensor of the shape given: the one it was read from, else zeros.

    Only its shape is of interest, and a rule that knows it as a value needs no other node.
    """
    maker = shape.value.producer()
    if maker is not None and maker.op_type == "Shape" and not maker.attributes:
        source = maker.inputs[0]
        if source is not None and source.shape is not None and source.dtype == dtype:
            return op.tensor(source)
    zeros = op.full(shape, 0, dtype)
    if shape.const is not None:
        zeros.value.shape = ir.Shape([int(d) for d in shape.const])
    else:
        rank = shape.dim(0) if shape.shape is not None else None
        if not isinstance(rank, int):
            raise unknown_rank(shape.name)
        zeros.value.shape = ir.Shape([None] * rank)
    return zeros


def gather_grad(op: OpBuilder, shape: Tensor, indices: Tensor, dy: Tensor, *, axis: int = 0) -> Any:
    """Rows of dY added up where they were read."""
    x = _operand(op, shape, dy.dtype)
    return vjp(op, lambda op, x, i: op.Gather(x, i, axis=axis), [x, indices], [dy], [0])


def gather_elements_grad(
    op: OpBuilder, dy: Tensor, shape: Tensor, indices: Tensor, *, axis: int = 0
) -> Any:
    """Elements of dY added up where they were read."""
    x = _operand(op, shape, dy.dtype)
    return vjp(op, lambda op, x, i: op.GatherElements(x, i, axis=axis), [x, indices], [dy], [0])


def gather_nd_grad(
    op: OpBuilder, shape: Tensor, indices: Tensor, dy: Tensor, *, batch_dims: int = 0
) -> Any:
    """Slices of dY added up where they were read."""
    x = _operand(op, shape, dy.dtype)
    indices = op.Cast(indices, to=ir.DataType.INT64) if indices.dtype != 7 else indices
    return vjp(
        op, lambda op, x, i: op.GatherND(x, i, batch_dims=batch_dims), [x, indices], [dy], [0]
    )


def slice_grad(
    op: OpBuilder, dy: Tensor, shape: Tensor, starts: Tensor, ends: Tensor,
    axes: Tensor | None, steps: Tensor | None,
) -> Any:  # fmt: skip
    """dY put back between zeros."""
    x = _operand(op, shape, dy.dtype)

    def forward(op: OpBuilder, x: Tensor, *bounds: Tensor | None) -> Tensor:
        return op.Slice(x, *bounds)

    return vjp(op, forward, [x, starts, ends, axes, steps], [dy], [0])


def concat_training(op: OpBuilder, *parts: Tensor, axis: int) -> Any:
    """Concat, and how long each part is along the axis."""
    lengths = op.Concat(*(op.dim_of(p, axis) for p in parts), axis=0)
    known = [p.dim(axis) for p in parts]
    sizes = [d for d in known if isinstance(d, int)]
    if len(sizes) == len(known):
        lengths = op.const(np.array(sizes, np.int64))
    return op.Concat(*parts, axis=axis), lengths


def split_training(
    op: OpBuilder, x: Tensor, lengths: Tensor, *, axis: int = 0, outputs: tuple[bool, ...]
) -> Any:
    """Split by lengths given as a tensor."""
    return op.many("Split", x, lengths, outputs=len(outputs), axis=axis)


def reduce_sum_training(
    op: OpBuilder, x: Tensor, axes: Tensor, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ReduceSum with axes as an operand, from before that was standard."""
    return op.ReduceSum(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def broadcast_gradient_args(op: OpBuilder, a: Tensor, b: Tensor) -> Any:
    """The axes over which the gradient of each operand of a broadcast is summed."""
    sizes = [t.dim(0) if t.shape is not None else None for t in (a, b)]
    if not all(isinstance(s, int) for s in sizes):
        raise unknown_rank(a.name)
    ranks = [s for s in sizes if isinstance(s, int)]
    rank = max(ranks)
    padded = [_padded(op, t, rank - n) for t, n in zip((a, b), ranks)]
    differ = op.Not(op.Equal(padded[0], padded[1]))
    results = []
    for shape, n in zip(padded, ranks):
        broadcast = op.And(differ, op.Equal(shape, op.const(np.array(1, np.int64))))
        leading = np.arange(rank) < rank - n
        if leading.any():
            broadcast = op.Or(broadcast, op.const(leading))
        results.append(op.Reshape(op.NonZero(broadcast), [-1]))
    return results


def _padded(op: OpBuilder, shape: Tensor, missing: int) -> Tensor:
    if not missing:
        return shape
    return op.Concat(op.const(np.ones(missing, np.int64)), shape, axis=0)


def reduce_all_l2(op: OpBuilder, *tensors: Tensor) -> Tensor:
    """The common 2-norm."""
    total: Tensor | None = None
    for x in tensors:
        square = op.ReduceSumSquare(op.Cast(x, to=ir.DataType.FLOAT), keepdims=0)
        total = square if total is None else total + square
    assert total is not None
    return op.Sqrt(total)


TABLE: dict[str, Lowering] = {
    "GatherGrad": gather_grad,
    "GatherElementsGrad": gather_elements_grad,
    "GatherNDGrad": gather_nd_grad,
    "SliceGrad": slice_grad,
    "ConcatTraining": concat_training,
    "SplitTraining": split_training,
    "ReduceSumTraining": reduce_sum_training,
    "BroadcastGradientArgs": broadcast_gradient_args,
    "ReduceAllL2": reduce_all_l2,
}
