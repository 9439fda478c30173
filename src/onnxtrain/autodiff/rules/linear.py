"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import gradient


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
    scaled = dy if alpha == 1.0 else dy * alpha
    if transA:
        da = op.Gemm(b, scaled, transA=transB, transB=1)
    else:
        da = op.Gemm(scaled, b, transB=1 - transB)
    if transB:
        db = op.Gemm(scaled, a, transA=1, transB=transA)
    else:
        db = op.Gemm(a, scaled, transA=1 - transA)
    if c is None:
        return da, db
    dc = dy if beta == 1.0 else dy * beta
    return da, db, op.sum_to(dc, c, y.shape, y)


@gradient("MatMul")
def matmul(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    if a.rank == 1 or b.rank == 1:
        return _vector_matmul(op, dy, y, a, b)
    da = dy @ op.transpose(b)
    if b.rank == 2 and a.rank > 2:
        # A weight shared by the whole batch: fold the batch into the contraction.
        rows = op.Reshape(a, op.Concat(op.const([-1]), op.dim_of(a, -1), axis=0))
        grads = op.Reshape(dy, op.Concat(op.const([-1]), op.dim_of(b, -1), axis=0))
        return da, op.transpose(rows, 1, 0) @ grads
    db = op.transpose(a) @ dy
    return _sum_batch(op, da, a, dy), _sum_batch(op, db, b, dy)


def _sum_batch(op: OpBuilder, dx: Tensor, x: Tensor, dy: Tensor) -> Tensor:
    """Sum over the leading axes along which `x` was broadcast."""
    shape = dy.shape
    if shape is None or x.shape is None:
        return dx
    full = (*shape[:-2], *x.shape[-2:])
    return op.sum_to(dx, x, full, dx)


def _vector_matmul(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    """One operand is a vector: put the missing axis in, differentiate, take it out."""
    if a.rank == 1:
        dy = op.Unsqueeze(dy, [-2 if b.rank > 1 else -1])
    a2 = op.Unsqueeze(a, [0]) if a.rank == 1 else a
    if b.rank == 1:
        dy = op.Unsqueeze(dy, [-1])
    b2 = op.Unsqueeze(b, [1]) if b.rank == 1 else b
    if a.rank == 1 and b.rank == 1:
        return op.Mul(op.Reshape(dy, [1]), b), op.Mul(op.Reshape(dy, [1]), a)
    if a.rank == 1:
        lead = list(range(b.rank - 2))
        full = op.Squeeze(dy @ op.Transpose(b2, perm=_swap(b.rank)), [-2])
        da = op.ReduceSum(full, lead, keepdims=0) if lead else full
        return da, op.Transpose(a2, perm=[1, 0]) @ dy
    rows = op.Mul(dy, op.Unsqueeze(op.Squeeze(b2, [1]), [0]))
    lead = list(range(a.rank - 2))
    product = op.Transpose(a, perm=_swap(a.rank)) @ dy
    db = op.Squeeze(product, [-1])
    return rows, op.ReduceSum(db, lead, keepdims=0) if lead else db


def _swap(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]
