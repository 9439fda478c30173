"""Losses over classes: cross entropy, likelihood, binary cross entropy, divergence, margins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import REDUCTIONS, Loss, check_weight, target_like, weighted
from .labels import (
    IGNORED,
    Labels,
    check_ignored,
    declare_labels,
    label_axis,
    label_input,
    number_of_classes,
)

TWICE = (
    "{loss} takes scores and applies a Softmax to them itself, and {input!r} has gone through a "
    "Softmax already: through two of them gradients are small, and training hardly moves. Use what "
    "went into it, {scores!r}, instead ({how})."
)
NO_LOGARITHM = (
    "{loss} takes logarithms of probabilities, and {input!r} holds probabilities: it comes from a "
    "Softmax. Make that a LogSoftmax, or use CrossEntropyLoss (cross_entropy) and what went into "
    "it, {scores!r} ({how})."
)
TWICE_SIGMOID = (
    "{loss} takes scores and applies a Sigmoid to them itself, and {input!r} has gone through a "
    "Sigmoid already. Use what went into it, {scores!r}, instead ({how}), or BCELoss (bce)."
)


class CrossEntropyLoss(Loss):
    """Cross entropy between scores (logits) and class labels or class probabilities.

    Scores are N×C or N×C×d₁×…; labels are INT64 without the class axis.
    ``l = −w[y]·log softmax(x)[y]``, the mean is over Σ w[y].

    Args:
        weight: a weight per class.
        reduction: "mean", "sum" or "none".
        ignore_index: label whose elements do not count; None if every label is a class.
        label_smoothing: share of the target that is spread evenly over all classes.
        class_axis: the axis of the classes, 1 as in PyTorch; -1 for scores (…, classes).
        probabilities: targets are probabilities in the shape of the scores.
    """

    _unfit: ClassVar[Mapping[str, str]] = {"Softmax": TWICE}

    def __init__(
        self,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = IGNORED,
        *,
        label_smoothing: float = 0.0,
        class_axis: int = 1,
        probabilities: bool = False,
    ) -> None:
        super().__init__(reduction)
        if not 0.0 <= label_smoothing <= 1.0:
            raise BlockError(f"label_smoothing lies in [0, 1], and it is {label_smoothing}.")
        if probabilities and ignore_index not in (None, IGNORED):
            raise BlockError("Probabilities as targets have no label to ignore.")
        self._weight = check_weight(weight, "weight")
        self._ignore, self._smoothing = check_ignored(ignore_index), label_smoothing
        self._axis, self._probabilities = class_axis, probabilities

    skip = 0
    """Labels at the beginning of each row that are not compared."""

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count."""
        return self._ignore

    def axis_of(self, scores: Tensor) -> int:
        """The class axis of some scores, from the front."""
        return self._class_axis(scores)

    def targets(self, op: OpBuilder, labels: Tensor) -> Tensor:
        """The label that each place of the scores is compared with."""
        del op
        return labels

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Append the loss; the labels become a graph input unless they exist."""
        op = self._builder
        scores = op.value(scores_input_name)
        self._look_at(op, scores)
        axis = self._class_axis(scores)
        if self._probabilities:
            return op.append(self.loss(op, scores, target_like(op, labels_name, scores)))
        labels = label_input(op, labels_name, scores, axis)
        if self._is_one_operator(op, scores):
            return op.append(self.loss(op, scores, labels), "loss")
        declare_labels(op, labels, scores, axis, self._ignore)
        return op.append(self.loss(op, scores, labels))

    def loss(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> Tensor:
        """One operator where there is one for it; else the formula, in primitives."""
        if self._probabilities:
            return self._reduce(op, self.elements(op, scores, labels))
        if not self._is_one_operator(op, scores):
            loss, chosen = self._composed(op, scores, labels)
            if self._reduction == "mean":
                return chosen.mean(loss, chosen.weights)
            return self._reduce(op, loss)
        self._class_axis(scores)
        weight = None if self._weight is None else op.const(self._weight, scores.dtype)
        return op.many(
            "SoftmaxCrossEntropyLoss", scores, labels, weight,
            outputs=2, reduction=self._reduction, ignore_index=self._ignore,
        )[0]  # fmt: skip

    def elements(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> Tensor:
        """−w[y]·log softmax(x)[y] of each element, 0 where it is ignored."""
        if self._probabilities:
            return self._from_probabilities(op, scores, labels)
        return self._composed(op, scores, labels)[0]

    def _is_one_operator(self, op: OpBuilder, scores: Tensor) -> bool:
        plain = not self._smoothing and not self._probabilities
        return plain and op.opset >= 12 and scores.rank >= 2 and self._class_axis(scores) == 1

    def _class_axis(self, scores: Tensor) -> int:
        axis = label_axis(scores.rank, self._axis)
        classes = scores.dim(axis)
        wrong = self._weight is not None and self._weight.shape != (classes,)
        if self._weight is not None and wrong and isinstance(classes, int):
            raise BlockError(
                f"weight has shape {list(self._weight.shape)}, and there are {classes} classes."
            )
        return axis

    def _composed(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> tuple[Tensor, Labels]:
        axis = self._class_axis(scores)
        log_prob = op.LogSoftmax(scores, axis=axis)
        chosen = Labels(op, labels, scores, axis, self._weight, self._ignore)
        loss = -chosen.pick(log_prob)
        if chosen.weights is not None:
            loss = loss * chosen.weights
        if self._smoothing:
            share = self._smoothing / number_of_classes(scores, axis, "label_smoothing")
            spread = self._sum_over_classes(op, log_prob, scores, axis)
            if chosen.counted is not None:
                spread = spread * chosen.counted
            loss = loss * (1.0 - self._smoothing) + spread * share
        return loss, chosen

    def _sum_over_classes(self, op: OpBuilder, x: Tensor, scores: Tensor, axis: int) -> Tensor:
        """−Σ w·x over all classes."""
        if self._weight is not None:
            shape = [1] * scores.rank
            shape[axis] = -1
            x = x * op.const(self._weight.reshape(shape), scores.dtype)
        return -op.ReduceSum(x, [axis], keepdims=0)

    def _from_probabilities(self, op: OpBuilder, scores: Tensor, t: Tensor) -> Tensor:
        axis = self._class_axis(scores)
        if self._smoothing:
            share = self._smoothing / number_of_classes(scores, axis, "label_smoothing")
            t = t * (1.0 - self._smoothing) + share
        return self._sum_over_classes(op, op.LogSoftmax(scores, axis=axis) * t, scores, axis)


class NLLLoss(Loss):
    """Negative log likelihood: −w[y]·x[y] for log probabilities x; the mean is over Σ w[y].

    Args:
        weight: a weight per class.
        reduction: "mean", "sum" or "none".
        ignore_index: label whose elements do not count; None if every label is a class.
        class_axis: the axis of the classes.
    """

    _unfit: ClassVar[Mapping[str, str]] = {"Softmax": NO_LOGARITHM}

    def __init__(
        self,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = IGNORED,
        *,
        class_axis: int = 1,
    ) -> None:
        super().__init__(reduction)
        self._weight, self._ignore = check_weight(weight, "weight"), check_ignored(ignore_index)
        self._axis = class_axis

    def build(self, loss_input_name: str, labels_name: str = "labels") -> str:
        """Append the loss; the labels become a graph input unless they exist."""
        op = self._builder
        x = op.value(loss_input_name)
        self._look_at(op, x)
        axis = label_axis(x.rank, self._axis)
        labels = label_input(op, labels_name, x, axis)
        declare_labels(op, labels, x, axis, self._ignore)
        return op.append(self.loss(op, x, labels))

    def loss(self, op: OpBuilder, x: Tensor, labels: Tensor) -> Tensor:
        """The mean is over the weights of what counts."""
        loss, chosen = self._picked(op, x, labels)
        if self._reduction == "mean":
            return chosen.mean(loss, chosen.weights)
        return self._reduce(op, loss)

    def elements(self, op: OpBuilder, x: Tensor, labels: Tensor) -> Tensor:
        """−w[y]·x[y] of each element, 0 where it is ignored."""
        return self._picked(op, x, labels)[0]

    def _picked(self, op: OpBuilder, x: Tensor, labels: Tensor) -> tuple[Tensor, Labels]:
        axis = label_axis(x.rank, self._axis)
        chosen = Labels(op, labels, x, axis, self._weight, self._ignore)
        loss = -chosen.pick(x)
        return loss if chosen.weights is None else loss * chosen.weights, chosen


class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of logits, in the form that neither overflows nor loses digits.

    ``softplus(x) − t·x``, and with a weight p of the positive class
    ``(1 − t)·x + (1 + (p − 1)·t)·softplus(−x)``.

    Args:
        weight: factor per element, broadcast.
        reduction: "mean", "sum" or "none".
        pos_weight: weight of the positive class, broadcast.
    """

    _unfit: ClassVar[Mapping[str, str]] = {"Sigmoid": TWICE_SIGMOID}

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight = check_weight(weight, "weight")
        self._pos_weight = check_weight(pos_weight, "pos_weight")

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """softplus(x) − t·x, with a weight of the positive class if there is one."""
        if self._pos_weight is None:
            loss = op.Softplus(x) - x * t
        else:
            excess = op.const(np.asarray(self._pos_weight) - 1.0, x.dtype)
            loss = (1.0 - t) * x + (t * excess + 1.0) * op.Softplus(-x)
        return weighted(op, loss, self._weight)


