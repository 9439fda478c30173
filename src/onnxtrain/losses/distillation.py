"""A student learns what a teacher says, and the labels."""

from __future__ import annotations

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import Loss
from .classification import CrossEntropyLoss
from .labels import declare_labels, label_input
from .language import CausalLMLoss


class DistillationLoss(Loss):
    """The loss of the labels and the divergence from a teacher's softened answers.

    ``α·loss(x, labels) + (1 − α)·T²·KL(softmax(y/T) ‖ softmax(x/T))`` for scores x of the student
    and y of the teacher; T² makes up for the gradients that softening makes smaller. The divergence
    is a mean over all rows (tokens of a language model) whose label counts.

    Args:
        temperature: T. The higher, the more the teacher's wrong answers tell.
        alpha: share of the labels. With 0 there are none, and no input for them.
        loss: of the labels: `CrossEntropyLoss`, or `CausalLMLoss` for language models.
    """

    def __init__(
        self,
        temperature: float = 2.0,
        alpha: float = 0.5,
        loss: CrossEntropyLoss | CausalLMLoss | None = None,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise BlockError(f"temperature must be positive, not {temperature}.")
        if not 0 <= alpha <= 1:
            raise BlockError(f"alpha lies in [0, 1], and it is {alpha}.")
        self._temperature, self._alpha = float(temperature), float(alpha)
        self._hard = CrossEntropyLoss() if loss is None else loss

    def build(self, student_name: str, teacher_name: str, labels_name: str = "labels") -> str:  # type: ignore[override]
        """Append the loss of two values with equal shapes; labels become a graph input."""
        op = self._builder
        student, teacher = op.value(student_name), op.value(teacher_name)
        if student.rank != teacher.rank:
            raise ModelError(
                f"{student_name!r} has {student.rank} dimensions and {teacher_name!r} "
                f"{teacher.rank}: a student gives scores in the shape of its teacher's."
            )
        axis = self._hard.axis_of(student)
        sizes = [x.dim(axis) for x in (student, teacher)]
        if all(isinstance(s, int) for s in sizes) and sizes[0] != sizes[1]:
            raise ModelError(
                f"The student's {student_name!r} has {sizes[0]} classes and the teacher's "
                f"{teacher_name!r} {sizes[1]}: they must be the same classes in the same order."
            )
        if not self._alpha:
            return op.append(self.loss(op, student, teacher), "loss")
        labels = label_input(op, labels_name, student, axis)
        declare_labels(op, labels, student, axis, self._hard.ignore_index, self._hard.skip)
        return op.append(self.loss(op, student, teacher, labels), "loss")

    def loss(
        self, op: OpBuilder, student: Tensor, teacher: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """α times the labels' loss plus (1 − α) times the divergence."""
        soft = self._mean(op, self._divergence(op, student, teacher), labels)
        if labels is None or not self._alpha:
            return soft
        hard = self._hard.loss(op, student, labels)
        return hard * self._alpha + soft * (1.0 - self._alpha)

    def _divergence(self, op: OpBuilder, student: Tensor, teacher: Tensor) -> Tensor:
        """T²·Σ p·(log p − log q) over the classes."""
        axis = self._hard.axis_of(student)
        log_q, log_p = (
            op.LogSoftmax(x * (1.0 / self._temperature), axis=axis) for x in (student, teacher)
        )
        terms = op.Exp(log_p) * (log_p - log_q)
        return op.ReduceSum(terms, [axis], keepdims=0) * self._temperature**2

    def _mean(self, op: OpBuilder, values: Tensor, labels: Tensor | None) -> Tensor:
        ignored = self._hard.ignore_index
        if labels is None or ignored is None:
            return op.ReduceMean(values, keepdims=0)
        counts = op.Not(op.Equal(self._hard.targets(op, labels), ignored))
        weights = op.Cast(counts, to=values.dtype)
        total = op.ReduceSum(op.Where(counts, values, 0.0), keepdims=0)
        return total / op.Max(op.ReduceSum(weights, keepdims=0), 1.0)
