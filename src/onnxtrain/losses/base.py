"""What all losses share: a formula on the op builder, a reduction, and targets as graph inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ..errors import LossInputWarning, ModelError, outside_level
from ..graph import OpBuilder, Tensor
from ..graph.block import Block, BlockError
from ..graph.endings import ending, producer_in_proto
from ..graph.model_builder import ModelBuilder

REDUCTIONS = ("mean", "sum", "none")


class Loss(Block):
    """A loss: a formula for each element, and a reduction.

    A loss of one prediction and a target like it implements `elements` and is done; one with
    other inputs implements `build` too. Inside a graph that is built with an `OpBuilder`, use
    `elements` or `loss` directly; as a block on a model, call it with names.

    Args:
        reduction: "mean" over all elements, "sum", or "none" for the unreduced tensor.

    Example:
        >>> from onnxtrain import losses, onnxblock
        >>> class Quartic(losses.Loss):
        ...     def elements(self, op, x, t):
        ...         square = (x - t) * (x - t)
        ...         return square * square
        >>> Quartic(reduction="median")
        Traceback (most recent call last):
        onnxtrain.graph.block.BlockError: Reduction 'median' not supported. \
Use one of mean, sum, none.
    """

    _allowed: tuple[str, ...] = REDUCTIONS
    _unfit: ClassVar[Mapping[str, str]] = {}
    """What to say of an input that ends in a certain function; see `Ending`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self._allowed:
            raise BlockError(
                f"Reduction {reduction!r} not supported. Use one of {', '.join(self._allowed)}."
            )
        self._reduction = reduction

    def elements(self, op: OpBuilder, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of each element.

        Args:
            op: builder of the graph.
            args: the prediction (or predictions), then the target.
            kwargs: what a loss takes besides.
        """
        raise NotImplementedError(f"{type(self).__name__} has no formula for single elements.")

    def loss(self, op: OpBuilder, *args: Any) -> Tensor:
        """The loss after the reduction, of the same arguments as `elements`."""
        return self._reduce(op, self.elements(op, *args))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        op = self._builder
        x = op.value(loss_input_name)
        self._look_at(op, x)
        return op.append(self.loss(op, x, target_like(op, target_name, x)))

    def _look_at(self, op: ModelBuilder, x: Tensor) -> None:
        """Warn if the loss is not meant for what an input is."""
        end = ending(x.name, producer_in_proto(op.model.graph)) if self._unfit else None
        if end is not None and end.function in self._unfit:
            text = self._unfit[end.function].format(
                loss=type(self).__name__, input=end.value, scores=end.scores,
                how=f"loss_input_names=[{end.scores!r}], --loss-output {end.scores}",
            )  # fmt: skip
            warnings.warn(text, LossInputWarning, stacklevel=outside_level())

    def _reduce(self, op: OpBuilder, x: Tensor) -> Tensor:
        if self._reduction == "none":
            return x
        if self._reduction == "mean":
            return op.ReduceMean(x, keepdims=0)
        return op.ReduceSum(x, keepdims=0)


def target_like(
    op: ModelBuilder,
    name: str,
    x: Tensor,
    *,
    dtype: ir.DataType | None = None,
    drop: int | None = None,
) -> Tensor:
    """A value to compare with: an existing one of that name, else a new graph input.

    Args:
        op: the builder.
        name: name of the target.
        x: the value whose type and shape it has.
        dtype: another element type.
        drop: an axis of `x` that the target does not have.
    """
    dims = [x.dim(i) for i in range(x.rank)]
    if drop is not None:
        del dims[drop]
    return op.input(name, x.dtype if dtype is None else dtype, dims)


def check_weight(weight: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Weights as an array; None stays None."""
    if weight is None:
        return None
    array = np.asarray(weight)
    if array.dtype.kind not in "fiu":
        raise ModelError(f"{name} must be numbers, not {array.dtype}.")
    return array


def weighted(op: OpBuilder, loss: Tensor, weight: np.ndarray[Any, Any] | None) -> Tensor:
    """A loss times weights that broadcast; as it is without them."""
    return loss if weight is None else loss * op.const(weight, loss.dtype)
