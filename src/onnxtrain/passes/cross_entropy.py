"""SoftmaxCrossEntropyLoss as LogSoftmax and what picks from it, shared with its gradient.

The gradient needs the log-probabilities anyway, and onnxruntime runs the two operators three to
four times as fast as the one (8.5 ms instead of 26 to 34 for 700 targets out of 28,782 classes).
NegativeLogLikelihoodLoss is spelled out, also that of a model: fewer nodes than onnxruntime makes
of it, some of which the gradient shares (100,000 rows of ten, both directions: 3.2 → 0.9 ms); and
where a GatherElements is all that reads the log-probabilities, sessions do without these
(`runtime/session/cross_entropy.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..autodiff import walk_between
from ..autodiff.bodies import inside
from ..autodiff.composites import Composite, Gradient, declare
from ..autodiff.registry import is_rule
from ..autodiff.rules.elementwise import as_type
from ..autodiff.rules.losses import (
    FEW_CLASSES,
    WIDE,
    class_axis,
    class_weights_gradient,
    cross_entropy_gradient,
    negative_log_likelihood_loss,
    picked_gradient,
    softmax_cross_entropy_loss,
    wide_type,
)
from ..autodiff.rules.softmax import is_across, log_softmax_across
from ..autodiff.walk import Walk
from ..graph import OpBuilder, Tensor
from ..graph.edit import remove_nodes, take_over
from ..graph.infer_nodes import infer_nodes
from ..graph.labels import are_checked
from ..graph.nodes import known, producer_of
from ..graph.subgraphs import subgraphs
from ..operators import LABEL_LOSSES

FARTHEST = 256
"""How far from 0 a label to ignore may lie for a table with a row for it: 32 kB for 32 classes."""

RULES: tuple[Callable[..., Any], ...] = (softmax_cross_entropy_loss, negative_log_likelihood_loss)
"""Of the operators that are split, unless there is another rule."""
PRODUCTS = ("Gemm", "MatMul", "Conv")
"""Operators whose results are finite if nothing overflows."""


def split_cross_entropies(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Split the cross entropies that gradients pass, and spell out what picks from logarithms.

    One whose log-probabilities are read stays: they are there. So does one in bfloat16, which
    NegativeLogLikelihoodLoss does not take, and all, where a user has registered another rule.
    """
    split = {name for name in LABEL_LOSSES if any(is_rule(rule, name) for rule in RULES)}
    if not split:
        return model
    walk, targets = walk_between(model, wrt, of, no_gradient)
    op = OpBuilder.on(model)
    for _, _, path in list(walk.levels(targets)):
        for node in path:
            if node.op_type in split and not node.domain and _is_split(node):
                _split(inside(op), node)
    op.attach(model.graph)
    return model


def _is_split(node: ir.Node) -> bool:
    scores = node.inputs[0]
    is_read = any(o.uses() or o.is_graph_output() for o in node.outputs[1:])
    return not is_read and scores is not None and scores.dtype != ir.DataType.BFLOAT16


