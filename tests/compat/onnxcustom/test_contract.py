"""What scripts written for onnxcustom read from its objects."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi._pybind_state import OrtDevice, OrtValue
from sklearn.base import clone

from onnxtrain.compat.onnxcustom import version
from onnxtrain.compat.onnxcustom.benchmark import measure_time
from onnxtrain.compat.onnxcustom.derivative import DerivativeOptions, onnx_derivative
from onnxtrain.errors import InputError
from onnxtrain.runtime.session import devices
from onnxtrain.sklearn import (
    AbsoluteLearningLoss,
    ConvergenceError,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NoLearningPenalty,
    OrtDataLoader,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SquareLearningLoss,
    add_loss_output,
)
from tests.sklearn.models import linear, mlp, parse, regression

X, Y = regression(40)


def second(**options: Any) -> OrtGradientForwardBackwardOptimizer:
    return OrtGradientForwardBackwardOptimizer(linear(), max_iter=2, batch_size=8, **options)


# -- parameters ------------------------------------------------------------------------------------


def test_arguments_become_objects_when_they_are_given() -> None:
    made = second(learning_rate="Nesterov", learning_loss="absolute_error")
    assert isinstance(made.learning_rate, LearningRateSGDNesterov)
    assert isinstance(made.learning_loss, AbsoluteLearningLoss)
    assert isinstance(made.learning_penalty, NoLearningPenalty)
    assert isinstance(second().learning_loss, SquareLearningLoss)
    made.set_params(learning_loss="elastic", learning_rate=0.5)
    assert isinstance(made.learning_loss, ElasticLearningLoss)
    assert made.learning_rate == LearningRateSGD(0.5)
    with pytest.raises(ValueError, match="no_such"):
        second(learning_loss="no_such")


def test_adam_has_rates_of_its_own() -> None:
    adam = {"training_optimizer_name": "AdamOptimizer"}
    assert second(**adam).learning_rate == LearningRateAdam()
    assert second(**adam, learning_rate=0.01).learning_rate == LearningRateAdam(0.01)


def test_the_device_is_an_ort_device_and_a_name_among_the_parameters() -> None:
    for estimator in (second(), OrtGradientOptimizer(add_loss_output(linear()), ["zeta"])):
        assert isinstance(estimator.device, OrtDevice)
        assert estimator.get_params()["device"] == "cpu"
        copy = clone(estimator)
        assert copy.get_params()["device"] is estimator.get_params()["device"]
        assert pickle.loads(pickle.dumps(estimator)).get_params()["device"] == "cpu"
    assert second(device=second().device).get_params()["device"] == "cpu"
    with pytest.raises(ValueError, match="cpu2"):
        second(device="cpu2")


def test_texts_tell_how_an_object_is_made() -> None:
    text = repr(second(learning_rate=1e-3))
    assert text.startswith("OrtGradientForwardBackwardOptimizer(model_onnx=<g with 2 nodes>, ")
    assert "learning_rate=LearningRateSGD(eta0=0.001, " in text
    assert "learning_rate='invscaling'" in text
    assert "device='cpu'" in text
    first = OrtGradientOptimizer(add_loss_output(linear()), ["zeta", "alpha"])
    assert repr(first).startswith("OrtGradientOptimizer(model_onnx=<g with ")
    assert repr(OrtDataLoader(X, Y)).startswith("OrtDataLoader(..., ..., batch_size=20, ")
    assert repr(OrtGradientForwardBackward(linear())) == "OrtGradientForwardBackward(...)"


# -- state -----------------------------------------------------------------------------------------


def test_the_second_api_gives_its_state_as_a_list_of_values() -> None:
    trained = second()
    with pytest.raises(AttributeError, match="fit"):
        trained.get_state()
    trained.fit(X, Y)
    state = trained.get_state()
    assert [type(v) for v in state] == [OrtValue, OrtValue]
    for value, array in zip(state, trained.trained_coef_.values()):
        np.testing.assert_array_equal(value.numpy(), array)
    full = trained.get_full_state(["weight", "grad"])
    assert [v is None for v in full[0]] == [True, False, False]
    (predicted,) = trained.train_function_.forward([X, *state], training=True)
    np.testing.assert_allclose(predicted.numpy(), trained.predict(X), rtol=1e-6)
    loss, gradient = trained.learning_loss.loss_gradient(trained.device, Y, predicted)
    expected = 0.5 * ((trained.predict(X).ravel() - Y) ** 2).sum()
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5)
    assert len(trained.train_function_.backward([gradient])) == 3
    trained.set_state([None, np.ones((3, 1), np.float32), state[1]])
    np.testing.assert_array_equal(trained.trained_coef_["zeta"], np.ones((3, 1)))
    with pytest.raises(InputError, match="zeta, alpha"):
        trained.set_state(state[:1])


def test_what_was_trained_can_be_looked_at() -> None:
    trained = second(learning_rate=0.1).fit(X, Y)
    names = trained.train_session_.cls_type_
    assert names._onx_inp == names._grad_input_names == ["X", "zeta", "alpha"]
    assert names._onx_out == names._bw_fetches_names == ["X_grad", "zeta_grad", "alpha_grad"]
    assert trained.input_names_ == names._onx_inp
    assert trained.output_names_ == names._onx_out
    assert (names._input_names, names._output_names) == (["X"], ["Y"])
    for graph in (names._optimized_pre_grad_model, names._trained_onnx):
        assert isinstance(graph, onnx.ModelProto)
    assert [i.name for i in names._sess_eval.get_inputs()] == names._onx_inp
    for graph, inputs in (
        (trained.learning_loss.loss_grad_onnx_, ["X1", "X2"]),
        (trained.learning_rate.axpy_onnx_, ["X1", "X2", "alpha"]),
    ):
        assert [i.name for i in graph.graph.input] == inputs
        onnxruntime.InferenceSession(graph.SerializeToString())


def test_graphs_are_saved_before_fit_and_named_by_their_attributes() -> None:
    estimator = second(
        learning_rate="Nesterov", learning_penalty=ElasticLearningPenalty(l1=0, l2=1e-4)
    )
    graphs = estimator.save_onnx_graph(bytes)
    assert set(graphs["learning_penalty"]) == {"penalty_onnx_", "penalty_grad_onnx_"}
    assert set(graphs["learning_rate"]) == {"axpyw_onnx_"}
    assert set(graphs["learning_loss"]) == {"loss_grad_onnx_", "loss_score_onnx_"}
    loss = onnxruntime.InferenceSession(graphs["learning_penalty"]["penalty_onnx_"])
    values = [np.full(shape, 3, np.float32) for shape in ((), (3, 1), (1,))]
    (total,) = loss.run(None, dict(zip((i.name for i in loss.get_inputs()), values)))
    np.testing.assert_allclose(total, 3 + 1e-4 * 9 * 4, rtol=1e-6)


def test_a_loss_serves_models_of_several_types() -> None:
    loss = SquareLearningLoss()
    for dtype in (np.float32, np.float64):
        zeros, ones = np.zeros((4, 1), dtype), np.ones((4, 1), dtype)
        value, gradient = loss.loss_gradient("cpu", zeros, ones)
        assert value.numpy() == 2
        assert gradient.numpy().dtype == dtype


# -- sessions --------------------------------------------------------------------------------------


class Counted:
    """Counts the sessions that are made and which of them run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        create = devices.onnxruntime.InferenceSession

        def counting(*args: Any, **options: Any) -> Any:
            self.made += 1
            return create(*args, **options)

        monkeypatch.setattr(devices.onnxruntime, "InferenceSession", counting)


