"""Learning rates, losses, penalties, and the optimizers as scikit-learn sees them."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from onnxtrain.errors import InputError, ModelError, UnknownNameError
from onnxtrain.sklearn import (
    ConvergenceError,
    ConvergenceWarning,
    EvaluationError,
    L1LearningPenalty,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
    OrtDataLoader,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    ProviderError,
    add_loss_output,
    get_train_initializer,
)
from tests.sklearn.models import classes, linear, mlp, regression

X, Y = regression(60)


def test_schedules() -> None:
    assert list(LearningRateSGD(0.1, learning_rate="constant").loop(3)) == [0.1] * 3
    falling = list(LearningRateSGD(0.1, power_t=0.5).loop(4))
    np.testing.assert_allclose(falling, 0.1 / np.sqrt([1, 2, 3, 4]))
    optimal = list(LearningRateSGD(0.1, learning_rate="optimal").loop(1000))
    assert optimal[0] == pytest.approx(0.1)
    np.testing.assert_allclose(np.diff(1 / np.array(optimal)), np.diff(1 / np.array(optimal))[0])
    adaptive = LearningRateSGD(0.1, learning_rate="adaptive", tol=0.01).init_learning_rate()
    rates = []
    for loss in (1.0, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3):
        adaptive.report_loss(loss)
        rates.append(adaptive.value)
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.004])
    with pytest.raises(ValueError, match="invscaling"):
        LearningRateSGD(learning_rate="falling")
    with pytest.raises(ValueError, match="init_learning_rate"):
        _ = LearningRateSGD().value


@pytest.mark.parametrize("nesterov", [False, True])
def test_update_weights_by_hand(nesterov: bool) -> None:
    rate = LearningRateSGDNesterov(0.1, learning_rate="constant", nesterov=nesterov)
    rate.init_learning_rate()
    w, v = np.ones(3, np.float32), np.full(3, 0.5, np.float32)
    g = np.array([1.0, 2.0, 4.0], np.float32)
    rate.update_weights(0, "cpu", w, g, 2, v)
    step = -0.05 * g
    np.testing.assert_allclose(v, 0.9 * 0.5 + step, rtol=1e-6)
    np.testing.assert_allclose(w, 1 + (0.9 * v + step if nesterov else v), rtol=1e-6)
    assert pickle.loads(pickle.dumps(rate)) == rate
    plain = LearningRateSGD(0.1, learning_rate="constant").init_learning_rate()
    assert not plain.needs_grad
    assert rate.needs_grad
    with pytest.raises(ValueError, match="velocity"):
        rate.update_weights(0, "cpu", w, g, 2)


def test_penalty_loss() -> None:
    penalty = L1LearningPenalty(0.5)
    weights = [np.array([1.0, -2.0], np.float32), np.array([[3.0]], np.float32)]
    total = penalty.penalty_loss("cpu", np.array(10.0, np.float32), *weights)
    assert float(total.numpy()) == pytest.approx(10 + 0.5 * 6)


@pytest.mark.parametrize("api", [1, 2])
def test_sample_weights_are_repetitions(api: int) -> None:
    """One step on all rows: weights 2 and 0 are a row twice and no row."""
    weight = np.ones(60, np.float32)
    weight[:10], weight[10:20] = 2, 0
    rows = np.repeat(np.arange(60), weight.astype(int))

    def trained(x: Any, y: Any, w: Any, scale: float) -> Any:
        rate = LearningRateSGD(0.05 * scale, learning_rate="constant")
        options: dict[str, Any] = {"max_iter": 5, "batch_size": 1000, "learning_rate": rate}
        name = None if w is None else "weight"
        if api == 1:
            model = add_loss_output(linear(), weight_name=name)
            found: Any = OrtGradientOptimizer(model, ["zeta", "alpha"], warm_start=True, **options)
        else:
            found = OrtGradientForwardBackwardOptimizer(linear(), weight_name=name, **options)
        return found.fit(x, y, w).trained_coef_

    one = trained(X, Y, weight, 1.0)
    two = trained(X[rows], Y[rows], None, len(rows) / 60)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-4, atol=1e-6)


def test_a_diverging_loss_is_reported() -> None:
    options: dict[str, Any] = {"learning_rate": 1e6, "max_iter": 50}
    with pytest.raises(ConvergenceError, match="learning rate"):
        OrtGradientForwardBackwardOptimizer(linear(), **options).fit(X, Y)
    with pytest.warns(ConvergenceWarning):
        OrtGradientForwardBackwardOptimizer(linear(), exc=False, **options).fit(X, Y)
    with pytest.raises(ConvergenceError):
        OrtGradientOptimizer(add_loss_output(linear()), ["zeta", "alpha"], **options).fit(X, Y)
    bad = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(EvaluationError):
        OrtGradientForwardBackwardOptimizer(linear(), max_iter=2).fit(X, Y, X_val=bad, y_val=Y[:4])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(NotImplementedError, match="AdamOptimizer"):
        OrtGradientForwardBackwardOptimizer(linear(), training_optimizer_name="Newton").fit(X, Y)
    with pytest.raises(UnknownNameError, match="zeta"):
        OrtGradientForwardBackwardOptimizer(linear(), ["nothing"]).fit(X, Y)
    with pytest.raises(UnknownNameError, match="add_loss_output"):
        OrtGradientOptimizer(linear(), ["zeta"]).fit(X, Y)
    with pytest.raises(InputError, match="weight_name"):
        OrtGradientForwardBackwardOptimizer(linear()).fit(X, Y, np.ones(60))
    with pytest.raises(InputError, match="weight_name"):
        OrtGradientOptimizer(add_loss_output(linear()), ["zeta"]).fit(X, Y, np.ones(60))
    with pytest.raises(ModelError, match="OrtGradientOptimizer"):
        OrtGradientForwardBackwardOptimizer(add_loss_output(linear())).fit(X, Y)
    with pytest.raises(ProviderError, match="onnxruntime-gpu"):
        OrtGradientForwardBackwardOptimizer(linear(), device="cuda:0").fit(X, Y)
    with pytest.raises(ValueError, match="60"):
        OrtGradientForwardBackwardOptimizer(linear()).fit(X, Y[:-1])
    with pytest.raises(ValueError, match="shape"):
        OrtGradientForwardBackwardOptimizer(linear()).fit(X, np.stack([Y, Y], axis=1))


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_grid_search(task: str) -> None:
    values = [1e-3, 1e-2, 1e-1]
    if task == "regression":
        data, options = regression(), {"learning_loss": "square_error"}
    else:
        CX, cy = classes(count=2)
        data, options = (CX, cy), {"learning_loss": "log"}
    model = linear(data[0].shape[1])
    search = GridSearchCV(
        OrtGradientForwardBackwardOptimizer(model, max_iter=10, random_state=0, **options),
        {"learning_rate": [LearningRateSGD(v, learning_rate="constant") for v in values]},
        cv=3,
    )
    search.fit(*data)
    assert search.best_params_["learning_rate"].eta0 == 0.1
    scores = search.cv_results_["mean_test_score"]
    assert (np.diff(scores) > 0).all()
    copy = clone(search.best_estimator_)
    assert "learning_rate=" in repr(copy)
    assert not hasattr(copy, "train_losses_")


def test_state_and_trained_model() -> None:
    model = linear()
    trained = OrtGradientForwardBackwardOptimizer(model, max_iter=20, learning_rate=0.1).fit(X, Y)
    onx = trained.get_trained_onnx()
    predicted = onnxruntime.InferenceSession(onx.SerializeToString()).run(None, {"X": X})[0]
    np.testing.assert_allclose(predicted, trained.predict(X), rtol=1e-5, atol=1e-6)
    assert not get_train_initializer(model)["zeta"][0].any()
    trained.set_state({"zeta": np.ones((3, 1)), "alpha": np.zeros(1)}, zero=True)
    np.testing.assert_allclose(trained.predict(X).ravel(), X.sum(axis=1), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnknownNameError):
        trained.set_state({"other": np.ones(1)})
    trained.set_state({"other": np.ones(1)}, check_trained=False)
    with pytest.raises(ValueError, match="shape"):
        trained.set_state({"alpha": np.ones(4)})
    assert set(trained.get_full_state("all")) == {"weight", "grad", "moments", "steps"}
    first = OrtGradientOptimizer(
        add_loss_output(model), ["zeta", "alpha"], max_iter=3, random_state=0
    ).fit(X, Y)
    first.set_state({"alpha": np.full(1, 7.0, np.float32)})
    assert first.get_state()["alpha"] == 7.0
    before_loss = first.get_trained_onnx(model)
    assert [o.name for o in before_loss.graph.output] == ["Y"]
    assert get_train_initializer(before_loss)["alpha"][0] == 7.0


@pytest.mark.parametrize("use_numpy", [False, True])
def test_first_api_writes_its_graphs_and_starts_at_random(tmp_path: Any, use_numpy: bool) -> None:
    path = tmp_path / "graph.onnx"
    options: dict[str, Any] = {"max_iter": 30, "random_state": 4, "learning_rate": 0.05}
    first = OrtGradientOptimizer(
        add_loss_output(linear()), ["zeta", "alpha"], saved_gradient=str(path), **options
    ).fit(X, Y, use_numpy=use_numpy)
    assert path.exists()
    assert (tmp_path / "graph.onnx.training.onnx").exists()
    assert first.train_losses_[-1] < first.train_losses_[0]
    again = OrtGradientOptimizer(add_loss_output(linear()), ["zeta", "alpha"], **options).fit(X, Y)
    assert again.train_losses_ == first.train_losses_


def test_forward_and_backward_by_hand() -> None:
    model, weights = mlp()
    made = OrtGradientForwardBackward(model, list(weights))
    function = made.new_instance()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    feeds = [x, *weights.values()]
    (first,) = function.forward(feeds, training=True)
    (second,) = function.forward([2 * x, *weights.values()], training=True)
    (plain,) = function.forward(feeds)
    np.testing.assert_allclose(first.numpy(), plain.numpy(), rtol=1e-6)
    assert np.abs(second.numpy() - plain.numpy()).max() > 0.1
    ones = np.ones((5, 1), np.float32)
    assert len(function.states_) == 2
    inner = np.maximum(2 * x @ weights["w_first"] + weights["bias"], 0)
    gradients = dict(zip(made.gradient_names, function.backward([ones])))
    np.testing.assert_allclose(
        gradients["w_second_grad"].numpy(), inner.sum(axis=0)[:, None], rtol=1e-5
    )
    function.backward([ones])
    with pytest.raises(ModelError, match="training=True"):
        function.backward([ones])
    with pytest.raises(ModelError, match="4 inputs"):
        function.forward([x])
    np.testing.assert_array_equal(made.get_initializer("bias"), weights["bias"])
    assert made.get_initializer("none", exc=False) is None
    copy = pickle.loads(pickle.dumps(made)).new_instance()
    np.testing.assert_allclose(copy.forward(feeds)[0].numpy(), plain.numpy())
    graphs = function.save_onnx_graph(bytes)
    assert set(graphs) == {"_trained_onnx", "_optimized_pre_grad_model"}


def test_loader_is_picklable_and_seeded() -> None:
    loader = OrtDataLoader(X, Y, np.ones(60), batch_size=25, random_state=3)
    copy = pickle.loads(pickle.dumps(loader))
    for one, two in zip(loader.iter_numpy(), copy.iter_numpy()):
        for a, b in zip(one, two):
            np.testing.assert_array_equal(a, b)
    values = list(loader.iter_ortvalue())
    assert [v[0].shape()[0] for v in values] == [25, 25, 10]
    assert len(loader) == 60
    assert len(loader.data_ort) == 3


def test_logging_and_progress(caplog: Any, capsys: Any) -> None:
    with caplog.at_level("INFO", logger="onnxcustom"), warnings.catch_warnings():
        OrtGradientForwardBackwardOptimizer(
            linear(), max_iter=2, enable_logging=True, verbose=1
        ).fit(X, Y)
    assert caplog.text.count("[OrtGradientForwardBackwardOptimizer._iteration]") == 2
    shown = capsys.readouterr()
    assert "2" in shown.out + shown.err


def test_adam_as_a_learning_rate() -> None:
    trained = OrtGradientForwardBackwardOptimizer(
        linear(), learning_rate=LearningRateAdam(0.1), max_iter=60, batch_size=20
    ).fit(X, Y)
    assert -trained.score(X, Y) < 0.05
