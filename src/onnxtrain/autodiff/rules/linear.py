"""Matrix products and the determinant: MatMul, Gemm, Det."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import dim, line, vector


@gradient("Gemm")
def gemm(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    # Y = αA'B' + βC with A', B' possibly transposed: dA' = αdY·B'ᵀ, dB' = αA'ᵀ·dY
    if transA:
        da = op.Gemm(b, dy, alpha=alpha, transA=transB, transB=1)
    else:
        da = op.Gemm(dy, b, alpha=alpha, transB=1 - transB)
    if transB:
        db = op.Gemm(dy, a, alpha=alpha, transA=1, transB=transA)
    else:
        db = op.Gemm(a, dy, alpha=alpha, transA=1 - transA)
    if c is None:
        return da, db
    dc = op.sum_to(dy, c, y.shape, y)
    return da, db, dc if beta == 1.0 else dc * beta


@gradient("MatMul")
def matmul(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    if a.rank == 1 or b.rank == 1:
        return of_vectors(op, dy, a, b)
    da = dy @ op.transpose(b)
    if b.rank == 2:
        # A weight shared by the whole batch: fold the batch into the contraction.
        rows = (a, dy) if a.rank == 2 else (as_rows(op, a, a), as_rows(op, dy, b))
        return da, op.Gemm(*rows, transA=1)
    db = op.transpose(a) @ dy
    return _sum_batch(op, da, a, y), _sum_batch(op, db, b, y)


def as_rows(op: OpBuilder, x: Tensor, like: Tensor) -> Tensor:
    """`x` as a matrix with as many columns as `like` has."""
    return op.Reshape(x, vector(op, -1, dim(op, like, -1)))


def _sum_batch(op: OpBuilder, dx: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Sum over the leading axes along which `x` was broadcast."""
    assert x.shape is not None
    full = None if y.shape is None else (*y.shape[:-2], *x.shape[-2:])
    return op.sum_to(dx, x, full, dx)


def of_vectors(op: OpBuilder, dy: Tensor, a: Tensor, b: Tensor) -> Any:
    """At least one operand is a vector, and `dy` lacks the axis that it lacks."""
    if a.rank == 1 and b.rank == 1:
        return dy * b, dy * a
    if a.rank == 1:
        da = op.Squeeze(b @ op.Unsqueeze(dy, [-1]), [-1])
        lead = list(range(b.rank - 2))
        da = op.ReduceSum(da, lead, keepdims=0) if lead else da
        return da, op.Unsqueeze(a, [1]) * op.Unsqueeze(dy, [-2])
    return op.Unsqueeze(dy, [-1]) * b, op.Reshape(dy, [-1]) @ as_rows(op, a, a)


@gradient("Det", note="by cofactors: also right for singular matrices; meant for small ones")
def det(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    # ∂det A/∂A[i,j] is the cofactor: the determinant of A with row i replaced by unit row j.
    # All n² of them are one Det of shape [..., i, j, n, n]: no inverse, and right for singular A.
    number = line(op, dim(op, x, -1))
    same = op.Equal(op.Unsqueeze(number, [1]), number)
    replaced = op.Unsqueeze(same, [1, 3])  # [i, 1, row, 1]
    unit = op.Unsqueeze(op.Cast(same, to=x.dtype), [0, 2])  # [1, j, 1, column]
    cofactors = op.Det(op.Where(replaced, unit, op.Unsqueeze(x, [-4, -3])))
    return op.Unsqueeze(dy, [-2, -1]) * cofactors