@pytest.mark.parametrize(
    ("penalty", "validated", "sessions"),
    [(None, False, 4), ("l2", False, 5), ("l2", True, 7)],
)
def test_fit_makes_a_session_for_each_graph_it_runs(
    monkeypatch: pytest.MonkeyPatch, penalty: str | None, validated: bool, sessions: int
) -> None:
    """Forward, loss, backward, update; the penalty; evaluation and loss of every observation."""
    counted = Counted(monkeypatch)
    trained = second(learning_penalty=penalty)
    assert counted.made == 0
    data = {"X_val": X[:5], "y_val": Y[:5]} if validated else {}
    trained.fit(X, Y, **data)
    assert counted.made == sessions


# -- losses, gradients, data -----------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("score", ["squared_error", "absolute_error", "elastic"])
def test_the_loss_in_the_graph_has_two_dimensions(score: str, weighted: bool) -> None:
    model = add_loss_output(linear(), score, weight_name="weight" if weighted else None)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {"X": X, "label": Y.reshape(-1, 1)}
    if weighted:
        feeds["weight"] = np.full(len(X), 2, np.float32)
    loss = session.run(["loss"], feeds)[0]
    error = np.abs(Y.astype(np.float64))
    sums = {"squared_error": error**2, "absolute_error": error, "elastic": (error + error**2) / 2}
    np.testing.assert_allclose(loss, [[sums[score].sum() * (2 if weighted else 1)]], rtol=1e-5)


