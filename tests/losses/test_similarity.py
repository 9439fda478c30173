"""Losses of embeddings and of a teacher: against formulas in torch, and float64 differences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx.reference import ReferenceEvaluator

import onnxtrain
from onnxtrain import losses, onnxblock
from onnxtrain.graph.block import BlockError
from tests.onnxblock.harness import identity_model, only_standard, run

RNG = np.random.default_rng(5)
N, D, C = 5, 8, 4


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


A, P, Q = (normal(N, D) for _ in range(3))
T = np.array([0.9, 0.1, 0.5, 0.5, 0.3])
LABELS = np.array([0, 3, -100, 1, 2])
TOKENS = np.array([[1, 2, -100], [0, -100, 3]])


def ranking(scale):
    def loss(a, p, *rest):
        candidates = F.normalize(torch.cat([p, *rest]), dim=1)
        scores = F.normalize(a, dim=1) @ candidates.T * scale
        return F.cross_entropy(scores, torch.arange(len(a)))

    return loss


def cosent(a, b, t):
    scores = F.cosine_similarity(a, b) * 20
    differences = scores[:, None] - scores[None, :]
    differences = differences - (t[:, None] >= t[None, :]).to(a.dtype) * 1e12
    return torch.logsumexp(torch.cat([torch.zeros(1, dtype=a.dtype), differences.view(-1)]), 0)


def triplet(distance, margin):
    return lambda a, p, n: torch.relu(distance(a, p) - distance(a, n) + margin).mean()


def matryoshka(loss, dims, weights, labelled=False):
    def total(*args):
        vectors, rest = (args[:-1], args[-1:]) if labelled else (args, ())
        return sum(
            w * loss(*(F.normalize(v[:, :d], dim=1) for v in vectors), *rest)
            for d, w in zip(dims, weights)
        )

    return total


def distilled(temperature, alpha, hard, soft_rows):
    def loss(x, y, labels=None):
        q, p = (F.log_softmax(v / temperature, -1) for v in (x, y))
        soft = F.kl_div(q, p, reduction="none", log_target=True).sum(-1) * temperature**2
        if labels is None:
            return soft.mean()
        return alpha * hard(x, labels) + (1 - alpha) * soft[soft_rows(labels)].mean()

    return loss


def next_token(x, y):
    return F.cross_entropy(x[:, :-1].reshape(-1, C), y[:, 1:].reshape(-1))


def rows_before_a_label(labels):
    following = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    return following != -100


MNRL, COS = losses.MultipleNegativesRankingLoss, losses.CosineSimilarityLoss
CASES = {
    "ranking": (MNRL(), [A, P], {}, ranking(20.0)),
    "ranking, scale 3": (MNRL(scale=3.0), [A, P], {}, ranking(3.0)),
    "ranking, hard negatives": (MNRL(), [A, P, Q], {}, ranking(20.0)),
    "cosine": (
        COS(), [A, P], {"target": T}, lambda a, b, t: F.mse_loss(F.cosine_similarity(a, b), t),
    ),
    "cosent": (losses.CoSENTLoss(), [A, P], {"target": T}, cosent),
    "triplet": (losses.TripletLoss(), [A, P, Q], {}, triplet(F.pairwise_distance, 5)),
    "triplet manhattan": (
        losses.TripletLoss("manhattan", 1.0), [A, P, Q], {},
        triplet(lambda a, b: F.pairwise_distance(a, b, p=1), 1.0),
    ),
    "triplet cosine": (
        losses.TripletLoss("cosine", 0.4), [A, P, Q], {},
        triplet(lambda a, b: 1 - F.cosine_similarity(a, b), 0.4),
    ),
    "matryoshka": (
        losses.MatryoshkaLoss(MNRL(), [8, 4, 2]), [A, P, Q], {},
        matryoshka(ranking(20.0), [8, 4, 2], [1, 1, 1]),
    ),
    "matryoshka, weights": (
        losses.MatryoshkaLoss(losses.CoSENTLoss(), [8, 3], [1.0, 0.25]), [A, P], {"target": T},
        matryoshka(cosent, [8, 3], [1.0, 0.25], labelled=True),
    ),
    "distillation": (
        losses.DistillationLoss(3.0, 0.3), [normal(N, C), normal(N, C)], {"labels": LABELS},
        distilled(3.0, 0.3, F.cross_entropy, lambda y: y != -100),
    ),
    "distillation without labels": (
        losses.DistillationLoss(1.5, 0.0), [normal(N, C), normal(N, C)], {},
        distilled(1.5, 0.0, None, None),
    ),
    "distillation of a language model": (
        losses.DistillationLoss(2.0, 0.5, losses.CausalLMLoss()),
        [normal(2, 3, C), normal(2, 3, C)], {"labels": TOKENS},
        distilled(2.0, 0.5, next_token, rows_before_a_label),
    ),
}  # fmt: skip


def build(loss: losses.Loss, inputs: list, targets: dict) -> tuple[onnx.ModelProto, dict]:
    arrays = {f"x{i}": a for i, a in enumerate(inputs)}
    model = identity_model(opset=18, ir_version=8, **arrays)

    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return loss(*(f"{n}_out" for n in arrays))

    block = Forward()
    with onnxblock.base(model):
        block()
    built = block.to_model_proto()
    assert only_standard(built)
    assert [i.name for i in built.graph.input] == [*arrays, *targets]
    return built, arrays


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_torch(name: str) -> None:
    loss, inputs, targets, function = CASES[name]
    inputs = [a.astype(np.float32) for a in inputs]
    targets = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in targets.items()}
    model, arrays = build(loss, inputs, targets)
    got, *gradients = run(onnxtrain.differentiate(model, wrt=list(arrays)), {**arrays, **targets})
    xs = [torch.tensor(x, requires_grad=True) for x in inputs]
    want = function(*xs, *(torch.tensor(t) for t in targets.values()))
    want.backward()
    assert got.shape == ()
    np.testing.assert_allclose(got, want.item(), rtol=2e-5)
    for got_one, x in zip(gradients, xs, strict=True):
        np.testing.assert_allclose(got_one, x.grad.numpy(), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_differences_in_float64(name: str) -> None:
    """One random direction, on onnx's own evaluator."""
    loss, inputs, targets, _ = CASES[name]
    model, arrays = build(loss, inputs, targets)
    gradient = ReferenceEvaluator(onnxtrain.differentiate(model, wrt=list(arrays)))
    _, *gradients = gradient.run(None, {**arrays, **targets})
    direction = {k: normal(*v.shape) for k, v in arrays.items()}
    along = sum((g * d).sum() for g, d in zip(gradients, direction.values()))
    forward, step = ReferenceEvaluator(model), 1e-6
    ends = [
        forward.run(None, {**{k: v + s * direction[k] for k, v in arrays.items()}, **targets})[0]
        for s in (step, -step)
    ]
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_reductions(reduction: str) -> None:
    model, arrays = build(MNRL(reduction=reduction), [A, P], {})
    (got,) = ReferenceEvaluator(model).run(None, arrays)
    mean, _ = build(MNRL(), [A, P], {})
    (want,) = ReferenceEvaluator(mean).run(None, arrays)
    np.testing.assert_allclose(np.sum(got) / N, want, rtol=1e-12)
    assert got.shape == ((N,) if reduction == "none" else ())


