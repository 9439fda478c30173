"""Losses between embeddings: cosine, triplet, hinge."""

from __future__ import annotations

from ..block import BlockError
from ..emit import Emitter
from .common import INT64, Loss, target

TINY = 1e-12  # what PyTorch adds to the squared norms


class CosineEmbeddingLoss(Loss):
    """1 − cos(a, b) where the target is 1, max(0, cos(a, b) − margin) where it is −1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._margin = margin

    def build(self, input_name1: str, input_name2: str, target_name: str = "target") -> str:
        """Append the loss of two N×D tensors; the target is INT64[N], 1 or −1."""
        emit, a, b = self._emit, input_name1, input_name2
        axis = emit.rank(a) - 1
        t = target(emit, target_name, a, dtype=INT64, drop=axis)
        product = emit.reduce("ReduceSum", emit.mul(a, b), [axis])
        norms = [emit.shift(emit.reduce("ReduceSum", emit.mul(v, v), [axis]), TINY) for v in (a, b)]
        cosine = emit.div(product, emit.node("Sqrt", emit.mul(*norms)))
        similar = emit.mul(emit.is_equal(t, 1, a), emit.sub(emit.number(1.0, a), cosine))
        apart = emit.node("Relu", emit.shift(cosine, -self._margin))
        different = emit.mul(emit.is_equal(t, -1, a), apart)
        return self._reduce(emit, emit.add(similar, different))


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

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:
        """Append the loss of three N×D tensors."""
        emit = self._emit
        near = self._distance(emit, anchor_name, positive_name)
        far = self._distance(emit, anchor_name, negative_name)
        if self._swap:
            far = emit.node("Min", far, self._distance(emit, positive_name, negative_name))
        loss = emit.node("Relu", emit.shift(emit.sub(near, far), self._margin))
        return self._reduce(emit, loss)

    def _distance(self, emit: Emitter, a: str, b: str) -> str:
        difference = emit.shift(emit.sub(a, b), self._eps)
        axis = [emit.rank(a) - 1]
        if self._p == 2:
            square = emit.mul(difference, difference)
            return emit.node("Sqrt", emit.reduce("ReduceSum", square, axis))
        size = emit.node("Abs", difference)
        if self._p == 1:
            return emit.reduce("ReduceSum", size, axis)
        power = emit.node("Pow", size, emit.number(self._p, a))
        total = emit.reduce("ReduceSum", power, axis)
        return emit.node("Pow", total, emit.number(1.0 / self._p, a))


class HingeEmbeddingLoss(Loss):
    """x where the target is 1, max(0, margin − x) where it is −1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._margin = margin

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        t = target(emit, target_name, x)
        similar = emit.mul(emit.is_equal(t, 1, x), x)
        apart = emit.node("Relu", emit.sub(emit.number(self._margin, x), x))
        return self._reduce(emit, emit.add(similar, emit.mul(emit.is_equal(t, -1, x), apart)))