def test_values_of_another_shape_are_taken_for_the_weights_and_outputs() -> None:
    """Converters write a bias as [1, N] or [N]; scripts feed it as they have it."""
    weights = {"w": np.ones((2, 3), np.float32), "b": np.zeros((1, 3), np.float32)}
    model = parse("g (float[N,2] X) => (float[N,3] Y) { m = MatMul(X, w) Y = Add(m, b) }", weights)
    function = OrtGradientForwardBackward(model).new_instance()
    x = np.ones((4, 2), np.float32)
    (y,) = function.forward([x, weights["w"], np.arange(3, dtype=np.float32)], training=True)
    np.testing.assert_array_equal(y.numpy(), [[2, 3, 4]] * 4)
    gradients = function.backward([np.ones((1, 12), np.float32)])
    np.testing.assert_array_equal(gradients[2].numpy(), [[4, 4, 4]])
    with pytest.raises(InputError, match="'b' has the shape"):
        function.forward([x, weights["w"], np.zeros(2, np.float32)])
    function.forward([x, *weights.values()], training=True)
    with pytest.raises(InputError, match="gradient"):
        function.backward([np.ones(5, np.float32)])


def test_options_of_the_derivative() -> None:
    model, _ = mlp()
    with pytest.raises(TypeError, match="DerivativeOptions"):
        onnx_derivative(model, options=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="scales"):
        onnx_derivative(_with_zero_point(), weights=["point"])
    of_output = onnx_derivative(model, options=DerivativeOptions.Loss, label="Y", loss="loss")
    assert "Y_grad" in {i.name for i in of_output.graph.input}


def test_several_outputs_have_a_gradient_each() -> None:
    text = "g (float[N,2] A) => (float[N,2] P, float[N,2] Q) { P = Mul(A, A) Q = Mul(A, w) }"
    model = parse(text, {"w": np.array([2.0, 3.0], np.float32)})
    a, p, q = (np.full((3, 2), k, np.float32) for k in (5, 1, 10))
    gradient = onnx_derivative(model)
    session = onnxruntime.InferenceSession(gradient.SerializeToString())
    results = session.run(["A_grad", "w_grad"], {"A": a, "P_grad": p, "Q_grad": q})
    np.testing.assert_array_equal(results[0], 2 * a * p + q * [2, 3])
    np.testing.assert_array_equal(results[1], (a * q).sum(axis=0))
    both = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
    filled = onnx_derivative(model, weights=[], options=both)
    session = onnxruntime.InferenceSession(filled.SerializeToString())
    (gradient_of_a,) = session.run(["A_grad"], {"A": a})
    np.testing.assert_array_equal(gradient_of_a, 2 * a + [2, 3])


def _with_zero_point() -> onnx.ModelProto:
    text = """g (float[N] X) => (float[N] Y) {
        q = QuantizeLinear(X, scale, point)  Y = DequantizeLinear(q, scale, point)
    }"""
    return parse(text, {"scale": np.float32(0.5), "point": np.uint8(3)})


def test_an_infinite_loss_is_recorded_as_it_was() -> None:
    first = OrtGradientOptimizer(add_loss_output(linear()), ["zeta", "alpha"], learning_rate=1e9)
    with pytest.raises(ConvergenceError):
        first.fit(X, Y)
    assert np.isinf(first.train_losses_[-1])


def test_the_loader_describes_its_data() -> None:
    loader = OrtDataLoader(X.astype(np.float64), Y, np.ones(40), batch_size=7)
    assert loader.desc == [((40, 3), np.float64), ((40, 1), np.float32), ((40,), np.float64)]


def test_small_facts() -> None:
    assert version.get_max_opset() == version.MAX_SUPPORTED_OPSETS[""] == 15
    times = measure_time(lambda: None, repeat=2, number=3)
    assert (times["repeat"], times["number"]) == (2, 3)
    assert times["min_exec"] <= times["average"] <= times["max_exec"]


def test_private_names_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scripts replaced or called: the maker of sessions, the maker of graphs, the function."""
    from onnxtrain.compat.onnxcustom.ortgradient import OrtGradientForwardBackwardFunction

    calls: list[str] = []
    for cls, name in (
        (OrtGradientForwardBackwardOptimizer, "_create_training_session"),
        (OrtGradientForwardBackward, "_create_onnx_graphs"),
    ):
        method = getattr(cls, name)

        def counted(*args: Any, _method: Any = method, _name: str = name, **more: Any) -> Any:
            calls.append(_name)
            return _method(*args, **more)

        monkeypatch.setattr(cls, name, counted)
    optimizer = second().fit(X, Y)
    assert set(calls) == {"_create_training_session", "_create_onnx_graphs"}
    function = optimizer.train_session_.new_instance()
    assert isinstance(function, OrtGradientForwardBackwardFunction)
