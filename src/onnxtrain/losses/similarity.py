"""Losses between embeddings of texts or other things, with the names of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import Loss

TINY = 1e-24
"""Added to squared norms: its root is the least norm that PyTorch divides by."""
FAR = -1e12


def normalized(op: OpBuilder, x: Tensor) -> Tensor:
    """Rows of a matrix, each of length 1."""
    return x / op.Sqrt(op.ReduceSum(x * x, [1], keepdims=1) + TINY)


def cosines(op: OpBuilder, a: Tensor, b: Tensor) -> Tensor:
    """cos(aᵢ, bᵢ) for each row i."""
    return op.ReduceSum(normalized(op, a) * normalized(op, b), [1], keepdims=0)


class BetweenEmbeddings(Loss):
    """What losses of this file share: embeddings N×D as inputs, and perhaps a number per row."""

    count: tuple[int, int | None] = (2, 2)
    """Least and largest number of embeddings."""
    has_target = False
    """Whether each row has a number to learn, FLOAT[N]."""

    def build(self, *names: str, target_name: str = "target") -> str:
        """Append the loss of N×D tensors; what is to be learned becomes a graph input.

        Args:
            names: of the embeddings.
            target_name: of the numbers, where the loss takes some.
        """
        op = self._builder
        least, most = self.count
        if len(names) < least or (most is not None and len(names) > most):
            number = f"{least}" if least == most else f"at least {least}"
            raise BlockError(
                f"{type(self).__name__} takes {number} embeddings, not {len(names)}: name them "
                "with loss_input_names."
            )
        embeddings = [op.value(n) for n in names]
        for x in embeddings:
            if x.rank != 2:
                raise ModelError(
                    f"{type(self).__name__} takes one vector per row, and {x.name!r} has {x.rank} "
                    "dimensions. onnxtrain.text.sentence_encoder adds the pooling."
                )
        target = []
        if self.has_target:
            target = [op.input(target_name, embeddings[0].dtype, [embeddings[0].dim(0)])]
        return op.append(self.loss(op, *embeddings, *target), "loss")


class MultipleNegativesRankingLoss(BetweenEmbeddings):
    """Each anchor against its own positive, and all others of the batch as negatives.

    ``lᵢ = log Σⱼ exp(s·cos(aᵢ, cⱼ)) − s·cos(aᵢ, pᵢ)``, c being all positives and, where given, all
    negatives. The larger the batch, the harder the task.

    Args:
        scale: s, the inverse of a temperature.
        reduction: "mean", "sum" or "none".
    """

    count = (2, None)

    def __init__(self, scale: float = 20.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._scale = _positive(scale, "scale")

    def elements(self, op: OpBuilder, anchor: Tensor, *others: Tensor) -> Tensor:
        """The loss of each anchor."""
        a, candidates = normalized(op, anchor), [normalized(op, x) for x in others]
        everything = op.Concat(*candidates, axis=0) if len(candidates) > 1 else candidates[0]
        scores = (a @ op.Transpose(everything, perm=[1, 0])) * self._scale
        own = op.ReduceSum(a * candidates[0], [1], keepdims=0) * self._scale
        return op.ReduceLogSumExp(scores, [1], keepdims=0) - own


class CosineSimilarityLoss(BetweenEmbeddings):
    """(cos(a, b) − t)² for pairs with a similarity t."""

    has_target = True

    def elements(self, op: OpBuilder, a: Tensor, b: Tensor, t: Tensor) -> Tensor:
        """The loss of each pair."""
        difference = cosines(op, a, b) - t
        return difference * difference


class CoSENTLoss(BetweenEmbeddings):
    """Pairs in the right order: ``log(1 + Σ exp(s·(cos(pairᵢ) − cos(pairⱼ))))``, tᵢ < tⱼ.

    Only the order of the similarities t counts, and it is compared within the batch, so the loss is
    one number whatever the reduction.

    Args:
        scale: s, the inverse of a temperature.
    """

    has_target = True

    def __init__(self, scale: float = 20.0) -> None:
        super().__init__()
        self._scale = _positive(scale, "scale")

    def loss(self, op: OpBuilder, a: Tensor, b: Tensor, t: Tensor) -> Tensor:
        """Of all pairs of pairs."""
        scores = cosines(op, a, b) * self._scale
        differences = op.Unsqueeze(scores, [1]) - op.Unsqueeze(scores, [0])
        wrong_order = op.Unsqueeze(t, [1]) < op.Unsqueeze(t, [0])
        exponents = op.Where(wrong_order, differences, op.like(FAR, scores))
        zero = op.const(np.zeros(1), scores.dtype)
        together = op.Concat(zero, op.Reshape(exponents, [-1]), axis=0)
        return op.ReduceLogSumExp(together, [0], keepdims=0)


class TripletLoss(BetweenEmbeddings):
    """max(0, d(anchor, positive) − d(anchor, negative) + margin).

    Args:
        distance_metric: "euclidean", "manhattan", or "cosine" for 1 − cos.
        triplet_margin: the margin.
        reduction: "mean", "sum" or "none".
    """

    count = (3, 3)

    def __init__(
        self,
        distance_metric: str = "euclidean",
        triplet_margin: float = 5.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        if distance_metric not in {"euclidean", "manhattan", "cosine"}:
            raise BlockError(
                f"distance_metric is 'euclidean', 'manhattan' or 'cosine', not {distance_metric!r}."
            )
        self._metric, self._margin = distance_metric, triplet_margin

    def elements(self, op: OpBuilder, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """The loss of each triple."""
        near, far = (self._distance(op, anchor, x) for x in (positive, negative))
        return op.Relu(near - far + self._margin)

    def _distance(self, op: OpBuilder, a: Tensor, b: Tensor) -> Tensor:
        if self._metric == "cosine":
            return 1.0 - cosines(op, a, b)
        difference = a - b + 1e-6  # as PyTorch does, and the root has a gradient at 0
        if self._metric == "manhattan":
            return op.ReduceSum(op.Abs(difference), [1], keepdims=0)
        return op.Sqrt(op.ReduceSum(difference * difference, [1], keepdims=0))


class MatryoshkaLoss(BetweenEmbeddings):
    """Another loss of this file on the first numbers of each embedding, for several lengths.

    Embeddings that are learned so can be cut to any of the lengths. Each is normalised after the
    cut: ``Σ wₖ · loss(a[:dₖ]/|a[:dₖ]|, …)``.

    Args:
        loss: the loss, `MultipleNegativesRankingLoss()` say.
        matryoshka_dims: lengths; the full one is one of them.
        matryoshka_weights: a weight for each, by default 1.
    """

    def __init__(
        self,
        loss: BetweenEmbeddings,
        matryoshka_dims: Sequence[int],
        matryoshka_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(loss, BetweenEmbeddings):
            raise BlockError(
                f"MatryoshkaLoss takes a loss between embeddings, not {type(loss).__name__}."
            )
        self._inner, self._dims = loss, [int(d) for d in matryoshka_dims]
        self.count, self.has_target = loss.count, loss.has_target
        weights = [1.0] * len(self._dims) if matryoshka_weights is None else matryoshka_weights
        if not self._dims or min(self._dims) < 1 or len(weights) != len(self._dims):
            raise BlockError("matryoshka_dims are positive numbers, with a weight for each.")
        self._weights = [float(w) for w in weights]

    def loss(self, op: OpBuilder, *args: Tensor) -> Tensor:
        """The weighted sum over all lengths."""
        embeddings, rest = (args[:-1], args[-1:]) if self.has_target else (args, ())
        self._check_sizes(embeddings)
        parts = [
            self._inner.loss(op, *(_first(op, x, size) for x in embeddings), *rest) * weight
            for size, weight in zip(self._dims, self._weights)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _check_sizes(self, embeddings: Sequence[Tensor]) -> None:
        size = embeddings[0].dim(1)
        if isinstance(size, int) and max(self._dims) > size:
            raise BlockError(
                f"matryoshka_dims go up to {max(self._dims)}, and {embeddings[0].name!r} has "
                f"{size} numbers per row."
            )


def _first(op: OpBuilder, x: Tensor, size: int) -> Tensor:
    cut = op.Slice(x, [0], [size], [1])
    cut.value.type = x.value.type
    cut.value.shape = ir.Shape([x.dim(0), size])
    return normalized(op, cut)


def _positive(value: Any, name: str) -> float:
    if not value > 0:
        raise BlockError(f"{name} must be positive, not {value}.")
    return float(value)