def test_equal_embeddings_and_zeros_have_finite_gradients() -> None:
    zeros = np.zeros((3, 4), np.float32)
    for loss in (MNRL(), losses.TripletLoss(), losses.TripletLoss("cosine")):
        count = loss.count[0]
        model, arrays = build(loss, [zeros] * count, {})
        gradient = onnxtrain.differentiate(model, wrt=list(arrays))
        assert all(np.isfinite(v).all() for v in run(gradient, arrays))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: MNRL(scale=0), "scale must be positive"),
        (lambda: losses.TripletLoss("dot"), "'euclidean', 'manhattan' or 'cosine'"),
        (lambda: losses.MatryoshkaLoss(losses.MSELoss(), [4]), "between embeddings"),
        (lambda: losses.MatryoshkaLoss(MNRL(), [4, 2], [1.0]), "a weight for each"),
        (lambda: losses.DistillationLoss(temperature=0), "temperature must be positive"),
        (lambda: losses.DistillationLoss(alpha=2), "alpha lies in"),
        (lambda: build(MNRL(), [A], {}), "takes at least 2 embeddings"),
        (lambda: build(losses.TripletLoss(), [A, P], {}), "takes 3 embeddings"),
        (lambda: build(losses.MatryoshkaLoss(MNRL(), [16]), [A, P], {}), "up to 16"),
    ],
)
def test_mistakes_are_told(call, said) -> None:
    with pytest.raises(BlockError, match=said):
        call()


def test_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(onnxtrain.errors.ModelError, match="one vector per row"):
        build(MNRL(), [normal(2, 3, 4), normal(2, 3, 4)], {})
    with pytest.raises(onnxtrain.errors.ModelError, match="same classes"):
        build(losses.DistillationLoss(), [normal(3, 4), normal(3, 5)], {})
