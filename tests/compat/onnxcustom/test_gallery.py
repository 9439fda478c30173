"""What the training pages of onnxcustom's gallery do, in miniature and under the old names."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPRegressor

from onnxtrain import compat

X, Y = make_regression(60, n_features=2, bias=2.0, random_state=0)
X, Y = X.astype(np.float32), (Y / 50).astype(np.float32)
TARGET = LinearRegression().fit(X, Y)
ITERATIONS = 5


@pytest.fixture(autouse=True)
def old_names() -> Iterator[None]:
    with compat.activated():
        yield


def converted(model: Any, data: Any = X, **options: Any) -> onnx.ModelProto:
    """As the pages convert: skl2onnx, with matrix products in place of its own operators."""
    from onnxcustom import __max_supported_opset__
    from skl2onnx import to_onnx

    black = {"LinearRegressor", "LinearClassifier"}
    opsets = {"": __max_supported_opset__, "ai.onnx.ml": 1}
    return to_onnx(model, data, target_opset=opsets, black_op=black, **options)


def cut(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model up to one of its values, with one column."""
    onx = onnx.ModelProto()
    onx.CopyFrom(model)
    del onx.graph.output[:]
    onx.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, 1]))
    return onx


def network(hidden: int = 6, seed: int = 0) -> onnx.ModelProto:
    """A multi-layer perceptron with the names that skl2onnx gives."""
    rng = np.random.default_rng(seed)
    shapes = {"coefficient": (2, hidden), "intercepts": (1, hidden), "coefficient1": (hidden, 1),
              "intercepts1": (1, 1)}  # fmt: skip
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 15]>
        mlp (float[N, 2] X) => (float[N, 1] variable) {
            p = MatMul(X, coefficient)  a = Add(p, intercepts)  r = Relu(a)
            q = MatMul(r, coefficient1)  variable = Add(q, intercepts1)
        }""")
    for name, shape in shapes.items():
        array = 0.5 * rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


# -- the first API ---------------------------------------------------------------------------------


def test_linear_regression(tmp_path: Path) -> None:
    from onnxcustom.plotting.plotting_onnx import plot_onnxs
    from onnxcustom.training.optimizers import OrtGradientOptimizer
    from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer

    onx = converted(LinearRegression().fit(X[:2], Y[:2]))
    with_loss = add_loss_output(onx)
    weights = list(get_train_initializer(onx))
    assert weights == ["coef", "intercept"]
    assert "loss" in plot_onnxs(onx, with_loss, title=["model", "with loss"])
    saved = str(tmp_path / "saved.onnx")
    trained = OrtGradientOptimizer(
        with_loss, weights, learning_rate=1e-1, max_iter=60, batch_size=10, saved_gradient=saved
    )
    trained.fit(X, Y)
    state = trained.get_state()
    np.testing.assert_allclose(state["coef"].ravel(), TARGET.coef_, atol=0.05)
    assert len(trained.train_losses_) == 60
    for name in (saved, f"{saved}.training.onnx"):
        assert "Graph" in plot_onnxs(onnx.load(name), title="Graph")


def published_graph() -> onnx.ModelProto:
    """A linear regression whose loss is declared a scalar and computed as a 1×1 matrix."""
    inputs = [
        helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2]),
        helper.make_tensor_value_info("label", TensorProto.FLOAT, [None, 1]),
    ]
    outputs = [
        helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, 1]),
    ]
    nodes = [
        helper.make_node("MatMul", ["X", "coefs"], ["product"]),
        helper.make_node("Add", ["product", "intercept"], ["Y"]),
        helper.make_node("Sub", ["Y", "label"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["squared"]),
        helper.make_node("ReduceSum", ["squared"], ["loss"]),  # keepdims is 1 by default
    ]
    weights = [
        numpy_helper.from_array(np.zeros((2, 1), np.float32), "coefs"),
        numpy_helper.from_array(np.zeros(1, np.float32), "intercept"),
    ]
    graph = helper.make_graph(nodes, "published", inputs, outputs, weights)
    return helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", 14)])


def new_session() -> Any:
    from onnxruntime import SessionOptions, TrainingParameters, TrainingSession

    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.use_mixed_precision = False
    parameters.training_optimizer_name = "SGDOptimizer"
    parameters.lr_params_feed_name = "Learning_Rate"
    parameters.weights_to_train = {"coefs", "intercept"}
    model = published_graph().SerializeToString()
    options = SessionOptions()
    return TrainingSession(model, parameters, options, providers=["CPUExecutionProvider"])


def test_linear_regression_in_detail() -> None:
    session = new_session()
    assert [i.name for i in session.get_inputs()] == ["X", "label", "Learning_Rate"]
    rate = np.array([0.02], np.float32)
    losses = []
    for start in [*range(0, 60, 10)] * 30:
        rows = slice(start, start + 10)
        feeds = {"X": X[rows], "label": Y[rows].reshape(-1, 1), "Learning_Rate": rate}
        losses.append(session.run(None, feeds)[0])
    assert np.array(losses).mean() < 1
    np.testing.assert_allclose(session.get_state()["coefs"].ravel(), TARGET.coef_, atol=1e-3)


def test_linear_regression_with_bound_values() -> None:
    from onnxcustom.utils.onnxruntime_helper import get_ort_device
    from onnxruntime.capi._pybind_state import OrtValue

    session, device = new_session(), get_ort_device("cpu")
    binding = session.io_binding()._iobinding
    arrays = {"X": X, "label": Y.reshape(-1, 1), "Learning_Rate": np.array([4e-3], np.float32)}
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array, device))
    for _ in range(100):
        binding.bind_output("loss", device)
        session._sess.run_with_iobinding(binding, None)
    (loss,) = binding.copy_outputs_to_cpu()
    assert loss.size == 1
    assert loss.item() < 1e-3
    np.testing.assert_allclose(session.get_state()["intercept"], TARGET.intercept_, atol=1e-3)


def test_neural_network() -> None:
    from onnxcustom.training.optimizers import OrtGradientOptimizer
    from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer

    onx = network()
    trained = OrtGradientOptimizer(
        add_loss_output(onx), list(get_train_initializer(onx)), learning_rate=5e-2, max_iter=20,
        warm_start=True,
    )  # fmt: skip
    trained.fit(X, Y)
    assert trained.train_losses_[-1] < 0.1 * trained.train_losses_[0]
    assert [o.name for o in trained.get_trained_onnx(onx).graph.output] == ["variable"]


# -- the second API --------------------------------------------------------------------------------


def test_linear_regression_forward_backward() -> None:
    from onnxcustom.plotting.plotting_onnx import plot_onnxs
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer

    onx = converted(LinearRegression().fit(X[:2], Y[:2]))
    trained = OrtGradientForwardBackwardOptimizer(
        onx, device="cpu", learning_rate=1e-1, max_iter=60, batch_size=10
    ).fit(X, Y)
    coefficients = trained.get_state()[0].numpy()
    np.testing.assert_allclose(coefficients.ravel(), TARGET.coef_, atol=0.05)
    graphs = trained.train_session_.cls_type_
    evaluation, gradient = graphs._optimized_pre_grad_model, graphs._trained_onnx
    assert "YieldOp" in plot_onnxs(evaluation, gradient, title=["loss", "gradient + loss"])
    small = (trained.learning_loss.loss_grad_onnx_, trained.learning_rate.axpy_onnx_)
    assert "update" in plot_onnxs(*small, title=["error gradient", "update"])


def test_neural_network_forward_backward_with_and_without_sorted_names() -> None:
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
    from onnxcustom.utils.onnx_helper import onnx_rename_weights

    losses = [
        OrtGradientForwardBackwardOptimizer(
            model, learning_rate=5e-2, max_iter=5, batch_size=10, random_state=0
        )
        .fit(X, Y)
        .train_losses_
        for model in (network(), onnx_rename_weights(network()))
    ]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_a_rate_that_is_too_large_is_an_error_that_the_page_is_ready_for() -> None:
    """The page tries unsorted names at a rate it never meant to use, and catches ValueError."""
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer

    with pytest.raises(ValueError, match="Lower the learning rate"):
        OrtGradientForwardBackwardOptimizer(network(), learning_rate=1e5).fit(X, 100 * Y)


def test_nesterov_with_a_penalty_and_all_graphs_on_disk(tmp_path: Path) -> None:
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
    from onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty
    from onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov

    trained = OrtGradientForwardBackwardOptimizer(
        network(), learning_rate=LearningRateSGDNesterov(1e-2, nesterov=True, momentum=0.9),
        learning_penalty=ElasticLearningPenalty(l1=0, l2=1e-4), max_iter=20, batch_size=10,
    ).fit(X, Y)  # fmt: skip
    assert trained.train_losses_[-1] < 0.2 * trained.train_losses_[0]
    files = list(flat(trained.save_onnx_graph(str(tmp_path))))
    assert len(files) == len(set(files)) == len(list(tmp_path.iterdir()))
    for name in files:
        assert onnx.load(name).graph.node


def flat(saved: dict[str, Any]) -> Iterator[str]:
    for value in saved.values():
        if isinstance(value, dict):
            yield from flat(value)
        else:
            yield value


def test_binary_classification_from_raw_scores() -> None:
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
    from onnxcustom.training.sgd_learning_loss import NegLogLearningLoss
    from onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty
    from onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov

    data, labels = make_classification(80, n_features=4, random_state=0)
    data, labels = data.astype(np.float32), labels.astype(np.int64)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 15]>
        scores (float[N, 4] X) => (float[N, 1] score)
        <float[4, 1] coef = {0, 0, 0, 0}, float[1, 1] intercept = {0}> {
            p = MatMul(X, coef)  score = Add(p, intercept)
        }""")
    trained = OrtGradientForwardBackwardOptimizer(
        cut(model, "score"), learning_loss=NegLogLearningLoss(),
        learning_rate=LearningRateSGDNesterov(1e-1), max_iter=20, batch_size=16,
        learning_penalty=ElasticLearningPenalty(0, 1e-4),
    ).fit(data, labels)  # fmt: skip
    hits = (trained.predict(data).ravel() > 0) == labels
    assert hits.mean() >= LogisticRegression().fit(data, labels).score(data, labels) - 0.03


