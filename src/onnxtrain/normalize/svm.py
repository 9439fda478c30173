"""Support vector machines of ai.onnx.ml as standard operators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .ml_common import both, floats, labels, transform
from .rewrite import weight

SURE = 1e-7
"""How close to 0 or 1 the probability of one class against another may come."""


def svm_regressor(
    op: OpBuilder, x: Tensor,
    *, coefficients: Sequence[float], kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (0.0, 0.0, 3.0), n_supports: int = 0, one_class: int = 0,
    post_transform: str = "NONE", rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (),
) -> Tensor:  # fmt: skip
    """Σᵢ cᵢ·K(x, sᵢ) + ρ over the support vectors, or x·c + ρ without any."""
    x = floats(op, x)
    factors = weight(op, "coefficients", np.array(coefficients, np.float32).reshape(-1, 1))
    shift = weight(op, "rho", np.array(rho, np.float32))
    if n_supports:
        rows = np.array(support_vectors, np.float32).reshape(n_supports, -1)
        x = _kernel(op, x, weight(op, "support_vectors", rows), kernel_type, kernel_params)
    score = op.MatMul(x, factors) + shift
    if one_class:  # inside or outside: a step
        return op.Where(score > 0.0, op.like(1.0, score), op.like(-1.0, score))
    return transform(op, score, post_transform)


def svm_classifier(
    op: OpBuilder, x: Tensor,
    *, coefficients: Sequence[float], classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str | bytes] = (), kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (0.0, 0.0, 3.0), post_transform: str = "NONE",
    prob_a: Sequence[float] = (), prob_b: Sequence[float] = (), rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (), vectors_per_class: Sequence[int] = (),
) -> Any:  # fmt: skip
    """Label and scores of each row: one machine per pair of classes, or one per class.

    Each pair votes for a class. Scores are those of the pairs, of two classes −s and s; with
    `prob_a` and `prob_b` the probabilities of two classes, σ(−(a·s + b)) of the first, which
    onnxruntime approaches by an iteration and gives to three digits.
    """
    x = op.Unsqueeze(x, [0]) if x.rank == 1 else x
    x = floats(op, x)
    classes = len(classlabels_ints) or len(classlabels_strings)
    if not sum(vectors_per_class):
        scores = _score_per_class(op, x, coefficients, rho, classes)
        chosen = op.ArgMax(scores, axis=1, keepdims=0)
        if classes == 2:
            chosen = _second_if_any(op, scores, chosen, min(coefficients) >= 0)
        scores = transform(op, scores, post_transform)
    else:
        rows = np.array(support_vectors, np.float32).reshape(sum(vectors_per_class), -1)
        near = _kernel(op, x, weight(op, "support_vectors", rows), kernel_type, kernel_params)
        pairs = _score_per_pair(op, near, coefficients, rho, vectors_per_class)
        chosen = _class_of_votes(op, pairs, classes)
        if prob_a:
            shares = _probabilities(op, pairs, prob_a, prob_b, classes)
            scores = transform(op, shares, post_transform)
        elif classes == 2:
            none = post_transform == "NONE"
            scores = op.Concat(-pairs, pairs, axis=1) if none else both(op, pairs, post_transform)
        else:
            scores = transform(op, pairs, post_transform)
    return labels(op, chosen, classlabels_ints, classlabels_strings), scores


def _score_per_class(
    op: OpBuilder, x: Tensor, coefficients: Sequence[float], rho: Sequence[float], classes: int
) -> Tensor:
    matrix = weight(op, "coefficients", np.array(coefficients, np.float32).reshape(classes, -1))
    return op.Gemm(x, matrix, transB=1) + weight(op, "rho", np.array(rho[:1], np.float32))


def _second_if_any(op: OpBuilder, scores: Tensor, chosen: Tensor, all_positive: bool) -> Tensor:
    """The second of two classes as soon as any score says yes."""
    largest = op.ReduceMax(scores, [1], keepdims=0)
    says_yes = largest >= 0.5 if all_positive else largest > 0.0
    return op.Where(says_yes, op.like(1, chosen), chosen)


def _score_per_pair(
    op: OpBuilder,
    near: Tensor,
    coefficients: Sequence[float],
    rho: Sequence[float],
    vectors_per_class: Sequence[int],
) -> Tensor:
    """Σᵥ c·K(x, sᵥ) + ρ over the support vectors of both classes of each pair.

    A vector has one coefficient against each other class: those of class i against j are in row
    j − 1 if i < j, in row j otherwise.
    """
    classes, count = len(vectors_per_class), sum(vectors_per_class)
    class_of = np.repeat(np.arange(classes), vectors_per_class)
    pairs = np.array(list(itertools.combinations(range(classes), 2)))
    first, second = class_of[:, None] == pairs[:, 0], class_of[:, None] == pairs[:, 1]
    row = np.where(first, pairs[:, 1] - 1, np.where(second, pairs[:, 0], 0))
    place = row * count + np.arange(count)[:, None]
    flat = weight(op, "coefficients", np.array(coefficients, np.float32))
    in_pair = weight(op, "in_pair", (first | second).astype(np.float32), trained=False)
    shift = weight(op, "rho", np.array(rho, np.float32)[: len(pairs)])
    return op.MatMul(near, op.Gather(flat, place, axis=0) * in_pair) + shift


def _class_of_votes(op: OpBuilder, pairs: Tensor, classes: int) -> Tensor:
    """A positive score is a vote for the first class of a pair, any other for the second."""
    against = list(itertools.combinations(range(classes), 2))
    first, second = (np.eye(classes, dtype=np.float32)[[p[k] for p in against]] for k in (0, 1))
    yes = op.Cast(pairs > 0.0, to=ir.DataType.FLOAT)
    change = weight(op, "votes", first - second, trained=False)
    votes = op.MatMul(yes, change) + weight(op, "no_votes", second.sum(0), trained=False)
    return op.ArgMax(votes, axis=1, keepdims=0)


def _probabilities(
    op: OpBuilder, scores: Tensor, a: Sequence[float], b: Sequence[float], classes: int
) -> Tensor:
    if classes != 2:
        raise ModelError(
            f"Probabilities of a support vector machine with {classes} classes are found by an "
            "iteration, which has no gradient here. Convert the model without prob_a and prob_b "
            "(probability=False in scikit-learn), and train its scores."
        )
    slope = weight(op, "prob_a", np.array(a, np.float32))
    shift = weight(op, "prob_b", np.array(b, np.float32))
    first = op.Clip(op.Sigmoid(-(scores * slope + shift)), SURE, 1 - SURE)
    return op.Concat(first, 1.0 - first, axis=1)


def _kernel(
    op: OpBuilder, x: Tensor, vectors: Tensor, kind: str, parameters: Sequence[float]
) -> Tensor:
    """How close each row is to each support vector."""
    gamma, offset, degree = parameters
    products = op.Gemm(x, vectors, transB=1)
    if kind == "LINEAR":
        return products
    if kind == "POLY":
        return op.Pow(products * gamma + offset, op.like(degree, x))
    if kind == "SIGMOID":
        return op.Tanh(products * gamma + offset)
    if kind == "RBF":
        sizes = op.Transpose(op.ReduceSumSquare(vectors, [1], keepdims=1), perm=[1, 0])
        distances = op.ReduceSumSquare(x, [1], keepdims=1) - products * 2.0 + sizes
        return op.Exp(distances * -gamma)
    raise ModelError(f"A support vector machine with kernel {kind!r} is not supported.")
