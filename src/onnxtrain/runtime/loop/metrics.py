"""Metrics that are gathered batch by batch, with numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError

Array = npt.NDArray[Any]


class Metric:
    """Base class: `reset`, then `update` per batch, then `result`."""

    name = "metric"
    reads_prediction = True
    """False for one that follows from the mean loss: then `of_loss` is asked instead."""

    def reset(self) -> None:
        """Start anew."""
        raise NotImplementedError

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        raise NotImplementedError

    def result(self) -> float:
        """The value over all batches since `reset`; NaN without any."""
        raise NotImplementedError

    def of_loss(self, loss: float) -> float:
        """The value where the mean loss over all data is this; no batches are needed then."""
        raise NotImplementedError

    def state(self) -> Array | None:
        """What was gathered, as one vector, so that several processes can share the work.

        None (the default) means that this cannot be done: then each process sees all data.
        """
        return None

    def merge(self, states: Sequence[Array]) -> None:
        """Take over what several processes gathered: `state` of each, zeros at the end allowed."""
        raise NotImplementedError


class _Mean(Metric):
    """A sum over elements divided by their number."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self.total, self.count = 0.0, 0

    def add(self, total: float, count: int) -> None:
        """Add a batch's sum."""
        self.total += float(total)
        self.count += count

    def state(self) -> Array:
        """Sum and number."""
        return np.array([self.total, self.count], np.float64)

    def merge(self, states: Sequence[Array]) -> None:
        """Add them up."""
        self.total = float(sum(s[0] for s in states))
        self.count = int(sum(s[1] for s in states))

    def result(self) -> float:
        """The mean."""
        return self.total / self.count if self.count else math.nan


class Accuracy(_Mean):
    """Share of right classes.

    Scores are (N, classes, …); labels are class numbers, or one-hot of the same shape. One score
    per row means two classes: positive is class 1 (`threshold`).

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]), 0.0)
        >>> accuracy.result()
        0.5
    """

    name = "accuracy"

    def __init__(self, threshold: float = 0.0, ignore_index: int | None = None) -> None:
        self.threshold, self.ignore_index = threshold, ignore_index
        super().__init__()

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        if prediction.ndim < 2 or prediction.shape[1] == 1:
            chosen = (prediction > self.threshold).reshape(len(prediction), -1)
            right = chosen == (target.reshape(chosen.shape) > 0.5)
            self.add(right.sum(), right.size)
            return
        labels = _labels(prediction, target)
        right = prediction.argmax(axis=1) == labels
        if self.ignore_index is not None:
            counted = labels != self.ignore_index
            self.add((right & counted).sum(), int(counted.sum()))
        else:
            self.add(right.sum(), right.size)


class TopK(_Mean):
    """Share of rows whose class is among the `k` highest scores."""

    def __init__(self, k: int = 5) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}.")
        self.k, self.name = k, f"top{k}"
        super().__init__()

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        labels = _labels(prediction, target)
        own = np.take_along_axis(prediction, np.expand_dims(labels, 1), axis=1)
        better = (prediction > own).sum(axis=1)
        self.add(int(np.count_nonzero(better < self.k)), labels.size)


