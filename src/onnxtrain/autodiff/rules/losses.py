"""Losses that are one operator: SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss.

Both read one log-probability per target, ``loss = -w[t]·logp[t]``, leave out targets equal to
`ignore_index`, and sum, average (by the weight that was counted) or list what is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.labels import are_checked
from ..registry import gradient, gradient_multi
from .reductions import inverse_count
from .softmax import add_at

FEW_CLASSES = 32
"""Up to this many classes, comparing with all of them is faster than adding at one place."""

WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types in which the number of targets can be counted; a float16 ends at 65,504."""


@gradient_multi("SoftmaxCrossEntropyLoss", stops=(1, 2))
def softmax_cross_entropy_loss(
    op: OpBuilder,
    dys: tuple[Tensor | None, ...],
    ys: tuple[Tensor, ...],
    scores: Tensor,
    target: Tensor,
    weights: Tensor | None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Any:
    has_log_prob = len(ys) > 1 and bool(ys[1].value.name)
    keeps_node = has_log_prob or scores.dtype == ir.DataType.BFLOAT16
    d_log_prob, classes = dys[1] if len(dys) > 1 else None, scores.dim(1)
    is_few = d_log_prob is None and isinstance(classes, int) and classes <= FEW_CLASSES
    is_plain_mean = weights is None and reduction == "mean"
    if ignore_index is not None and is_few and is_plain_mean and dys[0] is not None:
        assert isinstance(classes, int)
        if not keeps_node and scores.rank == 2 and scores.dtype in WIDE and are_checked(op.node):
            return _mean_of_few(op, dys[0], scores, target, classes, ignore_index)
    if scores.dtype == ir.DataType.BFLOAT16:  # which NegativeLogLikelihoodLoss does not take
        prob = op.Softmax(scores, axis=1)
    elif has_log_prob:
        prob = op.Exp(ys[1])
    else:
        prob = op.Exp(_split_forward(op, scores, target, weights is not None, ignore_index))
    if dys[0] is None:
        assert d_log_prob is not None
        return d_log_prob - prob * op.ReduceSum(d_log_prob, [1])
    label, share = _share(op, dys[0], ys[0], scores, target, weights, reduction, ignore_index)
    if is_few:
        assert isinstance(classes, int)
        return (prob - _one_hot(op, label, classes, scores)) * share
    if d_log_prob is None:
        dx = prob * share
    else:
        dx = prob * (share - op.ReduceSum(d_log_prob, [1])) + d_log_prob
    return add_at(op, dx, label, -share, 1)


def _one_hot(op: OpBuilder, label: Tensor, classes: int, like: Tensor) -> Tensor:
    """1 at the label and 0 elsewhere, of the shape of `like`."""
    numbers = np.arange(classes).reshape(-1, *[1] * (like.rank - 2))
    return op.Cast(op.Equal(label, op.const(numbers, label.dtype)), to=like.dtype)


def _mean_of_few(
    op: OpBuilder, dy: Tensor, scores: Tensor, target: Tensor, classes: int, ignore_index: int
) -> Tensor:
    """Loss and gradient from one comparison with all classes: an ignored row is zero there.

    Its sum counts the targets, and its product with ones says of every score whether its row
    counts, five times as fast as broadcasting a column. For labels that were checked: one that
    is no class would not be noticed here.
    """
    node = op.node
    assert node is not None
    with op.forward():
        log_prob = op.LogSoftmax(scores, axis=1)
        label = op.Unsqueeze(target, [1])
        if 0 <= ignore_index < classes:
            label = op.Where(op.Equal(label, ignore_index), -1, label)
        hit = op.Equal(label, op.const(np.arange(classes), label.dtype))
        one_hot = op.Cast(hit, to=scores.dtype)
        count = op.ReduceSum(one_hot, keepdims=0)
        total = op.ReduceL1(op.Where(hit, log_prob, 0), keepdims=0)  # logarithms are ≤ 0
    log_prob.value.shape = one_hot.value.shape = scores.value.shape
    count.value.shape = ir.Shape([])
    _become(node, "Div", total, count)
    ones = op.const(np.ones((classes, classes)), scores.dtype)
    share = one_hot @ (ones * dy / op.Max(count, op.like(1, scores)))
    share.value.shape = scores.value.shape
    return (op.Exp(log_prob) - one_hot) * share


def _become(node: ir.Node, op_type: str, *inputs: Tensor) -> None:
    """Make a node another operator, without attributes, with one output."""
    node.resize_outputs(1)
    node.op_type = op_type
    node.attributes.clear()
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value.value)


