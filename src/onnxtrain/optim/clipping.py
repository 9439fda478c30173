"""Clipping by the common norm of several gradients, in a form that does not overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.tensor import dims_of
from ..passes.long_sums import AXES_ARE_OPERANDS, TOO_MANY_NUMBERS, row_length

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
SHRINK = {ir.DataType.FLOAT: 2.0**-80, ir.DataType.DOUBLE: 2.0**-560}
"""With this factor 10⁹ squares of the largest number of the type add up to a finite one."""

Squares = Callable[[float], Tensor]
"""Gives the sum of the squares of all gradients, each multiplied by a number before."""


def norm_coefficient(op: OpBuilder, gradients: Sequence[Tensor], max_norm: float) -> Tensor:
    """The factor that brings the common norm of several gradients down to `max_norm`."""
    wide = [op.Cast(g, to=ir.DataType.FLOAT) if g.dtype in HALVES else g for g in gradients]
    limit = op.const(np.array(max_norm), wide[0].dtype)
    return op.Min(norm_ratio(op, lambda factor: sum_of_squares(op, wide, factor), limit), 1.0)


def norm_ratio(
    op: OpBuilder,
    squares: Squares,
    limit: Tensor,
    *,
    scale: Tensor | None = None,
    branches: bool = True,
) -> Tensor:
    """``limit / (norm + 1e-6)``, a tensor without dimensions (or of one, where `limit` has one).

    A square overflows where its root is far from it, in single precision at 1.8e19. When the sum is
    infinite it is computed again from gradients made smaller by a power of two.

    Args:
        op: the builder.
        squares: gives sums of squares.
        limit: of the norm.
        scale: what the gradients are to be multiplied by.
        branches: compute again inside an If, only when it is needed: that costs a microsecond, and
            nothing per element. On a GPU its condition would have to come to the host, so that
            without it both are computed.
    """
    total = squares(1.0)
    dtype = total.dtype
    norm = op.Sqrt(total)
    usual = limit / ((norm if scale is None else norm * scale) + 1e-6)
    shrink = SHRINK[dtype]

    def again() -> Tensor:
        smaller = op.Sqrt(squares(shrink))
        return limit * op.like(shrink, limit) / (smaller if scale is None else smaller * scale)

    is_huge = total > float(np.finfo(dtype.numpy()).max)
    if not branches:
        return op.Where(is_huge, again(), usual)
    rank = limit.rank

    def typed(result: Tensor) -> list[Tensor]:
        result.value.type, result.value.shape = ir.TensorType(dtype), ir.Shape([1] * rank)
        return [result]

    stem = f"{op.scope}/branch" if op.scope else "branch"
    right = op.If(
        is_huge,
        then_branch=op.body(op.names.fresh(stem), [], lambda: typed(again())),
        else_branch=op.body(op.names.fresh(stem), [], lambda: typed(op.Identity(usual))),
    )
    return typed(right)[0]


def sum_of_squares(op: OpBuilder, tensors: Sequence[Tensor], factor: float = 1.0) -> Tensor:
    """The sum of the squares of all elements, each multiplied by a number before."""
    scaled = tensors if factor == 1.0 else [t * factor for t in tensors]
    squares = [square_sum(op, x) for x in scaled]
    total = squares[0] if len(squares) == 1 else op.Sum(*squares)
    total.value.shape = ir.Shape([])
    return total


def square_sum(op: OpBuilder, x: Tensor) -> Tensor:
    """The sum of the squares of one tensor; of a large one by rows, see `passes.long_sums`."""
    dims = dims_of(x.value) or ()
    count = math.prod(d for d in dims if isinstance(d, int))
    is_long = all(isinstance(d, int) for d in dims) and count >= TOO_MANY_NUMBERS
    width = row_length(count) if is_long and x.dtype == ir.DataType.FLOAT else 0
    if not width:
        return op.ReduceSumSquare(x, keepdims=0)
    rows = op.Reshape(x, [count // width, width])
    if op.opset < AXES_ARE_OPERANDS:
        return op.ReduceSum(op.ReduceSumSquare(rows, axes=[1], keepdims=0), keepdims=0)
    return op.ReduceSum(op.ReduceSumSquare(rows, [1], keepdims=0), keepdims=0)