class _Confusions(Metric):
    """Counts by class: rightly chosen, wrongly chosen, missed.

    Scores are (N, classes, …) and the value is the mean over the classes that occur, each counting
    alike. One score per row means two classes, and the value is that of class 1.

    Args:
        threshold: above which a single score means class 1.
    """

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self.counts: Array = np.zeros((0, 3))

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        single = prediction.ndim < 2 or prediction.shape[1] == 1
        if single:
            chosen = (prediction > self.threshold).reshape(-1).astype(np.int64)
            labels = (target.reshape(-1) > 0.5).astype(np.int64)
        else:
            chosen = prediction.argmax(axis=1).reshape(-1)
            labels = _labels(prediction, target).reshape(-1)
        size = 2 if single else prediction.shape[1]
        right = np.bincount(labels[chosen == labels], minlength=size)
        picked, present = (np.bincount(v, minlength=size) for v in (chosen, labels))
        counts = np.stack([right, picked - right, present - right], axis=1)
        self._add(counts[1:] if single else counts)

    def _add(self, counts: Array) -> None:
        self.counts = counts + (self.counts if len(self.counts) else 0)

    def state(self) -> Array:
        """All counts, class after class."""
        return self.counts.reshape(-1).astype(np.float64)

    def merge(self, states: Sequence[Array]) -> None:
        """Add them up."""
        self.reset()
        for state in states:
            counts = np.asarray(state).reshape(-1, 3)
            if len(counts):
                self._add(counts)

    def result(self) -> float:
        """The mean over the classes that occur; NaN without any."""
        occurring = self.counts[self.counts.sum(axis=1) > 0]
        if not len(occurring):
            return math.nan
        return float(np.mean([self.of_class(*counts) for counts in occurring]))

    def of_class(self, right: float, wrong: float, missed: float) -> float:
        """The value of one class."""
        raise NotImplementedError


class Precision(_Confusions):
    """Share of the rows put into a class that belong there; 0 where none was.

    Example:
        >>> precision = Precision(threshold=0.5)
        >>> precision.update(np.array([0.9, 0.8, 0.1]), np.array([1, 0, 1]), 0.0)
        >>> precision.result()
        0.5
    """

    name = "precision"

    def of_class(self, right: float, wrong: float, missed: float) -> float:
        """right ÷ (right + wrong)."""
        return right / (right + wrong) if right + wrong else 0.0


class Recall(_Confusions):
    """Share of the rows of a class that are put there; 0 where it has none."""

    name = "recall"

    def of_class(self, right: float, wrong: float, missed: float) -> float:
        """right ÷ (right + missed)."""
        return right / (right + missed) if right + missed else 0.0


class F1(_Confusions):
    """The harmonic mean of precision and recall."""

    name = "f1"

    def of_class(self, right: float, wrong: float, missed: float) -> float:
        """2·right ÷ (2·right + wrong + missed)."""
        return 2 * right / (2 * right + wrong + missed)


class AUC(Metric):
    """The area under the ROC curve: the chance that a row of a class scores above another row.

    Several classes: each against all others, and the mean of those that have rows of both kinds;
    scores that are no probabilities go through a softmax first. All scores are kept until `reset`.

    Example:
        >>> auc = AUC()
        >>> auc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]), 0.0)
        >>> auc.result()
        0.75
    """

    name = "auc"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self._scores: list[Array] = []
        self._labels: list[Array] = []

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        if prediction.ndim < 2 or prediction.shape[1] == 1:
            self._scores.append(prediction.reshape(-1, 1).copy())
            self._labels.append(target.reshape(-1) > 0.5)
            return
        rows = np.moveaxis(prediction, 1, -1).reshape(-1, prediction.shape[1])
        self._scores.append(rows.copy())
        self._labels.append(_labels(prediction, target).reshape(-1))

    def result(self) -> float:
        """The area; NaN where there is only one class."""
        if not self._scores:
            return math.nan
        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        if scores.shape[1] == 1:
            return _area(scores[:, 0], labels.astype(bool))
        scores = _probabilities(scores.astype(np.float64))
        areas = [_area(column, labels == i) for i, column in enumerate(scores.T)]
        known = [area for area in areas if not math.isnan(area)]
        return float(np.mean(known)) if known else math.nan


def _probabilities(scores: Array) -> Array:
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1.0, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _area(scores: Array, positive: Array) -> float:
    """From the ranks of the scores; equal ones share theirs."""
    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return math.nan
    _, place, repeats = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(repeats)
    ranks = (last - (repeats - 1) / 2)[place.reshape(-1)]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))


class MeanAbsoluteError(_Mean):
    """Mean of |prediction − target|."""

    name = "mae"

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        error = _difference(prediction, target)
        self.add(np.abs(error).sum(), error.size)


class MeanSquaredError(_Mean):
    """Mean of (prediction − target)²."""

    name = "mse"

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        error = _difference(prediction, target)
        self.add(np.square(error).sum(), error.size)


