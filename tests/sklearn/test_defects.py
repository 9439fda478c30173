"""Ten defects of onnxcustom, each with a test that the same cannot happen here."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onnxtrain.sklearn import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    DerivativeOptions,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    LearningRateSGD,
    LearningRateSGDNesterov,
    MulticlassLogLearningLoss,
    NegLogLearningLoss,
    OrtDataLoader,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SquareLearningLoss,
    add_loss_output,
    onnx_derivative,
)
from tests.sklearn.models import classes, linear, mlp, parse, regression

X, Y = regression(60)
SecondApi = OrtGradientForwardBackwardOptimizer


@pytest.mark.parametrize(
    "loss",
    [
        SquareLearningLoss(),
        AbsoluteLearningLoss(),
        ElasticLearningLoss(0.3, 0.7),
        NegLogLearningLoss(),
        MulticlassLogLearningLoss(),
    ],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_1_the_gradient_of_a_loss_is_its_slope(loss: BaseLearningLoss, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    columns = 3 if isinstance(loss, MulticlassLogLearningLoss) else 1
    predicted = rng.normal(size=(6, columns))
    expected: Any = rng.normal(size=(6, 1))
    if isinstance(loss, NegLogLearningLoss):
        expected = rng.integers(0, max(2, columns), size=(6, 1))
    weight = rng.uniform(0.5, 2, 6) if weighted else None
    _, gradient = loss.loss_gradient("cpu", expected, predicted, weight)
    step = 1e-6
    for at in np.ndindex(predicted.shape):
        moved = [predicted.copy(), predicted.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        up, down = (loss.loss_gradient("cpu", expected, p, weight)[0].numpy() for p in moved)
        np.testing.assert_allclose(gradient.numpy()[at], (up - down) / (2 * step), rtol=1e-5)


def test_2_warm_start_goes_on() -> None:
    options: dict[str, Any] = {
        "learning_rate": LearningRateSGDNesterov(0.01),
        "random_state": 1,
        "batch_size": 7,
    }
    whole = SecondApi(linear(), max_iter=10, **options).fit(X, Y)
    parts = SecondApi(linear(), max_iter=5, warm_start=True, **options).fit(X, Y)
    first = list(parts.train_losses_)
    parts.fit(X, Y)
    assert first + parts.train_losses_ == whole.train_losses_
    again = SecondApi(linear(), max_iter=5, warm_start=False, **options).fit(X, Y)
    again.fit(X, Y)
    assert again.train_losses_ == first


@pytest.mark.parametrize("api", [1, 2])
@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_3_pickling_in_the_middle_changes_nothing(api: int, optimizer: str) -> None:
    options: dict[str, Any] = {
        "learning_rate": LearningRateSGDNesterov(0.01),
        "training_optimizer_name": optimizer,
        "random_state": 1,
        "batch_size": 7,
        "max_iter": 4,
        "warm_start": True,
    }
    trained: Any
    if api == 1:
        trained = OrtGradientOptimizer(add_loss_output(linear()), ["zeta", "alpha"], **options)
    else:
        trained = SecondApi(linear(), **options)
    trained.fit(X, Y)
    copy = pickle.loads(pickle.dumps(trained))
    if api == 2:
        for kind in ("weight", "grad"):
            for mine, theirs in zip(trained.get_state(kind), copy.get_state(kind)):
                np.testing.assert_array_equal(theirs.numpy(), mine.numpy())
        (zeta, _), (gradient, _) = copy.get_state(), copy.get_state("grad")
        assert np.abs(gradient.numpy() - zeta.numpy()).max() > 0
    copy.fit(X, Y)
    trained.fit(X, Y)
    assert copy.train_losses_ == trained.train_losses_
    for name, value in trained.trained_coef_.items():
        np.testing.assert_array_equal(copy.trained_coef_[name], value)


def test_4_losses_are_in_the_order_of_the_rows() -> None:
    trained = SecondApi(linear(), max_iter=3, batch_size=7).fit(X, Y)
    expected = 0.5 * (trained.predict(X).ravel() - Y) ** 2
    np.testing.assert_allclose(trained.losses(X, Y), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained.score(X, Y), -expected.mean(), rtol=1e-5)


def test_5_every_pass_sees_every_row_once_in_any_order_and_shape() -> None:
    images = np.arange(10 * 2 * 3, dtype=np.float32).reshape(10, 2, 3)
    targets = np.arange(20, dtype=np.float32).reshape(10, 2)
    loader = OrtDataLoader(images, targets, batch_size=4, random_state=0)
    seen = []
    for x, y in loader.iter_numpy():
        assert x.shape[1:] == (2, 3)
        assert y.shape[1:] == (2,)
        seen += (y[:, 0] / 2).astype(int).tolist()
        np.testing.assert_array_equal(x, images[(y[:, 0] / 2).astype(int)])
    assert sorted(seen) == list(range(10))
    assert seen != sorted(seen)
    model = parse("g (float[N,2,3] A, float[N,2] B) => (float[N,2,3] C) { C = Identity(A) }")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    binding = session.io_binding()
    sizes, rows = [], []
    for size in loader.iter_bind(binding, ["A", "B"]):
        binding.bind_output("C", "cpu")
        session.run_with_iobinding(binding)
        sizes.append(size)
        rows += (binding.copy_outputs_to_cpu()[0][:, 0, 0] / 6).astype(int).tolist()
    assert sizes == [4, 4, 2]
    assert sorted(rows) == list(range(10))


def test_6_the_learning_rate_applies_to_the_penalty() -> None:
    start = np.array([[1.0], [-2.0]], np.float32)
    model = parse("g (float[N,2] X) => (float[N,1] Y) { Y = MatMul(X, w) }", {"w": start})
    zeros, rate = np.zeros((4, 2), np.float32), 0.01
    trained = SecondApi(
        model,
        max_iter=1,
        batch_size=4,
        learning_rate=rate,
        learning_penalty=ElasticLearningPenalty(0.5, 0.5),
    ).fit(zeros, zeros[:, :1])
    expected = start - rate * (0.5 * np.sign(start) + start)
    np.testing.assert_allclose(trained.trained_coef_["w"], expected, rtol=1e-6)
    np.testing.assert_allclose(trained.train_losses_, [0.5 * 3 + 0.5 * 5], rtol=1e-6)
    one = start.copy()
    ElasticLearningPenalty(0.5, 0.5).update_weights(0, "cpu", one, rate)
    np.testing.assert_allclose(one, expected, rtol=1e-6)


def test_7_select_takes_aliases_and_class_names() -> None:
    pairs = [
        (BaseLearningRate, "SGD", "LearningRateSGD"),
        (BaseLearningRate, "SGDNesterov", "LearningRateSGDNesterov"),
        (BaseLearningLoss, "square_error", "SquareLearningLoss"),
        (BaseLearningLoss, "absolute", "AbsoluteLearningLoss"),
        (BaseLearningLoss, "elastic", "ElasticLearningLoss"),
        (BaseLearningLoss, "log", "NegLogLearningLoss"),
        (BaseLearningPenalty, "", "NoLearningPenalty"),
        (BaseLearningPenalty, "l1l2", "ElasticLearningPenalty"),
        (BaseLearningPenalty, "l2", "L2LearningPenalty"),
    ]
    for base, alias, name in pairs:
        assert type(base.select(alias)).__name__ == name
        assert type(base.select(name)).__name__ == name
        with pytest.raises(ValueError, match=name):
            base.select("type")


def test_8_the_inputs_that_are_asked_for_are_differentiated() -> None:
    text = "g (float[N,2] A, float[N,2] B) => (float[N,2] Y) { p = Mul(A, B) Y = Mul(p, w) }"
    model = parse(text, {"w": np.array([2.0, 3.0], np.float32)})
    one = onnx_derivative(model, inputs=["B"])
    assert [o.name for o in one.graph.output] == ["B_grad", "w_grad"]
    none = onnx_derivative(model, inputs=[])
    assert [o.name for o in none.graph.output] == ["w_grad"]
    kinds = list(DerivativeOptions)
    assert len({int(k) for k in kinds}) == len(kinds)
    assert DerivativeOptions.Loss not in (
        DerivativeOptions.KeepYieldOp | DerivativeOptions.FillGrad
    )
    ones = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
    with pytest.raises(ValueError, match="KeepOutputs"):
        onnx_derivative(model, options=DerivativeOptions.FillGrad)
    filled = onnx_derivative(model, weights=[], inputs=["A"], options=ones)
    session = onnxruntime.InferenceSession(filled.SerializeToString())
    a, b = np.ones((3, 2), np.float32), np.full((3, 2), 5, np.float32)
    (gradient,) = session.run(["A_grad"], {"A": a, "B": b})
    np.testing.assert_array_equal(gradient, b * [2, 3])


@pytest.mark.parametrize("api", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_9_validation_with_few_iterations_and_with_weights(api: int, weighted: bool) -> None:
    options: dict[str, Any] = {"max_iter": 3, "validation_every": 0.1, "batch_size": 20}
    weight = np.linspace(0.5, 1.5, len(X)).astype(np.float32) if weighted else None
    trained: Any
    if api == 1:
        loss = add_loss_output(linear(), weight_name="weight" if weighted else None)
        trained = OrtGradientOptimizer(loss, ["zeta", "alpha"], **options)
    else:
        trained = SecondApi(linear(), weight_name="weight" if weighted else None, **options)
    trained.fit(X, Y, weight, X_val=X[:10], y_val=Y[:10])
    assert len(trained.validation_losses_) == 3
    state = trained.trained_coef_
    error = X[:10] @ state["zeta"] + state["alpha"] - Y[:10].reshape(-1, 1)
    last = (error**2).mean() * (1 if api == 1 else 0.5)
    np.testing.assert_allclose(trained.validation_losses_[-1], last, rtol=1e-4)


def test_10_predict_several_outputs_several_classes_adam_and_files(tmp_path: Any) -> None:
    targets = np.stack([Y, -2 * Y], axis=1)
    two = SecondApi(linear(3, 2), max_iter=60, batch_size=20, learning_rate=0.1).fit(X, targets)
    assert two.predict(X).shape == (60, 2)
    assert -two.score(X, targets) < 0.1
    CX, cy = classes()
    many = SecondApi(
        linear(4, 3),
        max_iter=40,
        batch_size=30,
        learning_loss="softmax",
        training_optimizer_name="AdamOptimizer",
        learning_rate=0.05,
    ).fit(CX, cy)
    assert (many.predict(CX).argmax(axis=1) == cy).mean() > 0.9
    files = many.save_onnx_graph(str(tmp_path))
    assert onnxruntime.InferenceSession(files["learning_loss"]["loss_grad_onnx_"]) is not None


def test_names_and_order_of_weights_are_free() -> None:
    model, start = mlp()  # w_second, w_first, bias: neither alphabetical nor in graph order
    data = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    target = data.sum(axis=1)
    states = [
        SecondApi(model, names, max_iter=5, random_state=0, learning_rate=0.01)
        .fit(data, target)
        .trained_coef_
        for names in (None, list(start), ["bias", "w_second", "w_first"])
    ]
    for name in start:
        np.testing.assert_array_equal(states[0][name], states[1][name])
        np.testing.assert_array_equal(states[0][name], states[2][name])
    frozen = SecondApi(model, ["w_second"], max_iter=5, learning_rate=0.01).fit(data, target)
    assert list(frozen.trained_coef_) == ["w_second"]


def test_the_rate_of_a_parameter_is_not_changed_by_fit() -> None:
    rate = LearningRateSGD(0.1)
    SecondApi(linear(), max_iter=3, learning_rate=rate).fit(X, Y)
    assert rate.value_ is None
