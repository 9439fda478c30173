"""Losses between embeddings: cosine, triplet, hinge."""

from __future__ import annotations

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import Loss, target_like

TINY = 1e-12  # what PyTorch adds to the squared norms


def _is(op: OpBuilder, t: Tensor, sign: int, like: Tensor) -> Tensor:
    """1 where a target of −1 and 1 has this sign, else 0."""
    return op.Cast(op.Equal(t, sign), to=like.dtype)


class CosineEmbeddingLoss(Loss):
    """1 − cos(a, b) where the target is 1, max(0, cos(a, b) − margin) where it is −1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._margin = margin

    def elements(self, op: OpBuilder, a: Tensor, b: Tensor, t: Tensor) -> Tensor:
        """The loss of each pair."""
        axes = [a.rank - 1]
        product = op.ReduceSum(a * b, axes, keepdims=0)
        norms = [op.ReduceSum(v * v, axes, keepdims=0) + TINY for v in (a, b)]
        cosine = product / op.Sqrt(norms[0] * norms[1])
        similar = _is(op, t, 1, a) * (1.0 - cosine)
        return similar + _is(op, t, -1, a) * op.Relu(cosine - self._margin)

    def build(self, input_name1: str, input_name2: str, target_name: str = "target") -> str:  # type: ignore[override]
        """Append the loss of two N×D tensors; the target is INT64[N], 1 or −1."""
        op = self._builder
        a, b = op.value(input_name1), op.value(input_name2)
        t = target_like(op, target_name, a, dtype=ir.DataType.INT64, drop=a.rank - 1)
        return op.append(self.loss(op, a, b, t))


class TripletMarginLoss(Loss):
    """max(0, margin + d(anchor, positive) − d(anchor, negative)), d the p-norm of the difference.

    Args:
        margin: the margin.
        p: which norm.
        eps: added to each difference, as PyTorch does.
        swap: use d(positive, negative) where it is smaller than d(anchor, negative).
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        if not p > 0:
            raise BlockError(f"p must be positive, not {p}.")
        self._margin, self._p, self._eps, self._swap = margin, p, eps, swap

    def elements(self, op: OpBuilder, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """The loss of each triple."""
        near = self._distance(op, anchor, positive)
        far = self._distance(op, anchor, negative)
        if self._swap:
            far = op.Min(far, self._distance(op, positive, negative))
        return op.Relu(near - far + self._margin)

    def _distance(self, op: OpBuilder, a: Tensor, b: Tensor) -> Tensor:
        difference, axes = a - b + self._eps, [a.rank - 1]
        if self._p == 2:
            return op.Sqrt(op.ReduceSum(difference * difference, axes, keepdims=0))
        size = op.Abs(difference)
        if self._p == 1:
            return op.ReduceSum(size, axes, keepdims=0)
        total = op.ReduceSum(size ** op.like(self._p, a), axes, keepdims=0)
        return total ** op.like(1.0 / self._p, a)

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:  # type: ignore[override]
        """Append the loss of three N×D tensors."""
        op = self._builder
        triple = [op.value(n) for n in (anchor_name, positive_name, negative_name)]
        return op.append(self.loss(op, *triple))


class HingeEmbeddingLoss(Loss):
    """x where the target is 1, max(0, margin − x) where it is −1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._margin = margin

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """x, or max(0, margin − x)."""
        return _is(op, t, 1, x) * x + _is(op, t, -1, x) * op.Relu(self._margin - x)
