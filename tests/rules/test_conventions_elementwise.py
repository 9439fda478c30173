"""PyTorch's conventions at ties, kinks and delicate points, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

import onnxtrain

from .conventions import INF, f32, gradients, torch_gradients
from .harness import run_ort, run_reference

KINKS = f32(-4, -3, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 4)

UNARY = {
    "Abs": ({}, torch.abs),
    "Relu": ({}, F.relu),
    "LeakyRelu": ({"alpha": 0.1}, lambda x: F.leaky_relu(x, 0.1)),
    "Elu": ({"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    "Selu": ({}, F.selu),
    "Celu": ({"alpha": 0.7}, lambda x: F.celu(x, 0.7)),
    "HardSigmoid": ({"alpha": 1 / 6}, F.hardsigmoid),
    "HardSwish": ({}, F.hardswish),
    "ThresholdedRelu": ({"alpha": 1.0}, lambda x: F.threshold(x, 1.0, 0.0)),
    "Shrink": ({"lambd": 0.5, "bias": 0.5}, lambda x: F.softshrink(x, 0.5)),
    "Softsign": ({}, F.softsign),
    "Mish": ({}, F.mish),
    "Softplus": ({}, F.softplus),
    "Gelu": ({}, F.gelu),
}


@pytest.mark.parametrize("op", list(UNARY))
def test_kinks_follow_torch(op: str) -> None:
    attrs, function = UNARY[op]
    got = gradients(op, KINKS, opset=20, **attrs)[0]
    np.testing.assert_allclose(got, torch_gradients(function, KINKS)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("op", ["Mish", "Gelu", "Softplus", "Sigmoid", "Tanh", "Softsign", "Selu"])
def test_no_overflow_far_out(op: str) -> None:
    x = f32(-200, -90, -30, 30, 90, 200)
    function = {"Sigmoid": torch.sigmoid, "Tanh": torch.tanh}.get(op) or UNARY[op][1]
    got = gradients(op, x, opset=20)[0]
    np.testing.assert_allclose(got, torch_gradients(function, x)[0], rtol=1e-5, atol=1e-6)


def test_of_a_softplus_far_below_zero_the_exponential_is_left() -> None:
    """Also at infinities, where its operand and its result have no difference."""
    x = f32(-INF, -80, -40, -25.4, -18, 0, 90, INF)
    got = gradients("Softplus", x, opset=20)[0]
    np.testing.assert_allclose(got, torch_gradients(F.softplus, x)[0], rtol=2e-6)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_equal_operands_share(op: str) -> None:
    a, b = f32(1, 2, 3, INF, -INF), f32(1, 3, 2, INF, -INF)
    function = torch.maximum if op == "Max" else torch.minimum
    for got, want in zip(gradients(op, a, b, wrt=[0, 1]), torch_gradients(function, a, b)):
        np.testing.assert_array_equal(got, want)
    thirds = gradients(op, a, a, a, wrt=[0, 1, 2])
    np.testing.assert_allclose(thirds, np.full((3, 5), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("operands", ["x, c", "c, x"])
def test_a_number_shares_with_what_is_equal(op: str, operands: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[8] x) => (float[8] y) <float c = {{1.5}}> {{ y = {op}({operands}) }}""")
    graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    assert "Equal" not in {n.op_type for n in graded.graph.node}
    x = f32(-INF, -3e38, 0, np.nextafter(f32(1.5)[0], f32(0)[0]), 1.5, 1.6, 3e38, INF)
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    (got,) = session.run(["x_grad"], {"x": x, "y_grad": np.arange(1, 9, dtype=np.float32)})
    share = np.where(x == 1.5, 0.5, (x > 1.5) == (op == "Max"))
    np.testing.assert_array_equal(got, share * np.arange(1, 9))


def test_clip_passes_at_the_bounds() -> None:
    """As in torch up to 2.13; 2.15 gives one half to the value and one to the bound."""
    x, low, high = f32(-2, -1, 0, 1, 2), f32(-1)[0], f32(1)[0]
    got = gradients("Clip", x, low, high, wrt=[0, 1, 2])
    for g, want in zip(got, (f32(0, 1, 1, 1, 0), f32(1)[0], f32(1)[0])):
        np.testing.assert_array_equal(g, want)
    inside = gradients("Clip", x * f32(0.9)[0], low, high, wrt=[0, 1, 2])
    for g, want in zip(inside, torch_gradients(torch.clamp, x * f32(0.9)[0], low, high)):
        np.testing.assert_array_equal(g, want)
    crossed = gradients("Clip", x + 0.5, high, low, wrt=[0, 1, 2])
    for g, want in zip(crossed, torch_gradients(torch.clamp, x + 0.5, high, low)):
        np.testing.assert_array_equal(g, want)


@pytest.mark.parametrize(
    ("first", "function"), [("Relu", F.relu), ("Clip", lambda x: x.clamp(min=0))]
)
def test_masks_drop_infinite_gradients(first: str, function: Any) -> None:
    """√relu(x) has an infinite slope at 0; what relu cuts off gets 0 all the same."""
    x = f32(-1, 4)
    bound = f32(0)[0] if first == "Clip" else None
    got = gradients(first, x, *([] if bound is None else [bound]), seed=f32(INF, 0.25))[0]
    np.testing.assert_array_equal(got, f32(0, 0.25))
    assert np.isfinite(torch_gradients(lambda t: torch.sqrt(function(t)), x)[0]).all()