@pytest.mark.parametrize("classes", [2, 3])
def test_what_skl2onnx_makes_of_a_logistic_regression(classes: int) -> None:
    from onnxcustom.training.ortgradient import OrtGradientForwardBackward

    data, labels = make_classification(
        60, n_features=4, n_informative=4, n_redundant=0, n_classes=classes, random_state=1
    )
    data = data.astype(np.float32)
    model = LogisticRegression().fit(data, labels)
    onx = converted(model, data, options={"zipmap": False})
    (_, probabilities) = (o.name for o in onx.graph.output)
    made = OrtGradientForwardBackward(onx, output_names=[probabilities])
    function = made.new_instance()
    (chances,) = function.forward([data, *made.weights.values()], training=True)
    expected = model.predict_proba(data).astype(np.float32)
    np.testing.assert_allclose(chances.numpy(), expected, atol=1e-5)
    target = np.eye(classes, dtype=np.float32)[labels]
    results = dict(zip(made.gradient_names, function.backward([-target / expected])))
    # two classes are two sigmoids, divided by their sum; more of them are a softmax
    error = (expected - target) * (1 - expected if classes == 2 else 1)
    np.testing.assert_allclose(results["coef_grad"].numpy(), data.T @ error, atol=1e-3)


# -- the benchmark pages: beside scikit-learn and torch --------------------------------------------