class R2(Metric):
    """1 − Σ(prediction − target)² / Σ(target − mean)², averaged over the columns."""

    name = "r2"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self.count = 0
        self.mean: Array = np.zeros(0)
        self.spread: Array = np.zeros(0)
        self.residual: Array = np.zeros(0)

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account; means are merged without cancellation."""
        error = _difference(prediction, target).reshape(len(target), -1)
        values = target.astype(np.float64).reshape(len(target), -1)
        mean = values.mean(axis=0)
        spread = np.square(values - mean).sum(axis=0)
        self._add(len(values), mean, spread, np.square(error).sum(axis=0))

    def _add(self, count: int, mean: Array, spread: Array, residual: Array) -> None:
        if not self.count:
            self.count, self.mean, self.spread, self.residual = count, mean, spread, residual
            return
        total = self.count + count
        shift = mean - self.mean
        self.spread = self.spread + spread + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.residual = self.residual + residual
        self.count = total

    def state(self) -> Array:
        """Number, means, spreads and residuals."""
        return np.concatenate([[self.count], self.mean, self.spread, self.residual])

    def merge(self, states: Sequence[Array]) -> None:
        """Merge them as batches are merged."""
        self.reset()
        for state in states:
            if state[0]:
                self._add(int(state[0]), *np.split(np.asarray(state[1:]), 3))

    def result(self) -> float:
        """The coefficient of determination; NaN if the targets do not vary."""
        if not self.count or not self.spread.all():
            return math.nan
        return float(np.mean(1.0 - self.residual / self.spread))


class Perplexity(_Mean):
    """exp of the mean loss (a cross-entropy), over all labels that count.

    Example:
        >>> round(Perplexity().of_loss(math.log(20.0)), 6)
        20.0
    """

    name = "perplexity"
    reads_prediction = False

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        self.add(loss * len(target), len(target))

    def result(self) -> float:
        """The perplexity."""
        return self.of_loss(super().result())

    def of_loss(self, loss: float) -> float:
        """exp, infinite where that overflows."""
        return math.exp(loss) if loss < 700 else math.inf if loss > 0 else math.nan


BY_NAME = {
    "accuracy": Accuracy,
    "mae": MeanAbsoluteError,
    "mse": MeanSquaredError,
    "r2": R2,
    "perplexity": Perplexity,
    "top5": TopK,
    "f1": F1,
    "precision": Precision,
    "recall": Recall,
    "auc": AUC,
}


UPWARD = frozenset({"accuracy", "r2", "f1", "precision", "recall", "auc"})
"""Metrics that are better the larger they are, as those that begin with "top" are."""


def resolve(metrics: Sequence[str | Metric]) -> list[Metric]:
    """Metrics from names (``"accuracy"``, ``"top3"`` …) or objects."""
    resolved: list[Metric] = []
    for metric in metrics:
        if isinstance(metric, Metric):
            resolved.append(metric)
        elif metric in BY_NAME:
            resolved.append(BY_NAME[metric]())
        elif isinstance(metric, str) and metric[:3] == "top" and metric[3:].isdigit():
            resolved.append(TopK(int(metric[3:])))
        else:
            raise ValueError(f"Unknown metric {metric!r}; known: {', '.join(BY_NAME)}, top<k>.")
    return resolved


def _labels(prediction: Array, target: Array) -> Array:
    """Class numbers in the shape of the scores without their class axis."""
    shape = prediction.shape[:1] + prediction.shape[2:]
    if target.shape == prediction.shape:
        return np.asarray(target.argmax(axis=1))
    if target.size != math.prod(shape):
        raise InputError(f"Labels of shape {target.shape} do not fit scores {prediction.shape}.")
    return target.reshape(shape).astype(np.int64)


def _difference(prediction: Array, target: Array) -> Array:
    if prediction.size != target.size:
        raise InputError(f"Predictions {prediction.shape} do not fit targets {target.shape}.")
    return prediction.astype(np.float64) - target.reshape(prediction.shape).astype(np.float64)
