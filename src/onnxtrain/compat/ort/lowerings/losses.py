"""Cross entropies that keep the log-probabilities, and their gradients."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ....autodiff.rules.losses import softmax_cross_entropy_loss as rule
from ....errors import ModelError
from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering


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
    """Against probabilities: -Σ target·log softmax over the last axis."""
    log_prob = op.LogSoftmax(scores, axis=-1)
    total = -op.ReduceSum(target * log_prob, keepdims=0)
    if reduction == "mean":
        total = total / _rows(op, scores)
    return total, log_prob


def softmax_cross_entropy_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, target: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """(softmax - target), averaged over the rows."""
    dx = (op.Exp(log_prob) - target) * dy
    return dx / _rows(op, log_prob) if reduction == "mean" else dx


def _rows(op: OpBuilder, x: Tensor) -> Tensor:
    return op.count(x, range(x.rank - 1))


def sparse_softmax_cross_entropy(
    op: OpBuilder, scores: Tensor, labels: Tensor, weights: Tensor | None,
    *, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Against labels, with the classes along the last axis and a weight per label."""
    log_prob = op.LogSoftmax(scores, axis=-1)
    picked = op.GatherElements(log_prob, op.Unsqueeze(labels, [-1]), axis=-1)
    share = _sparse_share(op, labels, weights, scores, reduction)
    total = -op.ReduceSum(picked * share, keepdims=0)
    return total, log_prob


def sparse_softmax_cross_entropy_grad(
    op: OpBuilder, dy: Tensor, log_prob: Tensor, labels: Tensor, weights: Tensor | None,
    *, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """(softmax - one-hot) times the share of each label."""
    classes = op.Range(op.const(0), op.Squeeze(op.dim_of(log_prob, -1), [0]), op.const(1))
    label = op.Unsqueeze(labels, [-1])
    one_hot = op.Cast(op.Equal(label, op.Cast(classes, to=labels.dtype)), to=log_prob.dtype)
    return (op.Exp(log_prob) - one_hot) * (
        _sparse_share(op, labels, weights, log_prob, reduction) * dy
    )


def _sparse_share(
    op: OpBuilder, labels: Tensor, weights: Tensor | None, like: Tensor, reduction: str
) -> Tensor:
    """What each label counts, with an axis for the classes."""
    if weights is None:
        share = op.like(1, like)
        return share / op.count(labels, like=like) if reduction == "mean" else share
    share = op.Unsqueeze(weights, [-1])
    return share / op.ReduceSum(weights, keepdims=0) if reduction == "mean" else share


TABLE: dict[str, Lowering] = {
    "SoftmaxCrossEntropyLossInternal": softmax_cross_entropy_loss_internal,
    "SoftmaxCrossEntropyLossGrad": softmax_cross_entropy_loss_grad,
    "SoftmaxCrossEntropyLossInternalGrad": softmax_cross_entropy_loss_internal_grad,
    "SoftmaxCrossEntropy": softmax_cross_entropy,
    "SoftmaxCrossEntropyGrad": softmax_cross_entropy_grad,
    "SparseSoftmaxCrossEntropy": sparse_softmax_cross_entropy,
    "SparseSoftmaxCrossEntropyGrad": sparse_softmax_cross_entropy_grad,
}