def _split(op: OpBuilder, node: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    op.scope = node.name or node.op_type
    loss = _Loss.of(op, node)
    result, gradient = loss.mean_of_few() if loss.is_mean_of_few else loss.in_parts()
    infer_nodes(op.nodes, op.opset)
    nodes = op.place(graph, before=node)
    take_over(node.outputs[0], result.value)
    last = result.value.producer()
    assert last is not None
    inner = tuple(o for n in nodes if n is not last for o in n.outputs)
    name = node.name
    remove_nodes(graph, [node])
    last.name = name or last.name
    declare(Composite(last, inner, gradient))


@dataclass(frozen=True)
class _Loss:
    """The operands of a cross entropy.

    More than one axis of positions is taken as one: onnxruntime's LogSoftmax goes through more axes
    step by step (58,254 × 3 × 1 × 2 × 3: 9.1 ms, in three axes 5.2), and its GatherElements begins
    anew with each row of the last one (3494 × 3 × 5 × 5 × 2 × 2: 2.7 ms, in three axes 0.2).
    `scores_in` has the axes as they came, of these `sizes`.
    """

    op: OpBuilder
    scores_in: Tensor
    scores: Tensor
    target: Tensor
    weights: Tensor | None
    reduction: str
    ignore_index: int | None
    are_checked: bool
    sizes: tuple[int, ...]
    are_logs: bool
    """Whether the scores are log-probabilities already."""

    @classmethod
    def of(cls, op: OpBuilder, node: ir.Node) -> _Loss:
        scores, target, *weights = (None if v is None else op.tensor(v) for v in node.inputs)
        assert scores is not None
        assert target is not None
        ignored = node.attributes.get("ignore_index")
        are_logs = node.op_type == "NegativeLogLikelihoodLoss"
        # the rule of LogSoftmax looks at what its result's gradient was made by
        is_joined = are_logs and producer_of(scores.value, "LogSoftmax") is not None
        scores_in, sizes = scores, () if is_joined else _positions(scores)
        if sizes:
            scores = _in_one(op, scores_in, 2, sizes)
            target = _in_one(op, target, 1, sizes)
        return cls(
            op,
            scores_in,
            scores,
            target,
            weights[0] if weights else None,
            node.attributes.get_string("reduction", "mean"),
            None if ignored is None else ignored.as_int(),
            are_checked(node),
            sizes,
            are_logs,
        )

    @property
    def is_mean_of_few(self) -> bool:
        """Whether a row of all classes per label gives everything: see `mean_of_few`."""
        classes = self.scores.dim(1)
        is_plain_mean = self.weights is None and self.reduction == "mean"
        is_matrix = self.scores.rank == 2 and self.scores.dtype in WIDE
        is_few = isinstance(classes, int) and classes <= FEW_CLASSES
        return (
            self.ignore_index is not None
            and abs(self.ignore_index) <= FARTHEST
            and is_plain_mean
            and is_matrix
            and is_few
            and self.are_checked
            and not self.are_logs
        )

    def mean_of_few(self) -> tuple[Tensor, Gradient]:
        """Loss and gradient from one look into a table: an ignored label has a row of zeros there.

        The sum of the rows counts the targets, and their product with ones says of every score
        whether its row counts, five times as fast as broadcasting a column. For labels that were
        checked: what is no class has a row of NaN, or none.
        """
        op, scores, classes = self.op, self.scores, self.scores.dim(1)
        assert isinstance(classes, int)
        log_prob = op.LogSoftmax(scores, axis=1)
        one_hot = self._rows(1.0, classes)
        count = op.ReduceSum(one_hot, keepdims=0)
        if _is_finite(scores.value):
            of_label = one_hot * log_prob
        else:  # a class that is ruled out has −∞, and 0·∞ is no number
            of_label = op.Max(log_prob, self._rows(-np.inf, classes))
        total = op.ReduceL1(of_label, keepdims=0)  # logarithms are ≤ 0

        def gradient(walk: Walk, dys: Sequence[Tensor | None]) -> Iterable[tuple[ir.Value, Tensor]]:
            op, dy = walk.op, dys[0]
            assert dy is not None
            ones = op.const(np.ones((classes, classes)), scores.dtype)
            share = op.MatMul(one_hot, ones * dy / op.Max(count, op.like(1, scores)))
            share.value.shape = scores.value.shape
            return [(scores.value, op.Sub(op.Exp(log_prob), one_hot) * share)]

        return total / count, gradient

    def _rows(self, value: float, classes: int) -> Tensor:
        """For every label a row with `value` at its class and 0 elsewhere; 0 if it is ignored.

        One Gather takes half the time of a comparison with all classes and a cast.
        """
        assert self.ignore_index is not None
        rows = classes + abs(self.ignore_index) + 1  # a negative index counts from the end
        table = np.full((rows, classes), np.nan)
        table[:classes] = 0.0
        np.fill_diagonal(table, value)
        table[self.ignore_index] = 0.0
        return self.op.Gather(self.op.const(table, self.scores.dtype), self.target, axis=0)

    def in_parts(self) -> tuple[Tensor, Gradient]:
        """The log-probabilities, and the loss from them."""
        op, scores, target, weights = self.op, self.scores, self.target, self.weights
        reduction, ignored = self.reduction, self.ignore_index
        log_prob = scores if self.are_logs else self._logs()
        is_plain = weights is None and reduction != "none"
        loss = -(self._total(log_prob) if is_plain else self._weighted(log_prob))
        if self.sizes and reduction == "none":
            loss = op.Reshape(loss, [0, *self.sizes])

        def gradient(walk: Walk, dys: Sequence[Tensor | None]) -> Iterable[tuple[ir.Value, Tensor]]:
            op = walk.op
            x, y, labels = (op.tensor(t.value) for t in (scores, loss, target))
            w = None if weights is None else op.tensor(weights.value)
            if self.sizes and reduction == "none" and dys[0] is not None:
                dys = [_in_one(op, dys[0], 1, self.sizes)]
            if self.are_logs and dys[0] is not None:
                dx = picked_gradient(op, dys[0], y, x, labels, w, reduction, ignored)
            else:
                prob = op.Exp(log_prob)
                dx = cross_entropy_gradient(op, dys, prob, y, x, labels, w, reduction, ignored)
            if self.sizes:
                dx = op.Reshape(dx, [0, 0, *self.sizes])
            gradients = [(self.scores_in.value, dx)]
            if w is not None and dys[0] is not None:
                known = op.tensor(log_prob.value)
                dw = class_weights_gradient(op, dys[0], y, known, labels, w, reduction, ignored)
                gradients.append((w.value, dw))
            return gradients

        return loss, gradient

    def _logs(self) -> Tensor:
        if self.scores.dtype == ir.DataType.FLOAT and is_across(self.scores.shape, 1):
            return log_softmax_across(self.op, self.scores, 1)
        return self.op.LogSoftmax(self.scores, axis=1)

    def _total(self, log_prob: Tensor) -> Tensor:
        """The sum, or the mean, of the log-probabilities of the targets that count."""
        op, is_mean = self.op, self.reduction == "mean"
        label, counted = class_axis(op, self.target, self.ignore_index)
        picked = op.GatherElements(log_prob, label, axis=1)
        if counted is None:
            return (op.ReduceMean if is_mean else op.ReduceSum)(picked, keepdims=0)
        wide = wide_type(log_prob)
        total: Tensor = op.ReduceSum(as_type(op, op.Where(counted, picked, 0), wide), keepdims=0)
        if is_mean:
            total = total / op.ReduceSum(op.Cast(counted, to=wide), keepdims=0)
        return as_type(op, total, log_prob.dtype)

    def _weighted(self, log_prob: Tensor) -> Tensor:
        """The same with weights of classes, or of each target."""
        op, wide = self.op, wide_type(log_prob)
        label, counted = class_axis(op, self.target, self.ignore_index)
        picked, weight = op.GatherElements(log_prob, label, axis=1), None
        if self.weights is not None:
            weight = op.Gather(self.weights, label)
            picked = picked * weight
        if counted is not None:
            picked = op.Where(counted, picked, 0)
        if self.reduction == "none":
            return op.Squeeze(picked, [1])
        total = op.ReduceSum(as_type(op, picked, wide), keepdims=0)
        if self.reduction == "mean":
            assert weight is not None
            weight = weight if counted is None else op.Where(counted, weight, 0)
            total = total / op.ReduceSum(as_type(op, weight, wide), keepdims=0)
        return as_type(op, total, log_prob.dtype)


def _positions(scores: Tensor) -> tuple[int, ...]:
    """Sizes of the axes behind the classes, if there are several, and all are known."""
    sizes = tuple(d for d in (scores.shape or ())[2:] if isinstance(d, int))
    is_known = len(sizes) > 1 and len(sizes) == scores.rank - 2
    return sizes if is_known else ()


def _in_one(op: OpBuilder, x: Tensor, first: int, sizes: Sequence[int]) -> Tensor:
    """`x` with one axis of positions behind the first ones."""
    total = math.prod(sizes)
    result: Tensor = op.Reshape(x, [*[0] * first, total])
    if x.shape is not None:
        result.value.shape = ir.Shape([*x.shape[:first], total])
    return result


def _is_finite(scores: ir.Value | None) -> bool:
    """Whether scores come from a layer and not, say, from a mask that rules classes out."""
    node = scores.producer() if scores is not None else None
    if scores is None or node is None:
        return False
    if node.op_type == "Transpose":
        return _is_finite(node.inputs[0])
    if node.op_type == "If":
        return all(_is_finite(branch.outputs[scores.index() or 0]) for branch in subgraphs(node))
    if node.op_type not in PRODUCTS:
        return False
    bias = _behind_unsqueeze(node.inputs[2]) if len(node.inputs) > 2 else None
    numbers = known(bias)
    return numbers is None or bool(np.isfinite(numbers.numpy()).all())


def _behind_unsqueeze(value: ir.Value | None) -> ir.Value | None:
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == "Unsqueeze" else value
