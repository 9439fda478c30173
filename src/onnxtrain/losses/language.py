"""The loss of language models: cross entropy of each token given those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import Loss
from .classification import TWICE, CrossEntropyLoss
from .labels import IGNORED, check_ignored, declare_labels, label_input

LAST = 2**63 - 1


class CausalLMLoss(Loss):
    """Cross entropy of the next token: scores at position t against the label at t + 1.

    Scores are [batch, length, vocabulary]; labels are INT64 [batch, length], usually the
    ``input_ids`` themselves with `ignore_index` where nothing is to be learned (padding, prompts).
    The mean is over the labels that count, so its exponential is the perplexity.

    Args:
        ignore_index: label whose positions do not count.
        reduction: "mean", "sum" or "none" (one loss per predicted position).
        shift: compare position t with label t + 1; False for labels that are shifted already.
        label_smoothing: share of the target that is spread evenly over the vocabulary.
    """

    _unfit: ClassVar[Mapping[str, str]] = {"Softmax": TWICE}

    def __init__(
        self,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        *,
        shift: bool = True,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        ignored = check_ignored(ignore_index)
        if ignored is None:
            raise BlockError("CausalLMLoss needs an ignore_index: the last position has no label.")
        self._ignore, self._shift = ignored, shift
        self.skip = int(shift)
        self._entropy = CrossEntropyLoss(None, reduction, ignored, label_smoothing=label_smoothing)
        self._each = CrossEntropyLoss(None, "none", ignored, label_smoothing=label_smoothing)

    @property
    def ignore_index(self) -> int:
        """The label that does not count."""
        return self._ignore

    def axis_of(self, scores: Tensor) -> int:
        """The axis of the vocabulary."""
        return scores.rank - 1

    def targets(self, op: OpBuilder, labels: Tensor) -> Tensor:
        """The label that each position is compared with; `ignore_index` at the last one."""
        return self._following(op, labels) if self._shift else labels

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Append the loss; the labels become a graph input unless they exist."""
        op = self._builder
        op.require(11, "CausalLMLoss")
        scores = op.value(scores_input_name)
        self._look_at(op, scores)
        if scores.rank != 3:
            raise ModelError(
                f"CausalLMLoss takes scores [batch, length, vocabulary], and {scores.name!r} has "
                f"{scores.rank} dimensions."
            )
        labels = label_input(op, labels_name, scores, 2)
        declare_labels(op, labels, scores, 2, self._ignore, skip=self.skip)
        return op.append(self.loss(op, scores, labels), "loss")

    def loss(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> Tensor:
        """Of all positions as rows of one matrix, which is how the fast operator takes them."""
        if self._reduction == "none":
            return self.elements(op, scores, labels)
        return self._entropy.loss(op, *self._rows(op, scores, labels))

    def elements(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each predicted position, 0 where the label is ignored."""
        loss = self._each.loss(op, *self._rows(op, scores, labels))
        loss = op.Reshape(loss, op.Shape(labels))
        return op.Slice(loss, [0], [-1], [1]) if self._shift else loss

    def _rows(self, op: OpBuilder, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rows = op.Reshape(scores, self._matrix(op, scores))
        rows.value.shape = ir.Shape([None, scores.dim(2)])
        numbers = op.Reshape(self.targets(op, labels), [-1])
        numbers.value.shape = ir.Shape([None])
        return rows, numbers

    def _following(self, op: OpBuilder, labels: Tensor) -> Tensor:
        """Each label one place to the left; scores are large and stay where they are."""
        first = op.Slice(labels, [0], [1], [1])
        return op.Concat(op.Slice(labels, [1], [LAST], [1]), first * 0 + self._ignore, axis=1)

    @staticmethod
    def _matrix(op: OpBuilder, scores: Tensor) -> Any:
        vocabulary = scores.dim(2)
        if isinstance(vocabulary, int):
            return [-1, vocabulary]
        return op.Concat(op.const(np.array([-1])), op.Slice(op.Shape(scores), [2], [3]), axis=0)
