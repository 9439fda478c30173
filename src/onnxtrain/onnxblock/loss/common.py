"""What all losses share: the reduction, targets as graph inputs, and class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from ...errors import ModelError
from ...graph.labels import declare
from .._graph_utils import node_arg_exists
from ..block import Block, BlockError
from ..emit import Emitter

REDUCTIONS = ("mean", "sum", "none")
IGNORED = -100
"""The label that is left out unless another is named, as in PyTorch."""


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


def check_ignored(ignore_index: int | None) -> int | None:
    """The label to ignore: a whole number, or None for none."""
    if ignore_index is None:
        return None
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, np.integer)):
        raise BlockError(f"ignore_index is a whole number or None, not {ignore_index!r}.")
    return int(ignore_index)


class Labels:
    """Class labels against scores, with weights per class and a label to ignore.

    Labels are gathered where the opset has GatherElements (11); before, scores are multiplied with
    a mask of the label's class. A label that is no class fails the run, whoever runs the model; and
    the model says what it expects of its labels, so that `onnxtrain.runtime` can say it better.

    Args:
        emit: the emitter.
        labels: INT64 labels, without the class axis.
        scores: the tensor with the class axis.
        axis: the class axis of `scores`.
        weight: a weight per class.
        ignore_index: label whose elements do not count, None for none.
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
        self.kind = emit.dtype(labels)
        classes = emit.dims(scores)[axis]
        self.classes = classes if isinstance(classes, int) else None
        self.ignored = self.keep = self.mask = ""
        self._declare(labels, ignore_index)
        if ignore_index is not None:
            self.ignored = emit.node("Equal", labels, emit.constant(ignore_index, self.kind))
            counted = emit.node("Not", self.ignored)
            self.keep = emit.cast(counted, emit.dtype(scores))
            # an ignored label may lie outside all classes: class 0 stands for it
            labels = self._choose(counted, labels, emit.constant(0, self.kind))
        self.labels = self._guarded(labels)
        self.column = emit.unsqueeze(self.labels, axis)
        if emit.opset < 11:
            self.mask = self._class_mask()
        self.class_weight = None if weight is None else weight_constant(emit, weight, scores)

    def _declare(self, labels: str, ignore_index: int | None) -> None:
        """Write into the model what it expects of the labels."""
        model = self.emit.model
        metadata = {p.key: p.value for p in model.metadata_props}
        declare(metadata, labels, self.classes, ignore_index)
        onnx.helper.set_model_props(model, metadata)

    def _choose(self, condition: str, yes: str, no: str) -> str:
        """Labels `yes` where the condition holds, `no` elsewhere."""
        emit = self.emit
        if emit.opset >= 9:
            return emit.node("Where", condition, yes, no)
        wanted, other = (emit.cast(c, self.kind) for c in (condition, emit.node("Not", condition)))
        return emit.add(emit.mul(yes, wanted), emit.mul(no, other))

    def _guarded(self, labels: str) -> str:
        """Labels, negative ones as a number that is no index: ONNX would count from the end."""
        emit, number, kind = self.emit, labels, self.kind
        if emit.opset < 9:  # where only floats can be compared
            kind = onnx.TensorProto.FLOAT
            number = emit.cast(labels, kind)
        negative = emit.node("Less", number, emit.constant(0, kind))
        labels = self._choose(negative, emit.constant(largest(self.kind), self.kind), labels)
        if emit.opset >= 11:
            return labels
        # GatherElements will refuse it, a mask would not
        return emit.node("Gather", self._all_classes(), labels, axis=0)

    def _all_classes(self) -> str:
        if self.classes is None:
            raise ModelError(f"The number of classes of {self.like!r} must be known.")
        return self.emit.constant(np.arange(self.classes), self.kind)

    def _class_mask(self) -> str:
        emit, shape = self.emit, [1] * self.emit.rank(self.like)
        shape[self.axis] = -1
        numbers = emit.node("Reshape", self._all_classes(), emit.constant(np.array(shape)))
        return emit.cast(emit.node("Equal", self.column, numbers), emit.dtype(self.like))

    def pick(self, scores: str) -> str:
        """The score of each element's label; 0 where it is ignored."""
        emit = self.emit
        if self.mask:
            return emit.reduce("ReduceSum", emit.mul(scores, self.mask), [self.axis])
        picked = emit.node("GatherElements", scores, self.column, axis=self.axis)
        picked = emit.squeeze(picked, self.axis)
        if not self.ignored:
            return picked
        return emit.node("Where", self.ignored, emit.number(0.0, self.like), picked)

    def weights(self) -> str:
        """The weight of each element: its class's, 0 when ignored; "" when all are 1."""
        emit = self.emit
        if self.class_weight is None:
            return self.keep
        found = emit.node("Gather", self.class_weight, self.labels, axis=0)
        return emit.mul(found, self.keep) if self.keep else found


def weighted_mean(emit: Emitter, values: str, weights: str, like: str) -> str:
    """Σ values / Σ weights, where the values are weighted already; a plain mean without weights.

    If all weights are 0 the mean is NaN, and its gradient 0 and not infinitely many times 0.
    """
    if not weights:
        return emit.reduce("ReduceMean", values)
    total, weight = emit.reduce("ReduceSum", values), emit.reduce("ReduceSum", weights)
    is_half = emit.dtype(like) == onnx.TensorProto.FLOAT16
    smallest = emit.number(6e-8 if is_half else 1.2e-38, like)
    mean = emit.div(total, emit.node("Max", weight, smallest))
    return emit.add(mean, emit.sub(emit.div(weight, weight), emit.number(1.0, like)))


def label_axis(rank: int, class_axis: int) -> int:
    """The class axis from the front; vectors of scores have it at 0."""
    return 0 if rank == 1 else class_axis % rank


def largest(kind: int) -> int:
    """The largest number of an integer type."""
    return int(np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(kind)).max)


INT64 = onnx.TensorProto.INT64
Names = Sequence[str]
