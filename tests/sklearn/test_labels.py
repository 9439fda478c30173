"""Labels in scikit-learn's manner: an estimator takes any, the losses below it class numbers."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.compat.onnxcustom.sgd_learning_loss import (
    MulticlassLogLearningLoss,
    NegLogLearningLoss,
)
from onnxtrain.errors import LabelError
from onnxtrain.sklearn import (
    OnnxClassifier,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
)

from .models import classes, linear, parse


@pytest.mark.parametrize("names", [[-1, 1], [-100, 0, 7], ["a", "b", "c"]])
def test_estimators_take_any_labels_as_classes(names):
    """-100 is a class like another here: there is nothing to be ignored in fit(X, y)."""
    X, y = classes(count=len(names))
    y = np.array(names)[y]
    model = OnnxClassifier(max_iter=60, random_state=0, tol=0.0)
    with pytest.warns(match="did not converge"):
        model.fit(X, y)
    assert model.classes_.tolist() == sorted(names)
    assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match="is not among the classes"):
        model.partial_fit(X, np.full(len(X), 5) if names[0] != "a" else np.full(len(X), "z"))


def with_loss(score, columns):
    model = linear(4, columns)
    if score == "log":
        text = """g (float[N,4] X) => (float[N,3] Y) {
            m = MatMul(X, zeta)  a = Add(m, alpha)  Y = Softmax <axis = 1> (a)
        }"""
        weights = {"zeta": np.zeros((4, 3), np.float32), "alpha": np.zeros(3, np.float32)}
        model = parse(text, weights)
    return add_loss_output(model, score)


@pytest.mark.parametrize(("score", "columns"), [("log", 3), ("log_scores", 3), ("log_scores", 1)])
@pytest.mark.parametrize("use_numpy", [False, True])
def test_one_graph(score, columns, use_numpy):
    X, y = classes(count=max(columns, 2))
    trained = OrtGradientOptimizer(
        with_loss(score, columns), ["zeta", "alpha"], learning_rate=0.1, max_iter=3
    )
    trained.fit(X, y, use_numpy=use_numpy)
    for bad in (-1, max(columns, 2), -100):
        wrong = y.copy()
        wrong[17] = bad
        with pytest.raises(LabelError, match=f"has the label {bad} in row 17,"):
            trained.fit(X, wrong, use_numpy=use_numpy)
        with pytest.raises(LabelError, match=f"has the label {bad} in row 17,"):
            trained.fit(X, y, X_val=X, y_val=wrong, use_numpy=use_numpy)


@pytest.mark.parametrize(("loss", "columns"), [("log", 1), ("cross_entropy", 3)])
def test_four_graphs(loss, columns):
    X, y = classes(count=max(columns, 2))
    trained = OrtGradientForwardBackwardOptimizer(
        linear(4, columns), ["zeta", "alpha"], learning_loss=loss, learning_rate=0.1, max_iter=3
    )
    trained.fit(X, y)
    for bad in (-1, max(columns, 2)):
        wrong = y.copy()
        wrong[17] = bad
        with pytest.raises(LabelError, match=f"'y' has the label {bad} in row "):
            trained.fit(X, wrong)
        with pytest.raises(LabelError, match=f"'y' has the label {bad} in row 17,"):
            trained.score(X, wrong)


def test_losses_alone():
    scores = np.zeros((4, 3), np.float32)
    MulticlassLogLearningLoss().loss_gradient("cpu", np.array([0, 1, 2, 0]), scores)
    with pytest.raises(LabelError, match="3 in row 2, and labels are classes 0 to 2"):
        MulticlassLogLearningLoss().loss_gradient("cpu", np.array([0, 1, 3, 0]), scores)
    with pytest.raises(LabelError, match="classes 0 to 1"):
        NegLogLearningLoss().loss_scores("cpu", np.array([[0], [-1]]), scores[:2, :1])
