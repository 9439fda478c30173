"""Operators written in a faster form: same values and gradients, at the ends of the range too."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain import differentiate

EDGES = [0.0, 1e-8, -1e-8, 0.5, -0.5, 3.0, -3.0, 16.5, 17.5, 25.0, -25.0, 88.0, -88.0]
ENDS = [1e4, -1e4, 3e38, -3e38, np.inf, -np.inf]
X = np.array(EDGES + ENDS, np.float32)


def parse(body: str, size: str = "N") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{size}] x) => (float[M] y)
        <float one = {{1.0}}, float two = {{2.0}}, float limit = {{20.0}}, float low = {{3.0}},
         float half = {{0.5}}, float middle = {{1.5}}>
        {{ {body} }}""")


def run(model: onnx.ModelProto, **feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


def types(model: onnx.ModelProto) -> set[str]:
    return {n.op_type for n in model.graph.node}


def sigmoid(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


SLOPES = {
    "Softplus": sigmoid,
    "Elu": lambda x: np.exp(np.minimum(x, 0)),
    "Selu": lambda x: 1.0507010 * np.where(x > 0, 1, 1.6732632 * np.exp(np.minimum(x, 0))),
    "Mish": None,
}


@pytest.mark.parametrize("name", SLOPES)
def test_values_and_slopes_at_the_ends(name):
    model = parse(f"y = {name}(x)")
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert name not in types(graded)
    ordinary = X[np.abs(X) < 1e3]
    for x in (X, ordinary):
        with np.errstate(all="ignore"):
            values = run(graded, x=x, y_grad=np.ones_like(x))
            expected = run(model, x=x)["y"]
            np.testing.assert_allclose(values["y"], expected, rtol=2e-6, atol=2e-7)
            slope = SLOPES[name]
            if slope is not None:
                wanted = slope(x.astype(np.float64))
                np.testing.assert_allclose(values["x_grad"], wanted, rtol=1e-5, atol=2e-7)


def test_hard_swish_beyond_and_at_its_corners():
    x = np.array([-np.inf, -3e38, -4, -3, -2.999, 0, 2.999, 3, 4, 3e38], np.float32)
    graded = differentiate(parse("y = HardSwish(x)"), wrt=["x"], vjp=True)
    slope = run(graded, x=x, y_grad=np.ones_like(x))["x_grad"]
    inside = np.abs(x) < 3
    expected = np.where(inside, np.where(inside, x, 0) / 3 + 0.5, x >= 3)
    np.testing.assert_allclose(slope, expected, atol=1e-6)


SATURATED = {
    "plain": "s = Softplus(x) c = Greater(x, limit) y = Where(c, x, s)",
    "with beta": "b = Mul(x, two) t = Softplus(b) s = Div(t, two) c = Greater(b, limit) "
    "y = Where(c, x, s)",
    "beta one": "o = CastLike(one, x) b = Mul(x, o) t = Softplus(b) s = Div(t, o) "
    "c = Greater(b, limit) y = Where(c, x, s)",
}
NOT_SATURATED = {
    "low limit": "s = Softplus(x) c = Greater(x, low) y = Where(c, x, s)",
    "other argument": "n = Neg(x) s = Softplus(n) c = Greater(x, limit) y = Where(c, x, s)",
    "other divisor": "t = Softplus(x) s = Div(t, two) c = Greater(x, limit) y = Where(c, x, s)",
}


@pytest.mark.parametrize("name", [*SATURATED, *NOT_SATURATED])
def test_softplus_that_saturates(name):
    body = {**SATURATED, **NOT_SATURATED}[name]
    model = parse(body)
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert ("Where" in types(graded)) == (name in NOT_SATURATED)
    x = np.array(EDGES, np.float32)
    values = run(graded, x=x, y_grad=np.ones_like(x))
    np.testing.assert_allclose(values["y"], run(model, x=x)["y"], rtol=2e-6, atol=2e-7)
    if name in SATURATED:
        factor = 2 if name == "with beta" else 1
        np.testing.assert_allclose(values["x_grad"], sigmoid(factor * x), rtol=1e-5, atol=2e-7)


HUBER = {
    "smooth L1": "a = Abs(x) c = Less(a, low) p = Pow(a, two) h = Mul(p, half) n = Div(h, low) "
    "f = Sub(a, middle) y = Where(c, n, f)",
    "Huber": "a = Abs(x) c = LessOrEqual(a, low) h = Mul(a, half) n = Mul(h, a) f = Sub(a, middle) "
    "k = Mul(low, f) y = Where(c, n, k)",
}
NOT_HUBER = {
    "not tangent": "a = Abs(x) c = Less(a, low) n = Mul(a, a) f = Sub(a, middle) "
    "y = Where(c, n, f)",
    "cubic": "a = Abs(x) c = Less(a, low) p = Mul(a, a) q = Mul(p, a) n = Mul(q, half) "
    "f = Sub(a, middle) y = Where(c, n, f)",
    "other size": "a = Abs(x) b = Exp(a) c = Less(a, low) p = Mul(b, b) h = Mul(p, half) "
    "n = Div(h, low) f = Sub(a, middle) y = Where(c, n, f)",
}


@pytest.mark.parametrize("name", [*HUBER, *NOT_HUBER])
def test_parabola_with_tangents(name):
    text = parse({**HUBER, **NOT_HUBER}[name])
    graded = differentiate(text, wrt=["x"], vjp=True)
    assert ("Where" in types(graded)) == (name in NOT_HUBER)
    x = np.array([0, 1e-8, -0.5, 2.9, -2.9, 3.0, -3.1, 1e4, -1e30, np.inf], np.float32)
    values = run(graded, x=x, y_grad=np.ones_like(x))
    if name in NOT_HUBER:
        return
    np.testing.assert_allclose(values["y"], run(text, x=x)["y"], rtol=1e-6, atol=1e-12)
    slope = np.clip(x, -3, 3) / (3 if name == "smooth L1" else 1)
    np.testing.assert_allclose(values["x_grad"], slope, rtol=1e-6)


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
def test_cubic_resize_is_products(mode):
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2,3,5,7] x) => (float[A,B,C,D] y)
        <float[4] s = {{1, 1, 1.6, 2}}>
        {{ y = Resize<mode="cubic", coordinate_transformation_mode="{mode}">(x, , s) }}""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 7)).astype(np.float32)
    expected = run(model, x=x)["y"]
    values = run(graded, x=x, y_grad=np.ones_like(expected))
    np.testing.assert_allclose(values["y"], expected, atol=1e-5)


def test_a_value_that_is_asked_for_stays():
    model = parse("b = Mul(x, one) t = Softplus(b) y = Mul(t, two)")
    graded = differentiate(model, wrt=["x", "b", "t"], vjp=True)
    values = run(graded, x=X[:4], y_grad=np.ones(4, np.float32))
    np.testing.assert_allclose(values["t_grad"], np.full(4, 2.0))
    np.testing.assert_allclose(values["b_grad"], values["x_grad"])


def test_other_types_are_left_alone():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (double[N] x) => (double[N] y)'
        "{ y = Softplus(x) }"
    )
    assert "Softplus" in types(differentiate(model, wrt=["x"], vjp=True))
