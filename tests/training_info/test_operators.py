"""Gradient, Adam, Adagrad and Momentum of ai.onnx.preview.training, run by onnxruntime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain.errors import ModelError, UnknownNameError
from onnxtrain.training_info import expand

HEADER = '<ir_version: 8, opset_import: ["": 18, "ai.onnx.preview.training": 1]>'
GRADIENT = "ai.onnx.preview.training.Gradient"


def node_tests() -> dict[str, Any]:
    """The onnx package's own tests of these operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.model import collect_testcases as of_models
        from onnx.backend.test.case.node import collect_testcases as of_nodes

        cases = [*of_nodes(None), *of_models()]
    updates = ("test_adam", "test_adagrad", "test_momentum", "test_nesterov")
    return {c.name: c for c in cases if c.name.startswith(updates) or "gradient_of" in c.name}


CASES = node_tests()


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Run a model after it has been rewritten."""
    rewritten = expand(model)
    assert {n.domain for n in rewritten.graph.node} == {""}
    session = onnxruntime.InferenceSession(
        rewritten.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def parse(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEADER} g {graph}")


def test_the_package_has_tests_of_each() -> None:
    assert len(CASES) == 9


@pytest.mark.parametrize("name", CASES)
def test_of_the_onnx_package(name: str) -> None:
    case = CASES[name]
    names = [i.name for i in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        for got, expected in zip(run(case.model, dict(zip(names, inputs))), outputs):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_tensors_of_another_type_than_the_rate() -> None:
    model = parse("""(float r, int64 t, double[2] x, double[2] g, double[2] v)
        => (double[2] nx, double[2] nv) {
        nx, nv = ai.onnx.preview.training.Momentum
            <alpha: float = 0.5, beta: float = 0.25, norm_coefficient: float = 0.0,
             mode: string = "standard">(r, t, x, g, v)
    }""")
    x, g, v = np.array([1.0, 2]), np.array([3.0, 4]), np.array([5.0, 6])
    feeds = {"r": np.array(0.5, np.float32), "t": np.array(0), "x": x, "g": g, "v": v}
    new_x, new_v = run(model, feeds)
    np.testing.assert_allclose(new_v, 0.5 * v + g)  # the first step takes the whole gradient
    np.testing.assert_allclose(new_x, x - 0.5 * new_v)
    _, later = run(model, {**feeds, "t": np.array(3)})
    np.testing.assert_allclose(later, 0.5 * v + 0.25 * g)


# --- Gradient -------------------------------------------------------------------------------------

X, W, AT = (np.array(v, np.float32) for v in ([1, -2, 3], [0.5, 2, -1], [2, 2, 2]))


def test_of_a_tensor_it_is_that_of_the_sum() -> None:
    model = parse(f"""(float[3] x, float[3] w) => (float[3] dw) {{
        p = Mul(x, w)  y = Mul(p, p)
        dw = {GRADIENT}<xs = ["w"], zs = ["x"], y = "y">(w, x)
    }}""")
    np.testing.assert_allclose(run(model, {"x": X, "w": W})[0], 2 * X * X * W)


def test_an_output_may_be_left_out() -> None:
    model = parse(
        f"""(float[3] x, float[3] w) => (float[3] dw) {{
        y = Mul(x, w)
        "", dw = {GRADIENT}<xs = ["x", "w"], y = "y">(x, w)
    }}""".replace('"", dw', "dx, dw")
    )
    model.graph.node[-1].output[0] = ""
    np.testing.assert_allclose(run(model, {"x": X, "w": W})[0], X)


def test_with_respect_to_a_value_inside() -> None:
    model = parse(f"""(float[3] x, float[3] w) => (float[3] dh) {{
        h = Mul(x, w)  e = Exp(h)  y = Mul(e, w)
        dh = {GRADIENT}<xs = ["h"], zs = ["w"], y = "y">(h, w)
    }}""")
    np.testing.assert_allclose(run(model, {"x": X, "w": W})[0], W * np.exp(X * W), rtol=1e-5)


def test_at_other_values_than_those_of_the_model() -> None:
    model = parse(f"""(float[3] x, float[3] w, float[3] at)
        => (float[3] y, float[3] dw, float[3] dx) {{
        p = Mul(x, w)  y = Mul(p, p)
        dw, dx = {GRADIENT}<xs = ["w", "x"], y = "y">(at, at)
    }}""")
    y, dw, dx = run(model, {"x": X, "w": W, "at": AT})
    np.testing.assert_allclose(y, (X * W) ** 2)
    np.testing.assert_allclose(dw, 2 * AT**3)
    np.testing.assert_allclose(dx, 2 * AT**3)


def test_a_derivative_of_a_derivative() -> None:
    model = parse(f"""(float[3] x) => (float[3] second) {{
        s = Mul(x, x)  y = Mul(s, x)
        first = {GRADIENT}<xs = ["x"], y = "y">(x)
        second = {GRADIENT}<xs = ["x"], y = "first">(x)
    }}""")
    np.testing.assert_allclose(run(model, {"x": X})[0], 6 * X, rtol=1e-6)


def test_what_is_drawn_is_drawn_once() -> None:
    model = parse(f"""(float[1000] x) => (float[1000] y, float[1000] dx)
        <float ratio = {{0.5}}, bool training = {{1}}> {{
        y = Dropout(x, ratio, training)
        dx = {GRADIENT}<xs = ["x"], y = "y">(x)
    }}""")
    y, dx = run(model, {"x": np.ones(1000, np.float32)})
    assert 300 < (y == 0).sum() < 700
    np.testing.assert_array_equal(y, dx)


def test_at_an_old_opset() -> None:
    model = parse(f"""(float[2,3] x) => (float[2,3] dx) {{
        s = Softmax<axis = 1>(x)  y = ReduceSum<axes = [1]>(s)  z = Mul(s, y)
        dx = {GRADIENT}<xs = ["x"], y = "z">(x)
    }}""")
    model.opset_import[0].version = 11
    (dx,) = run(model, {"x": np.stack([X, W])})
    np.testing.assert_allclose(dx, 0, atol=1e-6)


ONE = "(float[3] x) => (float[3] d)"
BODY = """(float[3] x, bool b) => (float[3] d) { y = Exp(x) d = If(b) <
    then_branch = t () => (float[3] e) { e = G<xs = ["x"], y = "y">(x) },
    else_branch = f () => (float[3] h) { h = Exp(x) }> }"""
COPY = """{ c = Identity(x) y = Mul(c, x) d = G<xs = ["c"], y = "y">(c) }"""
MISTAKES = {
    "unknown": (ONE + '{ y = Exp(x) d = G<xs = ["z"], y = "y">(x) }', "'z'"),
    "inputs": (ONE + '{ y = Exp(x) d = G<xs = ["x"], y = "y">(x, x) }', "one input for each"),
    "no target": (ONE + '{ y = Exp(x) d = G<xs = ["x"]>(x) }', "attribute y"),
    "a copy": (ONE + COPY, "copy of 'x'"),
    "in a body": (BODY, "main graph"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    text, message = MISTAKES[name]
    with pytest.raises((ModelError, UnknownNameError), match=message):
        expand(parse(text.replace("G<", f"{GRADIENT}<")))
