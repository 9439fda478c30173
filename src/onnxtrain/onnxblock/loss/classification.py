"""Losses over classes: cross entropy, likelihood, binary cross entropy, divergence, margins."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ModelError
from ..block import BlockError
from ..emit import Emitter
from .common import (
    IGNORED,
    INT64,
    REDUCTIONS,
    Labels,
    Loss,
    check_ignored,
    check_weight,
    label_axis,
    target,
    weight_constant,
    weighted_mean,
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

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Append the loss; the labels become a graph input unless they exist."""
        emit = self._emit
        rank = emit.rank(scores_input_name)
        axis = label_axis(rank, self._axis)
        if self._weight is not None:
            classes = emit.dims(scores_input_name)[axis]
            if isinstance(classes, int) and self._weight.shape != (classes,):
                raise BlockError(
                    f"weight has shape {list(self._weight.shape)}, and there are {classes} classes."
                )
        if self._probabilities:
            t = target(emit, labels_name, scores_input_name)
            return self._from_probabilities(emit, scores_input_name, t, axis)
        labels = target(emit, labels_name, scores_input_name, dtype=INT64, drop=axis)
        if emit.opset >= 12 and axis == 1 and rank >= 2 and not self._smoothing:
            weight = [] if self._weight is None else [
                weight_constant(emit, self._weight, scores_input_name)
            ]  # fmt: skip
            return emit.nodes(
                "SoftmaxCrossEntropyLoss",
                [scores_input_name, labels, *weight],
                ["loss", "log_prob"],
                reduction=self._reduction,
                ignore_index=self._ignore,
            )[0]
        return self._composed(emit, scores_input_name, labels, axis)

    def _composed(self, emit: Emitter, scores: str, labels: str, axis: int) -> str:
        log_prob = emit.softmax("LogSoftmax", scores, axis)
        chosen = Labels(emit, labels, scores, axis, self._weight, self._ignore)
        weights = chosen.weights()
        loss = emit.node("Neg", chosen.pick(log_prob))
        if weights:
            loss = emit.mul(loss, weights)
        if self._smoothing:
            classes = emit.dims(scores)[axis]
            if not isinstance(classes, int):
                raise ModelError(f"label_smoothing needs the number of classes of {scores!r}.")
            spread = self._spread(emit, log_prob, scores, axis)
            if chosen.keep:
                spread = emit.mul(spread, chosen.keep)
            loss = emit.add(
                emit.scale(loss, 1.0 - self._smoothing),
                emit.scale(spread, self._smoothing / classes),
            )
        if self._reduction == "mean":
            return weighted_mean(emit, loss, weights, scores)
        return self._reduce(emit, loss)

    def _spread(self, emit: Emitter, log_prob: str, scores: str, axis: int) -> str:
        """−Σ w·log p over all classes."""
        if self._weight is not None:
            log_prob = emit.mul(log_prob, self._class_weights(emit, scores, axis))
        return emit.node("Neg", emit.reduce("ReduceSum", log_prob, [axis]))

    def _class_weights(self, emit: Emitter, scores: str, axis: int) -> str:
        assert self._weight is not None
        shape = [1] * emit.rank(scores)
        shape[axis] = -1
        return weight_constant(emit, self._weight.reshape(shape), scores)

    def _from_probabilities(self, emit: Emitter, scores: str, t: str, axis: int) -> str:
        if self._smoothing:
            classes = emit.dims(scores)[axis]
            if not isinstance(classes, int):
                raise ModelError(f"label_smoothing needs the number of classes of {scores!r}.")
            t = emit.shift(emit.scale(t, 1.0 - self._smoothing), self._smoothing / classes)
        product = emit.mul(emit.softmax("LogSoftmax", scores, axis), t)
        if self._weight is not None:
            product = emit.mul(product, self._class_weights(emit, scores, axis))
        loss = emit.node("Neg", emit.reduce("ReduceSum", product, [axis]))
        return self._reduce(emit, loss)


class NLLLoss(Loss):
    """Negative log likelihood: −w[y]·x[y] for log probabilities x; the mean is over Σ w[y].

    Args:
        weight: a weight per class.
        reduction: "mean", "sum" or "none".
        ignore_index: label whose elements do not count; None if every label is a class.
        class_axis: the axis of the classes.
    """

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
        emit, x = self._emit, loss_input_name
        axis = label_axis(emit.rank(x), self._axis)
        labels = target(emit, labels_name, x, dtype=INT64, drop=axis)
        chosen = Labels(emit, labels, x, axis, self._weight, self._ignore)
        weights = chosen.weights()
        loss = emit.node("Neg", chosen.pick(x))
        if weights:
            loss = emit.mul(loss, weights)
        if self._reduction == "mean":
            return weighted_mean(emit, loss, weights, x)
        return self._reduce(emit, loss)


