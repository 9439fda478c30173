"""What all losses share: the reduction, and targets as graph inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from ...errors import ModelError
from .._graph_utils import node_arg_exists
from ..block import Block, BlockError
from ..emit import Emitter

REDUCTIONS = ("mean", "sum", "none")


class Loss(Block):
    """A loss with a reduction.

    Args:
        reduction: "mean" over all elements, "sum", or "none" for the unreduced tensor.
    """

    _allowed: tuple[str, ...] = REDUCTIONS

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self._allowed:
            raise BlockError(
                f"Reduction {reduction!r} not supported. Use one of {', '.join(self._allowed)}."
            )
        self._reduction = reduction

    def _reduce(self, emit: Emitter, x: str) -> str:
        if self._reduction == "none":
            return x
        return emit.reduce("ReduceMean" if self._reduction == "mean" else "ReduceSum", x)


def target(
    emit: Emitter,
    name: str,
    like: str,
    *,
    dtype: int | None = None,
    drop: int | None = None,
) -> str:
    """A value to compare with: an existing one of that name, else a new graph input.

    Args:
        emit: the emitter.
        name: name of the target.
        like: the value whose type and shape it has.
        dtype: another element type.
        drop: an axis of `like` that the target does not have.
    """
    if node_arg_exists(emit.model, name):
        return name
    dims = emit.dims(like)
    if drop is not None:
        del dims[drop]
    return emit.input(name, emit.dtype(like) if dtype is None else dtype, dims)


def weight_constant(emit: Emitter, weight: Any, like: str, token: str = "weight") -> str:
    """Weights given as an array, as an initializer of the loss input's type."""
    return emit.constant(np.asarray(weight), like=like, token=token)


def check_weight(weight: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Weights as an array; None stays None."""
    if weight is None:
        return None
    array = np.asarray(weight)
    if array.dtype.kind not in "fiu":
        raise ModelError(f"{name} must be numbers, not {array.dtype}.")
    return array


class Labels:
    """Class labels against scores, with weights per class and a label to ignore.

    Labels are gathered where the opset has GatherElements (11); before, scores are multiplied with
    a mask of the label's class.

    Args:
        emit: the emitter.
        labels: INT64 labels, without the class axis.
        scores: the tensor with the class axis.
        axis: the class axis of `scores`.
        weight: a weight per class.
        ignore_index: label whose elements do not count.
    """

    def __init__(
        self,
        emit: Emitter,
        labels: str,
        scores: str,
        axis: int,
        weight: np.ndarray[Any, Any] | None,
        ignore_index: int | None,
    ) -> None:
        self.emit, self.like, self.axis = emit, scores, axis
        self.keep = ""
        self.mask = ""
        if ignore_index is not None:
            ignored = emit.is_equal(labels, ignore_index, scores)
            self.keep = emit.sub(emit.number(1.0, scores), ignored)
            labels = self._zero_where(labels, ignore_index)
        self.labels = labels
        self.column = emit.unsqueeze(labels, axis)
        if emit.opset < 11:
            self.mask = self._class_mask()
        self.class_weight = None if weight is None else weight_constant(emit, weight, scores)

    def _zero_where(self, labels: str, ignored: int) -> str:
        """Labels with the ignored ones, which may lie outside all classes, set to class 0."""
        emit = self.emit
        kind = emit.dtype(labels)
        same = emit.node("Equal", labels, emit.constant(np.array(ignored), kind))
        kept = emit.cast(emit.node("Not", same), kind)
        return emit.mul(labels, kept)

    def _class_mask(self) -> str:
        emit = self.emit
        classes = emit.dims(self.like)[self.axis]
        if not isinstance(classes, int):
            raise ModelError(f"The number of classes of {self.like!r} must be known.")
        shape = [1] * emit.rank(self.like)
        shape[self.axis] = classes
        numbers = emit.constant(np.arange(classes).reshape(shape), emit.dtype(self.labels))
        return emit.cast(emit.node("Equal", self.column, numbers), emit.dtype(self.like))

    def pick(self, scores: str) -> str:
        """The score of each element's label."""
        emit = self.emit
        if self.mask:
            return emit.reduce("ReduceSum", emit.mul(scores, self.mask), [self.axis])
        picked = emit.node("GatherElements", scores, self.column, axis=self.axis)
        return emit.squeeze(picked, self.axis)

    def weights(self) -> str:
        """The weight of each element: its class's, 0 when ignored; "" when all are 1."""
        emit = self.emit
        if self.class_weight is None:
            return self.keep
        found = emit.node("Gather", self.class_weight, self.labels, axis=0)
        return emit.mul(found, self.keep) if self.keep else found


def weighted_mean(emit: Emitter, values: str, weights: str) -> str:
    """Σ values / Σ weights, where the values are weighted already; a plain mean without weights."""
    if not weights:
        return emit.reduce("ReduceMean", values)
    return emit.div(emit.reduce("ReduceSum", values), emit.reduce("ReduceSum", weights))


def label_axis(rank: int, class_axis: int) -> int:
    """The class axis from the front; vectors of scores have it at 0."""
    return 0 if rank == 1 else class_axis % rank


INT64 = onnx.TensorProto.INT64
Names = Sequence[str]
