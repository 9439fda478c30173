"""Functions on models: losses inside the graph, derivatives, rewriting, devices, pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain.errors import ModelError, OnnxTrainError, UnknownNameError
from onnxtrain.sklearn import (
    DerivativeOptions,
    L2LearningPenalty,
    OrtGradientForwardBackwardOptimizer,
    ProviderError,
    add_initializer,
    add_loss_output,
    device_to_providers,
    dtype_to_var_type,
    four_graphs,
    function_onnx_graph,
    get_onnx_opset,
    get_ort_device,
    get_ort_device_from_session,
    get_ort_device_type,
    get_supported_functions,
    get_train_initializer,
    numpy_to_ort_value,
    onnx_derivative,
    onnx_rename_weights,
    onnx_rewrite_operator,
    onnx_simple_text_plot,
    ort_device_to_string,
    penalty_loss_onnx,
    plot_four_graphs,
    plot_onnxs,
    proto_type_to_dtype,
    provider_to_device,
    replace_initializers_into_onnx,
    str_ortvalue,
    unreduced_onnx_loss,
)
from tests.sklearn.models import linear, mlp, parse

RNG = np.random.default_rng(0)


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


# -- functions -------------------------------------------------------------------------------------

A, B, G = (RNG.normal(size=(5, 2)) for _ in range(3))
W = RNG.uniform(0.5, 2, 5)
AL, BE = np.array([0.3]), np.array([0.9])


def column(w: Any) -> Any:
    return 1.0 if w is None else w[:, None]


def elastic(w: Any) -> list[Any]:
    d = B - A
    loss = column(w) * (0.2 * np.abs(d) + 0.6 * d**2)
    return [loss.sum(), column(w) * (0.2 * np.sign(d) + 1.2 * d)]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "axpy": ({"X1": A, "X2": B, "alpha": AL}, {}, lambda w: [A * 0.3 + B]),
    "axpyw": (
        {"X1": A, "X2": B, "G": G, "alpha": AL, "beta": BE}, {},
        lambda w: [0.9 * G + 0.3 * A + B, 0.9 * G + 0.3 * A],
    ),
    "axpyw2": (
        {"X1": A, "X2": B, "G": G, "alpha": AL, "beta": BE}, {},
        lambda w: [0.9 * (0.9 * G + 0.3 * A) + 0.3 * A + B, 0.9 * G + 0.3 * A],
    ),
    "copy": ({"X": A}, {}, lambda w: [A]),
    "zero": ({"X": A}, {}, lambda w: [A * 0]),
    "linear_regression": ({"X": A, "A": B[:2], "B": B[0]}, {}, lambda w: [A @ B[:2] + B[0]]),
    "square_error": ({"X1": A, "X2": B}, {}, lambda w: [(column(w) * (A - B) ** 2).sum()]),
    "grad_square_error": ({"X1": A, "X2": B}, {}, lambda w: [column(w) * -2 * (A - B)]),
    "grad_loss_square_error": (
        {"X1": A, "X2": B}, {},
        lambda w: [0.5 * (column(w) * (A - B) ** 2).sum(), column(w) * (B - A)],
    ),
    "grad_loss_absolute_error": (
        {"X1": A, "X2": B}, {},
        lambda w: [(column(w) * np.abs(A - B)).sum(), column(w) * np.sign(B - A)],
    ),
    "grad_loss_elastic_error": (
        {"X1": A, "X2": B}, {"l1_weight": 0.2, "l2_weight": 0.6}, elastic,
    ),
    "grad_penalty_elastic_error": (
        {"X": A}, {"l1_weight": 0.2, "l2_weight": 0.6},
        lambda w: [0.2 * np.abs(A).sum() + 0.6 * (A**2).sum(), 0.2 * np.sign(A) + 1.2 * A],
    ),
    "n_penalty_elastic_error": (
        {"loss": np.array(3.0), "W0": A, "W1": B},
        {"n_tensors": 2, "l1_weight": 0.2, "l2_weight": 0.6},
        lambda w: [3 + sum(0.2 * np.abs(x).sum() + 0.6 * (x**2).sum() for x in (A, B))],
    ),
    "update_penalty_elastic_error": (
        {"X": A, "alpha": AL}, {"l1_weight": 0.2, "l2_weight": 0.6},
        lambda w: [A - 0.3 * (0.2 * np.sign(A) + 1.2 * A)],
    ),
    "add_grad_penalty_elastic_error": (
        {"X": A, "G": G, "scale": AL}, {"l1_weight": 0.2, "l2_weight": 0.6},
        lambda w: [
            0.2 * np.abs(A).sum() + 0.6 * (A**2).sum(), G + 0.3 * (0.2 * np.sign(A) + 1.2 * A),
        ],
    ),
    "grad_sigmoid_neg_log_loss_error": (
        {"X1": (A > 0).astype(np.int64), "X2": B}, {"eps": 0.0},
        lambda w: [
            (column(w) * -np.log(np.where(A > 0, 1 / (1 + np.exp(-B)), 1 / (1 + np.exp(B))))).sum(),
            column(w) * (1 / (1 + np.exp(-B)) - (A > 0)),
        ],
    ),
    "grad_softmax_neg_log_loss_error": (
        {"X1": np.array([0, 1, 1, 0, 1]), "X2": B}, {"eps": 0.0},
        lambda w: _softmax(np.array([0, 1, 1, 0, 1]), w),
    ),
}  # fmt: skip


def _softmax(labels: Any, w: Any) -> list[Any]:
    p = np.exp(B) / np.exp(B).sum(axis=1, keepdims=True)
    hot = np.eye(2)[labels]
    return [(-column(w) * np.log(p[np.arange(5), labels])[:, None]).sum(), column(w) * (p - hot)]


def test_every_function_has_a_case() -> None:
    assert set(CASES) == set(get_supported_functions())
    assert all(get_supported_functions().values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_functions(name: str, dtype: Any) -> None:
    feeds, constants, expected = CASES[name]
    typed = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    results = run(function_onnx_graph(name, dtype=dtype, **constants), **typed)
    tolerance = 1e-5 if dtype is np.float32 else 1e-10
    for result, wanted in zip(results, expected(None), strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)
    try:
        model = function_onnx_graph(name, dtype=dtype, weight_name="weight", **constants)
    except ModelError:
        assert not any(word in name for word in ("loss", "square"))
        return
    results = run(model, **typed, weight=W.astype(dtype))
    for result, wanted in zip(results, expected(W), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def test_scores_do_not_overflow_and_eps_limits_the_loss() -> None:
    far = np.array([[1000.0], [-1000.0]], np.float32)
    model = function_onnx_graph("grad_sigmoid_neg_log_loss_error", eps=1e-5)
    loss, gradient = run(model, X1=np.array([[0], [1]]), X2=far)
    np.testing.assert_allclose(loss, -2 * np.log(1e-5), rtol=1e-5)
    np.testing.assert_allclose(gradient, [[1], [-1]])


def test_unknown_functions_and_constants() -> None:
    with pytest.raises(UnknownNameError, match="axpy"):
        function_onnx_graph("axpz")
    with pytest.raises(ModelError, match="l1_weight"):
        function_onnx_graph("axpy", l1_weight=1.0)
    with pytest.raises(ModelError, match="float16"):
        function_onnx_graph("axpy", dtype=np.float16)


# -- losses in the graph ---------------------------------------------------------------------------


def scored(scores: Any, **kwargs: Any) -> onnx.ModelProto:
    width = scores.shape[1]
    model = parse(f"g (float[N,{width}] X) => (float[N,{width}] Y) {{ Y = Identity(X) }}")
    return add_loss_output(model, **kwargs)


S = RNG.uniform(0.1, 0.9, size=(5, 2)).astype(np.float32)
L = np.array([0, 1, 1, 0, 1])
T = RNG.normal(size=(5, 2)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("score", "kwargs", "label", "expected"),
    [
        ("squared_error", {}, T, (S - T) ** 2),
        ("l2", {}, T, (S - T) ** 2),
        ("absolute_error", {}, T, np.abs(S - T)),
        ("l1", {}, T, np.abs(S - T)),
        ("elastic", {"l1_weight": 0.2, "l2_weight": 0.6}, T,
         0.2 * np.abs(S - T) + 0.6 * (S - T) ** 2),
        ("log", {"eps": 1e-6}, L, -np.log(S[np.arange(5), L])[:, None]),
        ("log_scores", {}, L,
         np.log(np.exp(S).sum(axis=1, keepdims=True)) - S[np.arange(5), L][:, None]),
    ],
)  # fmt: skip
def test_losses_in_the_graph(
    score: str, kwargs: Any, label: Any, expected: Any, weighted: bool
) -> None:
    name = "weight" if weighted else None
    model = scored(S, score_name=score, weight_name=name, **kwargs)
    onnx.checker.check_model(model)
    feeds = {"weight": W.astype(np.float32)} if weighted else {}
    loss, _ = run(model, X=S, label=label, **feeds)
    factor = W[:, None] if weighted else 1.0
    np.testing.assert_allclose(loss, (expected * factor).sum(), rtol=1e-5)
    assert loss.shape == (1, 1)


def test_binary_scores_in_one_column() -> None:
    z = T[:, :1]
    loss = run(scored(z, score_name="log_scores"), X=z, label=L)[0]
    np.testing.assert_allclose(
        loss, np.log1p(np.exp(np.where(L == 1, -1, 1) * z[:, 0])).sum(), 1e-5
    )


def test_penalty_label_and_output_of_add_loss_output() -> None:
    text = """g (float[N,2] X) => (float[N,1] Y, float[N,2] Z) {
        label = MatMul(X, w)  Y = Identity(label)  Z = Mul(X, s)
    }"""
    weights = {"w": np.array([[1.0], [-3.0]], np.float32), "s": np.ones(1, np.float32)}
    model = parse(text, weights)
    made = add_loss_output(
        model, output_index="Y", penalty={"w": {"l1": 0.5, "l2": 0.25}, "s": 2.0}
    )
    target = RNG.normal(size=(5, 1)).astype(np.float32)
    loss = run(made, X=S, label=target)[0]
    expected = ((S @ weights["w"] - target) ** 2).sum() + 0.5 * 4 + 0.25 * 10 + 2.0
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert {t.name for t in made.graph.initializer} >= {"w", "s"}
    for options, message in (
        ({"score_name": "hinge"}, "squared_error"),
        ({"output_index": "Q"}, "Y"),
        ({"penalty": {"q": 1.0}}, "w"),
        ({"penalty": {"w": {"l3": 1.0}}}, "l1"),
        ({"eps": 1.0}, "eps"),
    ):
        with pytest.raises(OnnxTrainError, match=message):
            add_loss_output(model, **options)
    outputs = ", ".join(f"float[N] {n}" for n in "ABC")
    three = parse(f"g (float[N] X) => ({outputs}) {{ A = Neg(X) B = Neg(X) C = Neg(X) }}")
    with pytest.raises(ModelError, match="output_index"):
        add_loss_output(three)


def test_penalty_loss_onnx() -> None:
    taken = {"w"}
    tensors, nodes = penalty_loss_onnx("w", np.float32, l1=0.5, l2=0.25, existing_names=taken)
    model = parse("g (float[2] w) => (float p) { q = Identity(w) p = ReduceSum(q) }")
    del model.graph.node[:], model.graph.output[:]
    model.graph.initializer.extend(tensors)
    model.graph.node.extend(nodes)
    name = nodes[-1].output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, []))
    (value,) = run(model, w=np.array([1.0, -3.0], np.float32))
    assert value == pytest.approx(0.5 * 4 + 0.25 * 10)
    assert name in taken
    with pytest.raises(ModelError):
        penalty_loss_onnx("w", np.float32)


def test_unreduced_losses() -> None:
    model = function_onnx_graph("grad_loss_square_error")
    (rows,) = run(unreduced_onnx_loss(model, "Y"), X1=T, X2=S)
    np.testing.assert_allclose(rows, 0.5 * (T - S) ** 2, rtol=1e-5)
    (rows,) = run(unreduced_onnx_loss(add_loss_output(linear()), "loss"),
                  X=np.ones((4, 3), np.float32), label=np.full((4, 1), 2, np.float32))  # fmt: skip
    np.testing.assert_allclose(np.ravel(rows), [4.0] * 4)
    with pytest.raises(UnknownNameError):
        unreduced_onnx_loss(model)
    with pytest.raises(ModelError, match="reduction"):
        unreduced_onnx_loss(linear(), "Y")


# -- derivatives and rewriting ---------------------------------------------------------------------


def test_forms_of_the_derivative(tmp_path: Any) -> None:
    model, weights = mlp()
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    dy = RNG.normal(size=(6, 1)).astype(np.float32)
    hidden = x @ weights["w_first"] + weights["bias"]
    dhidden = (dy @ weights["w_second"].T) * (hidden > 0)
    wanted = {
        "X_grad": dhidden @ weights["w_first"].T,
        "w_second_grad": np.maximum(hidden, 0).T @ dy,
        "w_first_grad": x.T @ dhidden,
        "bias_grad": dhidden.sum(axis=0),
    }
    made = onnx_derivative(model, path_name=tmp_path / "g.onnx")
    assert onnx.load(tmp_path / "g.onnx") == made
    names = [o.name for o in made.graph.output]
    for name, value in zip(names, run(made, X=x, Y_grad=dy)):
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)
    assert set(names) == set(wanted)
    both = DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad
    made = onnx_derivative(model, ["bias"], [], both)
    output, gradient = run(made, X=x)
    np.testing.assert_allclose(output, np.maximum(hidden, 0) @ weights["w_second"], rtol=1e-4)
    ones = (np.ones_like(dy) @ weights["w_second"].T) * (hidden > 0)
    np.testing.assert_allclose(gradient, ones.sum(axis=0), rtol=1e-4, atol=1e-5)
    kept = onnx_derivative(model, options=DerivativeOptions.KeepYieldOp)
    assert any(n.op_type == "YieldOp" for n in kept.graph.node)
    with pytest.raises(ModelError, match="alone"):
        onnx_derivative(model, options=DerivativeOptions.KeepYieldOp | DerivativeOptions.FillGrad)
    with pytest.raises(UnknownNameError, match="bias"):
        onnx_derivative(model, ["none"])
    with pytest.raises(ModelError, match="nothing"):
        onnx_derivative(model, [], [])


SQUARES = """(float[N,1] z, float[N,1] y) => (float l) {
    d = Sub(z, y)  s = Mul(d, d)  l = ReduceSum<keepdims=0>(s)
}"""


@pytest.mark.parametrize("text", [None, SQUARES])
def test_derivative_of_a_loss(text: str | None) -> None:
    model = linear()
    made = onnx_derivative(model, inputs=[], options=DerivativeOptions.Loss, loss=text, label="y")
    x = RNG.normal(size=(6, 3)).astype(np.float32)
    y = RNG.normal(size=(6, 1)).astype(np.float32)
    results = dict(zip([o.name for o in made.graph.output], run(made, X=x, y=y)))
    np.testing.assert_allclose(results["zeta_grad"], -2 * x.T @ y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["loss"], (y**2).sum(), rtol=1e-5)
    with pytest.raises(ModelError, match="neither"):
        onnx_derivative(model, options=DerivativeOptions.Loss, loss="no graph")


def test_rewriting_an_operator() -> None:
    model = parse(
        "g (float[N] X) => (float[N] Y) { a = Reciprocal(X) b = Reciprocal(a) Y = Neg(b) }"
    )
    sub = parse(
        "h (float[N] x) => (float[N] y) <float one = {1}> { t = Identity(one) y = Div(t, x) }"
    )
    made = onnx_rewrite_operator(model, "Reciprocal", sub)
    kinds = [n.op_type for n in made.graph.node]
    assert "Reciprocal" not in kinds
    assert kinds.count("Div") == 2
    x = np.array([1.0, 2.0, 4.0], np.float32)
    np.testing.assert_allclose(run(made, X=x)[0], -x)
    assert onnx_rewrite_operator(model, "Cos", sub) == model
    with pytest.raises(ModelError, match="inputs"):
        onnx_rewrite_operator(model, "Neg", parse("h (float[N] x, float[N] z) => (float[N] y)"
                                                  "{ y = Add(x, z) }"))  # fmt: skip


def test_weights_by_name() -> None:
    model, weights = mlp()
    renamed = onnx_rename_weights(model)
    names = list(get_train_initializer(renamed))
    assert names == sorted(names)
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(renamed, X=x)[0], run(model, X=x)[0])
    assert list(get_train_initializer(model)) == list(weights)
    new = replace_initializers_into_onnx(model, {"bias": np.arange(8)})
    np.testing.assert_array_equal(get_train_initializer(new)["bias"][0], np.arange(8))
    assert get_train_initializer(new)["bias"][0].dtype == np.float32
    with pytest.raises(UnknownNameError):
        replace_initializers_into_onnx(model, {"none": np.ones(1)})
    assert "extra" in get_train_initializer(add_initializer(model, "extra", np.ones(2)))
    assert get_onnx_opset(model) == 18
    assert dtype_to_var_type(np.float64) == onnx.TensorProto.DOUBLE
    assert proto_type_to_dtype("tensor(int64)") is np.int64


# -- devices ---------------------------------------------------------------------------------------


def test_devices() -> None:
    for name in ("cpu", "cuda", "cuda:1"):
        assert ort_device_to_string(get_ort_device(name)) == name
    assert ort_device_to_string(get_ort_device("gpu:2")) == "cuda:2"
    assert get_ort_device_type("gpu") == get_ort_device_type(get_ort_device("cuda"))
    assert device_to_providers("cpu") == ["CPUExecutionProvider"]
    assert provider_to_device("CUDAExecutionProvider") == "cuda"
    for call, wrong in (
        (get_ort_device, "tpu"), (get_ort_device, "cuda:x"), (get_ort_device, "cpu:1"),
        (provider_to_device, "None"), (device_to_providers, "cuda"),
    ):  # fmt: skip
        with pytest.raises(ProviderError):
            call(wrong)
    session = onnxruntime.InferenceSession(linear().SerializeToString())
    assert ort_device_to_string(get_ort_device_from_session(session)) == "cpu"
    value = numpy_to_ort_value(np.arange(8.0))
    shown = "value=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]"
    assert str_ortvalue(value) == f"device=Cpu dtype=dtype('float64') shape=(8,) {shown}"


# -- pictures --------------------------------------------------------------------------------------


def trained() -> OrtGradientForwardBackwardOptimizer:
    model, _ = mlp()
    return OrtGradientForwardBackwardOptimizer(
        model, learning_rate="Nesterov", learning_penalty=L2LearningPenalty(0.1)
    ).build_onnx_function()


def test_the_four_graphs_are_drawn(tmp_path: Any) -> None:
    made = trained()
    assert list(four_graphs(made)) == [
        "model and its gradient",
        "loss and its gradient",
        "penalty and its gradient",
        "weight update",
    ]
    picture = plot_four_graphs(made, tmp_path / "four.svg", title="Nesterov")
    assert (tmp_path / "four.svg").read_text(encoding="utf-8") == picture
    root = ET.fromstring(picture)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    for wanted in (
        "w_second",
        "float[4, 8]",
        "YieldOp",
        "w_first_grad",
        "weight update",
        "Nesterov",
    ):
        assert wanted in texts
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    width = float(root.attrib["width"])
    assert all(0 <= float(b.get("x", 0)) <= width for b in boxes)
    plot_four_graphs(made, tmp_path / "four.txt")
    text = (tmp_path / "four.txt").read_text(encoding="utf-8")
    assert "input:  w_first  float[4, 8]" in text
    with pytest.raises(OnnxTrainError, match="svg"):
        plot_four_graphs(made, tmp_path / "four.bmp")
    with pytest.raises(FileNotFoundError):
        plot_four_graphs(made, tmp_path / "none" / "four.svg")


def test_png(tmp_path: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    plot_four_graphs(trained(), tmp_path / "four.png")
    with image.open(tmp_path / "four.png") as picture:
        assert picture.width > picture.height > 100
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 5


def test_models_side_by_side(tmp_path: Any) -> None:
    one, two = linear(), add_loss_output(linear())
    picture = plot_onnxs(one, two, title=["model", "with loss"], path=tmp_path / "both.svg")
    assert "with loss" in picture
    assert picture.count("MatMul") >= 2
    assert "weight: zeta  float[3, 1]" in onnx_simple_text_plot(one)
    with pytest.raises(OnnxTrainError, match="no model"):
        plot_onnxs()


class Axis:
    """What a matplotlib axis would be asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append(name)


def test_drawing_on_axes() -> None:
    axis = Axis()
    assert plot_onnxs(linear(), linear(), ax=axis) is axis
    assert axis.calls.count("text") == 2 * (1 + 2 * 6)
    assert axis.calls.count("fill") == 2 * 6
    with pytest.raises(OnnxTrainError, match="axes"):
        plot_onnxs(linear(), linear(), linear(), ax=[Axis(), Axis()])