class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of logits, in the form that neither overflows nor loses digits.

    ``softplus(x) − t·x``, and with a weight p of the positive class
    ``(1 − t)·x + (1 + (p − 1)·t)·softplus(−x)``.

    Args:
        weight: factor per element, broadcast.
        reduction: "mean", "sum" or "none".
        pos_weight: weight of the positive class, broadcast.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight = check_weight(weight, "weight")
        self._pos_weight = check_weight(pos_weight, "pos_weight")

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        t = target(emit, target_name, x)
        if self._pos_weight is None:
            loss = emit.sub(emit.node("Softplus", x), emit.mul(x, t))
        else:
            excess = emit.constant(np.asarray(self._pos_weight) - 1.0, like=x, token="pos_weight")
            factor = emit.shift(emit.mul(t, excess), 1.0)
            negative = emit.mul(emit.sub(emit.number(1.0, x), t), x)
            positive = emit.mul(factor, emit.node("Softplus", emit.node("Neg", x)))
            loss = emit.add(negative, positive)
        if self._weight is not None:
            loss = emit.mul(loss, weight_constant(emit, self._weight, x))
        return self._reduce(emit, loss)


class BCELoss(Loss):
    """Binary cross entropy of probabilities; each logarithm is at least −100, as in PyTorch.

    Prefer `BCEWithLogitsLoss` on the logits: it is exact where probabilities round to 0 or 1.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weight = check_weight(weight, "weight")

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        t = target(emit, target_name, x)
        one = emit.number(1.0, x)
        yes = emit.at_least(emit.node("Log", x), -100.0)
        no = emit.at_least(emit.node("Log", emit.sub(one, x)), -100.0)
        both = emit.add(emit.mul(t, yes), emit.mul(emit.sub(one, t), no))
        loss = emit.node("Neg", both)
        if self._weight is not None:
            loss = emit.mul(loss, weight_constant(emit, self._weight, x))
        return self._reduce(emit, loss)


class KLDivLoss(Loss):
    """Kullback–Leibler divergence of log probabilities x from t: t·(log t − x).

    Args:
        reduction: "mean", "sum", "none", or "batchmean", the sum over the first dimension.
        log_target: t is given as its logarithm.
    """

    _allowed = (*REDUCTIONS, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self._log_target = log_target

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        t = target(emit, target_name, x)
        if self._log_target:
            loss = emit.mul(emit.node("Exp", t), emit.sub(t, x))
        else:
            # t·log t is 0 at t = 0; log of something tiny times 0 is that 0
            log = emit.node("Log", emit.at_least(t, _tiny(emit, x)))
            loss = emit.sub(emit.mul(t, log), emit.mul(t, x))
        if self._reduction != "batchmean":
            return self._reduce(emit, loss)
        return _over_batch(emit, emit.reduce("ReduceSum", loss), x)


def _tiny(emit: Emitter, x: str) -> float:
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(emit.dtype(x))
    return 1e-7 if np.dtype(kind).itemsize == 2 else 1e-38


def _over_batch(emit: Emitter, total: str, x: str) -> str:
    """A sum over the size of the first dimension of x."""
    size = emit.node("Gather", emit.node("Shape", x), emit.constant(np.array(0, np.int64)), axis=0)
    return emit.div(total, emit.cast(size, emit.dtype(x)))


class HingeLoss(Loss):
    """max(0, margin − t·x) for targets −1 and 1."""

    def __init__(self, reduction: str = "mean", margin: float = 1.0) -> None:
        super().__init__(reduction)
        self._margin = margin

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        product = emit.mul(x, target(emit, target_name, x))
        loss = emit.node("Relu", emit.sub(emit.number(self._margin, x), product))
        return self._reduce(emit, loss)


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
        emit, x = self._emit, loss_input_name
        labels = target(emit, labels_name, x, dtype=INT64, drop=1)
        chosen = Labels(emit, labels, x, 1, self._weight, self._ignore)
        own = emit.unsqueeze(chosen.pick(x), 1)
        excess = emit.node("Relu", emit.shift(emit.sub(x, own), self._margin))
        if self._p == 2:
            excess = emit.mul(excess, excess)
        weights = chosen.weights()
        if weights:
            excess = emit.mul(excess, emit.unsqueeze(weights, 1))
        mean = emit.reduce("ReduceMean", excess, [1])
        # the label's own class, j = y, contributes marginᵖ/C and must not
        classes = emit.dims(x)[1]
        if not isinstance(classes, int):
            raise ModelError(f"MultiMarginLoss needs the number of classes of {x!r}.")
        own_part = max(self._margin, 0.0) ** self._p / classes
        if weights:
            mean = emit.sub(mean, emit.scale(weights, own_part))
        else:
            mean = emit.shift(mean, -own_part)
        if self._reduction == "mean" and chosen.keep:
            return weighted_mean(emit, mean, chosen.keep, x)
        return self._reduce(emit, mean)
