"""Both APIs behind ``fit`` against PyTorch and scikit-learn, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from onnxtrain.sklearn import (
    BaseLearningRate,
    L2LearningPenalty,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
)
from tests.sklearn.models import linear, mlp, regression

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.normal(size=(12, 1)).astype(np.float32)
SEED, RATE = 5, 0.02


def rate_of(kind: str, eta0: float) -> BaseLearningRate:
    if kind == "sgd":
        return LearningRateSGD(eta0, learning_rate="constant")
    nesterov = kind == "nesterov"
    return LearningRateSGDNesterov(eta0, learning_rate="constant", nesterov=nesterov)


def torch_run(kind: str, l2: float, batch: int, epochs: int) -> tuple[list[float], dict[str, Any]]:
    """Mean of ½(z − y)² plus l2·Σw², with the batches that the loader draws."""
    _, weights = mlp()
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in weights.items()}
    options: dict[str, Any] = {} if kind == "sgd" else {"momentum": 0.9}
    if kind == "nesterov":
        options["nesterov"] = True
    optimizer = torch.optim.SGD(tensors.values(), lr=RATE, weight_decay=2 * l2, **options)
    rng = np.random.default_rng(SEED)
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(X))
        total = 0.0
        for start in range(0, len(X), batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            hidden = torch.relu(torch.tensor(X[rows]) @ tensors["w_first"] + tensors["bias"])
            error = hidden @ tensors["w_second"] - torch.tensor(Y[rows])
            loss = 0.5 * (error**2).mean()
            penalty = l2 * sum(float((t.detach() ** 2).sum()) for t in tensors.values())
            total += float(loss.detach()) + penalty
            loss.backward()
            optimizer.step()
        losses.append(total / (len(X) // batch))
    return losses, {n: t.detach().numpy() for n, t in tensors.items()}


@pytest.mark.parametrize(("batch", "epochs"), [(12, 100), (4, 34)])
@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "nesterov"])
def test_the_two_apis_and_torch_take_the_same_steps(
    kind: str, l2: float, batch: int, epochs: int
) -> None:
    losses, weights = torch_run(kind, l2, batch, epochs)
    model, start = mlp()
    second = OrtGradientForwardBackwardOptimizer(
        model,
        max_iter=epochs,
        batch_size=batch,
        learning_rate=rate_of(kind, RATE),
        learning_penalty=L2LearningPenalty(l2) if l2 else None,
        random_state=SEED,
    ).fit(X, Y)
    np.testing.assert_allclose(second.train_losses_, losses, rtol=1e-5, atol=1e-6)
    # The first API's loss is a sum of squares, not half their mean: half the rate, 2·batch the l2.
    penalty = {n: {"l2": 2 * batch * l2} for n in start} if l2 else None
    first = OrtGradientOptimizer(
        add_loss_output(model, penalty=penalty),
        list(start),
        max_iter=epochs,
        batch_size=batch,
        learning_rate=rate_of(kind, RATE / 2),
        warm_start=True,
        random_state=SEED,
    ).fit(X, Y)
    np.testing.assert_allclose(np.array(first.train_losses_) / 2, losses, rtol=1e-5, atol=1e-6)
    for name, value in weights.items():
        np.testing.assert_allclose(first.trained_coef_[name], value, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second.trained_coef_[name], value, rtol=1e-5, atol=1e-5)


def test_adam_takes_torchs_steps_in_both_apis() -> None:
    model, start = mlp()
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
    optimizer = torch.optim.Adam(tensors.values(), lr=0.01)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        hidden = torch.relu(torch.tensor(X) @ tensors["w_first"] + tensors["bias"])
        loss = 0.5 * ((hidden @ tensors["w_second"] - torch.tensor(Y)) ** 2).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    options: dict[str, Any] = {"max_iter": 100, "batch_size": 12, "random_state": 0}
    second = OrtGradientForwardBackwardOptimizer(
        model, learning_rate=LearningRateAdam(0.01), **options
    ).fit(X, Y)
    first = OrtGradientOptimizer(
        add_loss_output(model),
        list(start),
        training_optimizer_name="AdamOptimizer",
        learning_rate=0.01,
        warm_start=True,
        **options,
    ).fit(X, Y)
    np.testing.assert_allclose(second.train_losses_, losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.array(first.train_losses_) / 2, losses, rtol=1e-4, atol=1e-6)


LX, LY = regression(200)
REFERENCE = LinearRegression().fit(LX, LY)


def check_linear(state: dict[str, Any]) -> None:
    np.testing.assert_allclose(state["zeta"].ravel(), REFERENCE.coef_, atol=1e-3)
    np.testing.assert_allclose(state["alpha"], REFERENCE.intercept_, atol=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_linear_regression_by_each_api(kind: str) -> None:
    model = linear()
    options: dict[str, Any] = {"max_iter": 150, "batch_size": 200, "random_state": 0}
    second = OrtGradientForwardBackwardOptimizer(
        model, learning_rate=rate_of(kind, 0.1), **options
    ).fit(LX, LY)
    check_linear(second.trained_coef_)
    first = OrtGradientOptimizer(
        add_loss_output(model), ["zeta", "alpha"], learning_rate=rate_of(kind, 0.05), **options
    ).fit(LX, LY)
    check_linear(first.trained_coef_)


def test_a_double_model_is_trained_in_double() -> None:
    X64, Y64 = LX.astype(np.float64), LY.astype(np.float64)
    exact = LinearRegression().fit(X64, Y64)
    for rate in (rate_of("nesterov", 0.1), LearningRateSGD(0.3, learning_rate="constant")):
        trained = OrtGradientForwardBackwardOptimizer(
            linear(dtype=np.float64), learning_rate=rate, max_iter=400, batch_size=200
        ).fit(X64, Y64)
        state = trained.trained_coef_
        assert state["zeta"].dtype == np.float64
        np.testing.assert_allclose(state["zeta"].ravel(), exact.coef_, atol=1e-9)