def test_relu_after_a_product_uses_the_same_convention() -> None:
    """Behind a MatMul the mask is made in another way, with the same result."""
    x, w = f32([-1, 0, 2, 1e-30, -0.0]), np.arange(1, 11, dtype=np.float32).reshape(5, 2)
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Relu", ["x"], ["h"], name="relu"),
                helper.make_node("MatMul", ["h", "w"], ["y"], name="product"),
            ],
            "g",
            [helper.make_tensor_value_info("x", 1, x.shape)],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(w, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    result = onnxtrain.differentiate(model, wrt=["x"], of=["y"], vjp=True)
    got = run_ort(result, {"x": x, "y_grad": np.ones((1, 2), np.float32)})[1]
    want = torch_gradients(lambda t: F.relu(t) @ torch.tensor(w), x)[0]
    np.testing.assert_array_equal(got, want)


# --- powers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, 0.5, 1.5])
@pytest.mark.parametrize("constant", [True, False])
def test_power_of_zero(power: float, constant: bool) -> None:
    x, p = f32(0, 2), f32(power)[0]
    got = gradients("Pow", x, p, constants=(1,) if constant else ())[0]
    np.testing.assert_allclose(got, torch_gradients(lambda t: t**power, x)[0], rtol=1e-6)


def test_exponent_where_the_base_is_not_positive() -> None:
    base, exponent = f32(-2, 0, 0, 2, 3), f32(2, 2, 0, 3, 0)
    got = gradients("Pow", base, exponent, wrt=[0, 1])
    assert np.isfinite(got).all()
    want = torch_gradients(torch.pow, np.abs(base), exponent)[1]
    np.testing.assert_allclose(got[1], np.where(base > 0, want, 0), rtol=1e-6)
    np.testing.assert_allclose(got[0], torch_gradients(torch.pow, base, exponent)[0], rtol=1e-6)


def test_integer_exponent_at_run_time() -> None:
    x = f32(0, -1, 2)
    got = gradients("Pow", x, np.array([0, 2, 3]), dynamic=True)[0]
    np.testing.assert_allclose(got, f32(0, -2, 12))


def test_floored_modulo() -> None:
    """fmod=0 with floats is outside of the standard's text, but `onnx.reference` runs it."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[4] a, float[4] b) => (float loss) {
            y = Mod <fmod = 0> (a, b)
            loss = ReduceSum <keepdims = 0> (y)
        }"""
    )
    a, b = f32(-5, 5, 7, -0.3), f32(3, -3, 2, 1)
    got = run_reference(onnxtrain.differentiate(model, wrt=["a", "b"]), {"a": a, "b": b})[1:]
    for g, want in zip(got, torch_gradients(torch.remainder, a, b)):
        np.testing.assert_allclose(g, want)


DELICATE = {
    "Sqrt": (torch.sqrt, f32(0, 1)),
    "Log": (torch.log, f32(0, 1)),
    "Reciprocal": (torch.reciprocal, f32(0, -0.0, 2)),
    "Asin": (torch.asin, f32(-1, 0, 1)),
    "Acos": (torch.acos, f32(-1, 0, 1)),
    "Acosh": (torch.acosh, f32(1, 2)),
    "Atanh": (torch.atanh, f32(-1, 0, 1)),
    "Exp": (torch.exp, f32(-200, 0, 88)),
    "Erf": (torch.erf, f32(-50, 0, 50)),
    "Tan": (torch.tan, f32(0, 1)),
}


@pytest.mark.parametrize("op", list(DELICATE))
def test_infinite_exactly_where_torch_is(op: str) -> None:
    function, x = DELICATE[op]
    got, want = gradients(op, x)[0], torch_gradients(function, x)[0]
    assert not np.isnan(got).any()
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    "formula",
    [
        "q = Div(s, x)", "q = Log(x)", "q = Sqrt(x)", "q = Reciprocal(x)", "q = Pow(x, minus)",
        "p = Pow(x, minus) r = Sub(p, one) q = Div(r, minus)",
    ],
)  # fmt: skip
def test_a_pole_that_a_where_leaves_out(formula: str) -> None:
    """As sin(x)/x is written: what is not taken has no gradient, not 0 times infinity."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4] x) => (float[4] y)
            <float zero = {{0}}, float one = {{1}}, float minus = {{-1}}> {{
            s = Sin(x)
            {formula}
            pole = Equal(x, zero)
            y = Where(pole, one, q)
        }}""")
    x = f32(0, 0.5, 1, 2)
    gradient = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    dx = run_ort(gradient, {"x": x, "y_grad": np.ones(4, np.float32)})[-1]
    assert dx[0] == 0
    assert np.isfinite(dx).all()
    assert dx[1:].all()
    onnxtrain.check_gradient(model, {"x": x[1:].repeat(2)[:4]}, wrt=["x"]).raise_if_wrong()


def test_a_division_by_a_broadcast_zero_that_a_where_leaves_out() -> None:
    """As tf.math.divide_no_nan is written: the gradients of both operands keep their shapes."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2,3] a, float[2,1] b) => (float[2,3] y) <float zero = {0}> {
            pole = Equal(b, zero)
            q = Div(a, b)
            y = Where(pole, zero, q)
        }""")
    a = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    gradient = onnxtrain.differentiate(model, wrt=["a", "b"], vjp=True)
    feeds = {"a": a, "b": f32(0, 2).reshape(2, 1), "y_grad": np.ones((2, 3), np.float32)}
    da, db = run_ort(gradient, feeds)[-2:]
    np.testing.assert_allclose(da, [[0, 0, 0], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(db, [[0], [-15 / 4]])