def _split_forward(
    op: OpBuilder, scores: Tensor, target: Tensor, weighted: bool, ignore_index: int | None
) -> Tensor:
    """Make the forward node LogSoftmax and NegativeLogLikelihoodLoss; the log-probabilities.

    The gradient needs them anyway, and onnxruntime runs the two operators three to four times as
    fast as the one (8.5 ms instead of 26 to 34 for 700 targets out of 28,782 classes). Where all
    targets have the same weight the second is spelled out: fewer nodes than onnxruntime makes of
    it, some of which the gradient shares.
    """
    node = op.node
    assert node is not None
    reduction = node.attributes.get_string("reduction", "mean")
    with op.forward():
        log_prob = op.LogSoftmax(scores, axis=1)
        if not weighted and reduction != "none":
            total = _total(op, log_prob, target, reduction, ignore_index)
    log_prob.value.shape = scores.value.shape
    if not weighted and reduction != "none":
        _become(node, "Neg", total)
    else:
        node.resize_outputs(1)
        node.op_type = "NegativeLogLikelihoodLoss"
        node.replace_input_with(0, log_prob.value)
    return log_prob


def _total(
    op: OpBuilder, log_prob: Tensor, target: Tensor, reduction: str, ignore_index: int | None
) -> Tensor:
    """The sum, or the mean, of the log-probabilities of the targets that count."""
    label, counted = _labels(op, target, ignore_index)
    picked = op.GatherElements(log_prob, label, axis=1)
    if counted is None:
        reduce = op.ReduceMean if reduction == "mean" else op.ReduceSum
        return reduce(picked, keepdims=0)
    wide = _wide(log_prob)
    total: Tensor = op.ReduceSum(_cast(op, op.Where(counted, picked, 0), wide), keepdims=0)
    if reduction == "mean":
        total = total / op.ReduceSum(op.Cast(counted, to=wide), keepdims=0)
    return _cast(op, total, log_prob.dtype)


def _labels(
    op: OpBuilder, target: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """Targets with a class axis put in, ignored ones as 0, and which of them count (None: all)."""
    label, counted = op.Unsqueeze(target, [1]), None
    if ignore_index is not None:
        counted = op.Not(op.Equal(label, ignore_index))
        label = op.Where(counted, label, 0)
    if target.shape is not None:  # known from here on: one label along the class axis
        label.value.shape = ir.Shape([*target.shape[:1], 1, *target.shape[1:]])
    return label, counted


def _wide(x: Tensor) -> ir.DataType:
    return x.dtype if x.dtype in WIDE else ir.DataType.FLOAT


def _cast(op: OpBuilder, x: Tensor, dtype: ir.DataType) -> Tensor:
    return x if x.dtype == dtype else op.Cast(x, to=dtype)


@gradient("NegativeLogLikelihoodLoss", stops=(1, 2))
def negative_log_likelihood_loss(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weights: Tensor | None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Any:
    label, share = _share(op, dy, y, log_prob, target, weights, reduction, ignore_index)
    return op.ScatterElements(op.zeros_like(log_prob), label, _each(op, -share, label), axis=1)


class _Share(NamedTuple):
    """The label of each target with a class axis put in, and -∂loss/∂logp[label].

    The second is one number for all targets where it can be. An ignored target has label 0 and
    share 0, also when nothing is left to average over and the loss itself is 0/0.
    """

    label: Tensor
    share: Tensor


def _share(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    scores: Tensor,
    target: Tensor,
    weights: Tensor | None,
    reduction: str,
    ignore_index: int | None,
) -> _Share:
    label, counted = _labels(op, target, ignore_index)
    weight = None
    if weights is not None:
        picked = op.Gather(weights, label)
        weight = picked if counted is None else op.Where(counted, picked, 0)
    if reduction == "none":
        dy = op.Unsqueeze(dy, [1])
    elif reduction == "mean":
        dy = dy * _inverse_total(op, y, scores, target, weight, counted)
    share = dy if weight is None else dy * weight
    return _Share(label, share if counted is None else op.Where(counted, share, 0))


def _inverse_total(
    op: OpBuilder,
    y: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    counted: Tensor | None,
) -> Tensor:
    """One over what a mean divides by: the weights, or the number of targets that count."""
    if weight is None and counted is None:
        return inverse_count(op, target, y, like=scores)
    wide = _wide(scores)
    if weight is None:
        assert counted is not None
        total = op.ReduceSum(op.Cast(counted, to=wide), keepdims=0)
    else:
        total = op.ReduceSum(_cast(op, weight, wide), keepdims=0)
    return _cast(op, op.const(1.0, wide) / total, scores.dtype)


def _each(op: OpBuilder, share: Tensor, label: Tensor) -> Tensor:
    """One number per label, as ScatterElements wants it."""
    return op.Expand(share, op.Shape(label))