def regressor(hidden: tuple[int, ...]) -> MLPRegressor:
    """Plain gradient descent, as the pages set it up; it is not meant to converge."""
    model = MLPRegressor(
        hidden_layer_sizes=hidden, solver="sgd", learning_rate_init=1e-3, alpha=0,
        max_iter=ITERATIONS, batch_size=10, n_iter_no_change=3 * ITERATIONS,
        nesterovs_momentum=False, momentum=0, learning_rate="invscaling", random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, Y)


def first_api(onx: onnx.ModelProto) -> Any:
    from onnxcustom.training.optimizers import OrtGradientOptimizer
    from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer

    weights = [name for name in get_train_initializer(onx) if name != "shape_tensor"]
    return OrtGradientOptimizer(
        add_loss_output(onx), weights, device="cpu", learning_rate=1e-3, warm_start=False,
        max_iter=ITERATIONS, batch_size=10, random_state=0,
    )  # fmt: skip


def second_api(onx: onnx.ModelProto) -> Any:
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
    from onnxcustom.utils.onnx_helper import onnx_rename_weights

    return OrtGradientForwardBackwardOptimizer(
        onnx_rename_weights(onx), device="cpu", learning_rate=1e-3, warm_start=False,
        max_iter=ITERATIONS, batch_size=10,
    )  # fmt: skip


@pytest.mark.parametrize("hidden", [(5, 3), ()], ids=["network", "linear"])
@pytest.mark.parametrize("api", [first_api, second_api])
def test_benchmark_beside_scikit_learn(api: Callable[[Any], Any], hidden: tuple[int, ...]) -> None:
    """The page fits what scikit-learn has fitted, and then once more, under a profiler."""
    model = regressor(hidden)
    optimizer = api(converted(model, X[:1]))
    losses = [list(optimizer.fit(X, Y).train_losses_) for _ in range(2)]
    for curve in losses:
        assert len(curve) == len(model.loss_curve_) == ITERATIONS
        assert curve[-1] < curve[0]
    if api is second_api:  # starts with the model's weights, the first with random ones
        assert losses[1] == pytest.approx(losses[0], rel=0.2)


def test_benchmark_beside_torch() -> None:
    """As the page has it, data and targets ask for gradients too."""
    torch = pytest.importorskip("torch")
    from onnxruntime.training.ortmodule import ORTModule

    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Sigmoid(), torch.nn.Linear(5, 1))
    wrapped = ORTModule(copy.deepcopy(plain), exporter="torchscript")
    x, y = (torch.from_numpy(data).requires_grad_() for data in (X, Y.reshape(-1, 1)))
    curves = []
    for module in (plain, wrapped):
        optimizer, curve = torch.optim.SGD(module.parameters(), lr=1e-3), []
        for _ in range(ITERATIONS):
            loss = torch.nn.MSELoss(reduction="sum")(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(float(loss.detach()))
        curves.append(curve)
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert curves[1][-1] < curves[1][0]
