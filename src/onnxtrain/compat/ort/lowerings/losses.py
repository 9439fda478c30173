"""Cross entropies that keep the log-probabilities, and their gradients."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ....autodiff.rules.losses import softmax_cross_entropy_loss as rule
from ....errors import ModelError
from ....graph import OpBuilder, Tensor
from ....losses import CrossEntropyLoss
from ....normalize.rewrite import Lowering
from ._vjp import vjp


def softmax_cross_entropy_loss_internal(
    op: OpBuilder, scores: Tensor, labels: Tensor, weights: Tensor | None, ignored: Tensor | None,
    *, reduction: str = "mean", output_type: int | None = None,
) -> Any:  # fmt: skip
    """The standard loss with the ignored label as an operand."""
    loss, log_prob = op.many(
        "SoftmaxCrossEntropyLoss", scores, labels, weights,
        outputs=2, reduction=reduction, ignore_index=_ignored(ignored),
    )  # fmt: skip
    if output_type and output_type != scores.dtype:
        loss = op.Cast(loss, to=ir.DataType(output_type))
        log_prob = op.Cast(log_prob, to=ir.DataType(output_type))
    return loss, log_prob


def softmax_cross_entropy_loss_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, labels: Tensor, weights: Tensor | None,
    *, reduction: str = "mean", ignore_index: int | None = None,
) -> Any:  # fmt: skip
    """(softmax - one-hot) times the share of each label."""
    return rule(
        op, (dy,), (dy, log_prob), log_prob, labels, weights,
        reduction=reduction, ignore_index=ignore_index,
    )  # fmt: skip


def softmax_cross_entropy_loss_internal_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, labels: Tensor, weights: Tensor | None,
    ignored: Tensor | None, bias: Tensor | None,
    *, reduction: str = "mean", output_type: int | None = None,
) -> Any:  # fmt: skip
    """As before; `bias` is added to the result."""
    dx: Tensor = softmax_cross_entropy_loss_grad(
        op, dy, log_prob, labels, weights, reduction=reduction, ignore_index=_ignored(ignored)
    )
    if output_type and output_type != log_prob.dtype:
        dx = op.Cast(dx, to=ir.DataType(output_type))
    return dx if bias is None else op.reshape_like(dx, bias) + bias


def _ignored(operand: Tensor | None) -> int | None:
    if operand is None:
        return None
    if operand.const is None:
        raise ModelError(
            f"The label to ignore, {operand.name!r}, is computed; it must be a constant."
        )
    return int(operand.const)


def softmax_cross_entropy(
    op: OpBuilder, scores: Tensor, target: Tensor, *, reduction: str = "mean"
) -> Any:
    """Against probabilities along the last axis."""
    loss = CrossEntropyLoss(None, reduction, class_axis=-1, probabilities=True)
    return loss.loss(op, scores, target), op.LogSoftmax(scores, axis=-1)


def softmax_cross_entropy_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, target: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """Logarithms of probabilities are scores themselves: their softmax is the same."""

    def forward(op: OpBuilder, scores: Tensor, target: Tensor) -> Tensor:
        loss = CrossEntropyLoss(None, reduction, class_axis=-1, probabilities=True)
        return loss.loss(op, scores, target)

    return vjp(op, forward, [log_prob, target], [dy], [0])[0]


def sparse_softmax_cross_entropy(
    op: OpBuilder, scores: Tensor, labels: Tensor, weights: Tensor | None,
    *, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Against labels, with the classes along the last axis and a weight per label."""
    loss = CrossEntropyLoss(None, reduction, None, class_axis=-1)
    log_prob = op.LogSoftmax(scores, axis=-1)
    if weights is None:
        return loss.loss(op, scores, labels), log_prob
    total = op.ReduceSum(loss.elements(op, scores, labels) * weights, keepdims=0)
    if reduction == "mean":
        total = total / op.ReduceSum(weights, keepdims=0)
    return total, log_prob


def sparse_softmax_cross_entropy_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, labels: Tensor, weights: Tensor | None,
    *, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """As before."""

    def forward(op: OpBuilder, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        loss: Tensor = sparse_softmax_cross_entropy(
            op, scores, labels, weights, reduction=reduction
        )[0]
        return loss

    return vjp(op, forward, [log_prob, labels, weights], [dy], [0])[0]


TABLE: dict[str, Lowering] = {
    "SoftmaxCrossEntropyLossInternal": softmax_cross_entropy_loss_internal,
    "SoftmaxCrossEntropyLossGrad": softmax_cross_entropy_loss_grad,
    "SoftmaxCrossEntropyLossInternalGrad": softmax_cross_entropy_loss_internal_grad,
    "SoftmaxCrossEntropy": softmax_cross_entropy,
    "SoftmaxCrossEntropyGrad": softmax_cross_entropy_grad,
    "SparseSoftmaxCrossEntropy": sparse_softmax_cross_entropy,
    "SparseSoftmaxCrossEntropyGrad": sparse_softmax_cross_entropy_grad,
}
