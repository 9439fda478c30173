"""Class labels against scores: picking, weights per class, a label that does not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from ..graph.labels import declare
from ..graph.model_builder import ModelBuilder
from .base import target_like

IGNORED = -100
"""The label that is left out unless another is named, as in PyTorch."""


def check_ignored(ignore_index: int | None) -> int | None:
    """The label to ignore: a whole number, or None for none."""
    if ignore_index is None:
        return None
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, np.integer)):
        raise BlockError(f"ignore_index is a whole number or None, not {ignore_index!r}.")
    return int(ignore_index)


def label_axis(rank: int, class_axis: int) -> int:
    """The class axis from the front; vectors of scores have it at 0."""
    return 0 if rank == 1 else class_axis % rank


def number_of_classes(x: Tensor, axis: int, what: str) -> int:
    """The size of the class axis; an error where it is not known."""
    classes = x.dim(axis)
    if not isinstance(classes, int):
        raise ModelError(f"{what} needs the number of classes of {x.name!r}.")
    return classes


def label_input(op: ModelBuilder, name: str, scores: Tensor, axis: int) -> Tensor:
    """Labels of scores: a graph input of INT64, or the value of that name."""
    return target_like(op, name, scores, dtype=ir.DataType.INT64, drop=axis)


def declare_labels(
    op: ModelBuilder,
    labels: Tensor,
    scores: Tensor,
    axis: int,
    ignore_index: int | None,
    skip: int = 0,
) -> None:
    """Write into the model what its labels must be, so that who runs it can check them.

    Args:
        op: the builder.
        labels: the value.
        scores: what they are compared with.
        axis: the class axis of the scores.
        ignore_index: label that does not count.
        skip: how many labels at the beginning of each row are not compared with anything.
    """
    classes = scores.dim(axis)
    metadata = {p.key: p.value for p in op.model.metadata_props}
    number = classes if isinstance(classes, int) else None
    declare(metadata, labels.name, number, ignore_index, skip)
    onnx.helper.set_model_props(op.model, metadata)


def largest(dtype: ir.DataType) -> int:
    """The largest number of an integer type."""
    return int(np.iinfo(dtype.numpy()).max)


class Labels:
    """Class labels against scores, with weights per class and a label to ignore.

    Labels are gathered where the opset has GatherElements (11); before, scores are multiplied with
    a mask of the label's class. A label that is no class fails the run, whoever runs the model.

    Args:
        op: the builder.
        labels: integers, without the class axis.
        scores: the tensor with the class axis.
        axis: the class axis of `scores`.
        weight: a weight per class.
        ignore_index: label whose elements do not count, None for none.

    Attributes:
        counted: 1 for labels that count, 0 for those that are ignored; None if all count.
        weights: the weight of each element, 0 if ignored; None if all weights are 1.
    """

    def __init__(
        self,
        op: OpBuilder,
        labels: Tensor,
        scores: Tensor,
        axis: int,
        weight: np.ndarray[Any, Any] | None,
        ignore_index: int | None,
    ) -> None:
        self.op, self.scores, self.axis = op, scores, axis
        self.counted: Tensor | None = None
        self._ignored: Tensor | None = None
        if ignore_index is not None:
            self._ignored = op.Equal(labels, ignore_index)
            counts = op.Not(self._ignored)
            self.counted = op.Cast(counts, to=scores.dtype)
            # an ignored label may lie outside all classes: class 0 stands for it
            labels = op.Where(counts, labels, 0)
        labels = self._guarded(labels)
        self._column = op.Unsqueeze(labels, [axis])
        self._mask = self._class_mask() if op.opset < 11 else None
        self.weights = self.counted
        if weight is not None:
            of_class = op.Gather(op.const(weight, scores.dtype), labels, axis=0)
            self.weights = of_class if self.counted is None else of_class * self.counted

    def _guarded(self, labels: Tensor) -> Tensor:
        """Labels, negative ones as a number that is no index: ONNX would count from the end."""
        op = self.op
        labels = op.Where(op.Less(labels, 0), op.const(largest(labels.dtype), labels.dtype), labels)
        if op.opset >= 11:
            return labels
        # GatherElements will refuse it, a mask would not
        return op.Gather(op.const(self._all_classes(), labels.dtype), labels, axis=0)

    def _all_classes(self) -> np.ndarray[Any, Any]:
        return np.arange(number_of_classes(self.scores, self.axis, "A model before opset 11"))

    def _class_mask(self) -> Tensor:
        op, shape = self.op, [1] * self.scores.rank
        shape[self.axis] = -1
        numbers = op.const(self._all_classes().reshape(shape), self._column.dtype)
        return op.Cast(op.Equal(self._column, numbers), to=self.scores.dtype)

    def pick(self, scores: Tensor) -> Tensor:
        """The score of each element's label; 0 where it is ignored."""
        op = self.op
        if self._mask is not None:
            return op.ReduceSum(scores * self._mask, [self.axis], keepdims=0)
        picked = op.GatherElements(scores, self._column, axis=self.axis)
        picked = op.Squeeze(picked, [self.axis])
        return picked if self._ignored is None else op.Where(self._ignored, 0.0, picked)

    def mean(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Σ values / Σ weights, where the values are weighted already; a plain mean without.

        If all weights are 0 the mean is NaN, and its gradient 0 and not infinitely many times 0.
        """
        op = self.op
        if weights is None:
            return op.ReduceMean(values, keepdims=0)
        total, weight = op.ReduceSum(values, keepdims=0), op.ReduceSum(weights, keepdims=0)
        smallest = 6e-8 if values.dtype == ir.DataType.FLOAT16 else 1.2e-38
        return total / op.Max(weight, smallest) + (weight / weight - 1.0)
