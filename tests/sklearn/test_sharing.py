"""Estimators that threads and processes share."""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest

from onnxtrain.errors import SharingError
from onnxtrain.sklearn import (
    OnnxClassifier,
    OnnxRegressor,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SquareLearningLoss,
    add_loss_output,
)
from tests.sharing import ChildError, in_child, needs_fork, repeat, together

from .models import classes, linear, mlp, regression

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge")


def test_predictions_come_from_a_trained_model_whoever_trains_it():
    """One thread fits two data sets in turn; the others see the one model or the other."""
    X, y = regression()
    model = OnnxRegressor(hidden_layer_sizes=(8,), max_iter=3, random_state=0)
    targets = [y, -y]
    answers = [model.fit(X, t).predict(X) for t in targets]

    def ask():
        found = model.predict(X)
        assert any(np.array_equal(found, a) for a in answers)
        pickle.dumps(model)

    def fit():
        for t in targets:
            model.fit(X, t)

    together(repeat(5, fit), repeat(60, ask), repeat(60, ask))


def test_a_classifier_is_fitted_by_two_threads():
    X, y = classes()
    model = OnnxClassifier(hidden_layer_sizes=(8,), max_iter=3, random_state=0)
    names = np.array(["a", "b", "c"])
    answers = [model.fit(X, t).predict_proba(X) for t in (y, names[y])]

    def fit(targets):
        model.fit(X, targets)
        found = model.predict_proba(X)
        assert any(np.array_equal(found, a) for a in answers)

    together(repeat(3, lambda: fit(y)), repeat(3, lambda: fit(names[y])))


@pytest.mark.parametrize("kind", ["one graph", "four graphs"])
def test_the_predecessors_optimizers_wait_for_each_other(kind):
    """Five fits that go on from each other give the same, whichever threads they come from."""
    X, y = regression()
    y = y.reshape(-1, 1)
    options = {"max_iter": 100, "learning_rate": 1e-2, "random_state": 0, "warm_start": True}
    if kind == "one graph":
        made = OrtGradientOptimizer(add_loss_output(linear()), **options)
    else:
        made = OrtGradientForwardBackwardOptimizer(linear(), **options)
    alone = copy.deepcopy(made.fit(X, y))
    for _ in range(5):
        alone.fit(X, y)
    together(*[lambda: made.fit(X, y)] * 5)
    expected = alone.trained_coef_
    for name, value in made.trained_coef_.items():
        np.testing.assert_array_equal(value, expected[name])


def test_a_backward_pass_that_might_be_another_threads_is_refused():
    model, weights = mlp()
    function = OrtGradientForwardBackward(model, list(weights)).new_instance()
    x = np.ones((2, 4), np.float32)
    feeds = [x, *weights.values()]
    one = [np.ones((2, 1), np.float32)]
    function.forward(feeds, training=True)
    together(lambda: function.backward(one))  # forward here, backward there: nobody else waits
    function.forward(feeds, training=True)
    together(lambda: function.forward(feeds, training=True))
    with pytest.raises(SharingError, match="new_instance"):
        function.backward(one)


def test_a_loss_is_computed_by_threads_with_and_without_weights(monkeypatch):
    build = SquareLearningLoss.build_onnx_function

    def slow(loss, *arguments, **options):
        build(loss, *arguments, **options)
        time.sleep(0.002)

    monkeypatch.setattr(SquareLearningLoss, "build_onnx_function", slow)
    loss = SquareLearningLoss()
    expected, predicted = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    weight = np.full(4, 2, np.float32)

    def compute(weight, right):
        assert loss.loss_gradient("cpu", expected, predicted, weight)[0].numpy() == right

    together(
        repeat(20, lambda: compute(None, 2.0)),
        repeat(20, lambda: compute(weight, 4.0)),
    )


@needs_fork
def test_an_estimator_makes_new_sessions_after_a_fork():
    X, y = classes()
    model = OnnxClassifier(hidden_layer_sizes=(8,), max_iter=5, random_state=0).fit(X, y)
    expected = model.predict_proba(X)

    def there():
        return model.predict_proba(X), model.partial_fit(X, y).predict_proba(X)

    found, trained = in_child(there)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(trained, model.partial_fit(X, y).predict_proba(X))


@needs_fork
def test_a_predecessors_optimizer_refuses_to_work_after_a_fork():
    X, y = regression()
    made = OrtGradientForwardBackwardOptimizer(linear(), max_iter=2, learning_rate=1e-2)
    made.fit(X, y.reshape(-1, 1))
    with pytest.raises(ChildError, match=r"was made before the process was forked.*Pickle it"):
        in_child(lambda: made.predict(X))
    loaded = pickle.dumps(made)
    np.testing.assert_array_equal(
        in_child(lambda: pickle.loads(loaded).predict(X)), made.predict(X)
    )