class BCELoss(Loss):
    """Binary cross entropy of probabilities; each logarithm is at least −100, as in PyTorch.

    Prefer `BCEWithLogitsLoss` on the logits: it is exact where probabilities round to 0 or 1.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weight = check_weight(weight, "weight")

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """−t·log x − (1 − t)·log(1 − x)."""
        yes, no = (op.Max(op.Log(p), -100.0) for p in (x, 1.0 - x))
        return weighted(op, -(t * yes + (1.0 - t) * no), self._weight)


class KLDivLoss(Loss):
    """Kullback–Leibler divergence of log probabilities x from t: t·(log t − x).

    Args:
        reduction: "mean", "sum", "none", or "batchmean", the sum over the first dimension.
        log_target: t is given as its logarithm.
    """

    _allowed = (*REDUCTIONS, "batchmean")
    _unfit: ClassVar[Mapping[str, str]] = {"Softmax": NO_LOGARITHM}

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self._log_target = log_target

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """t·(log t − x)."""
        if self._log_target:
            return op.Exp(t) * (t - x)
        # t·log t is 0 at t = 0; log of something tiny times 0 is that 0
        tiny = 1e-7 if x.dtype.itemsize == 2 else 1e-38
        return t * op.Log(op.Max(t, tiny)) - t * x

    def loss(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """The reduced loss; "batchmean" divides the sum by the first dimension."""
        loss = self.elements(op, x, t)
        if self._reduction != "batchmean":
            return self._reduce(op, loss)
        size = op.Cast(op.Gather(op.Shape(x), 0, axis=0), to=x.dtype)
        return op.ReduceSum(loss, keepdims=0) / size


class HingeLoss(Loss):
    """max(0, margin − t·x) for targets −1 and 1."""

    def __init__(self, reduction: str = "mean", margin: float = 1.0) -> None:
        super().__init__(reduction)
        self._margin = margin

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """max(0, margin − t·x)."""
        return op.Relu(self._margin - x * t)


class MultiMarginLoss(Loss):
    """Hinge loss over classes: Σ max(0, margin − x[y] + x[j])ᵖ / C over all j ≠ y.

    Args:
        p: 1 or 2.
        margin: the margin.
        weight: a weight per class.
        reduction: "mean", "sum" or "none".
        ignore_index: label whose rows do not count; None if every label is a class.
    """

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Any = None,
        reduction: str = "mean",
        *,
        ignore_index: int | None = IGNORED,
    ) -> None:
        super().__init__(reduction)
        if p not in {1, 2}:
            raise BlockError(f"p is 1 or 2, not {p}.")
        self._p, self._margin, self._weight = p, margin, check_weight(weight, "weight")
        self._ignore = check_ignored(ignore_index)

    def build(self, loss_input_name: str, labels_name: str = "labels") -> str:
        """Append the loss; the labels become a graph input unless they exist."""
        op = self._builder
        x = op.value(loss_input_name)
        labels = label_input(op, labels_name, x, 1)
        declare_labels(op, labels, x, 1, self._ignore)
        return op.append(self.loss(op, x, labels))

    def loss(self, op: OpBuilder, x: Tensor, labels: Tensor) -> Tensor:
        """The mean is over the rows that count."""
        loss, chosen = self._margins(op, x, labels)
        if self._reduction == "mean":
            return chosen.mean(loss, chosen.counted)
        return self._reduce(op, loss)

    def elements(self, op: OpBuilder, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, 0 where its label is ignored."""
        return self._margins(op, x, labels)[0]

    def _margins(self, op: OpBuilder, x: Tensor, labels: Tensor) -> tuple[Tensor, Labels]:
        chosen = Labels(op, labels, x, 1, self._weight, self._ignore)
        excess = op.Relu(x - op.Unsqueeze(chosen.pick(x), [1]) + self._margin)
        if self._p == 2:
            excess = excess * excess
        # the label's own class, j = y, contributes marginᵖ/C and must not
        own = max(self._margin, 0.0) ** self._p / number_of_classes(x, 1, "MultiMarginLoss")
        if chosen.weights is None:
            return op.ReduceMean(excess, [1], keepdims=0) - own, chosen
        mean = op.ReduceMean(excess * op.Unsqueeze(chosen.weights, [1]), [1], keepdims=0)
        return mean - chosen.weights * own, chosen
