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
    "Celu": lambda x: np.exp(np.minimum(x, 0)),
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


JOINED = """
    <ir_version: 9, opset_import: ["": 18]>
    g (float[N,5,3] x, float[N,5,2] z) => (float[N,A,B] y{more})
    <int64[2] from = {{1, 0}}, int64[2] to = {{4, 2}}, int64[2] axes = {{{axes}}}> {{
    both = Concat<axis = -1>(x, z)
    y = Slice(both, from, to, axes) {node} }}"""
OTHERS = {"": "", ", float[N,5,5] t": "t = Neg(both)", ", float[N,5,5] both": ""}


@pytest.mark.parametrize(("axes", "is_apart"), [("1, 0", True), ("1, -1", False), ("1, 2", False)])
@pytest.mark.parametrize("more", OTHERS)
def test_a_slice_of_what_was_joined(axes, is_apart, more):
    """It is cut before it is joined, unless somebody else reads what was joined."""
    model = onnx.parser.parse_model(JOINED.format(axes=axes, more=more, node=OTHERS[more]))
    graded = differentiate(model, wrt=["x"], of="y", vjp=True)
    order = [n.op_type for n in graded.graph.node if n.op_type in ("Concat", "Slice")]
    assert (order[:2] == ["Slice", "Slice"]) == (is_apart and not more)
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((3, 5, n)).astype(np.float32) for n in (3, 2))
    both = np.concatenate([x, z], -1)
    taken = (slice(0, 2), slice(1, 4)) if is_apart else (slice(None), slice(1, 4), slice(0, 2))
    dy = rng.standard_normal(both[taken].shape).astype(np.float32)
    expected = np.zeros_like(both)
    expected[taken] = dy
    values = run(graded, x=x, z=z, y_grad=dy)
    np.testing.assert_array_equal(values["y"], both[taken])
    np.testing.assert_array_equal(values["x_grad"], expected[..., :3])


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


SHRINKS = {
    "soft": "a = Abs(x) s = Sign(x) m = Mul(x, nought) c = Greater(a, low)"
    " t = Mul(s, low) u = Sub(x, t) y = Where(c, u, m)",
    "hard": "a = Abs(x) c = LessOrEqual(a, low) y = Where(c, nought, x)",
    "hard, of a number that is cast": "a = Abs(x) c = LessOrEqual(a, low)"
    " n = Cast<to=1>(nought) y = Where(c, n, x)",
}


@pytest.mark.parametrize("name", SHRINKS)
def test_shrinks_without_a_choice(name):
    model = parse(SHRINKS[name], size="11")
    model.graph.initializer.append(onnx.helper.make_tensor("nought", 1, [], [0.0]))
    graded = differentiate(model, wrt=["x"], vjp=True)
    above = np.nextafter(np.float32(3), np.float32(4))
    x = np.array([0, 1e-30, 2.9, -2.9, 3, -3, above, -above, 7, -np.inf, np.nan], np.float32)
    for seed in (1.0, np.inf, np.nan):
        values = run(graded, x=x, y_grad=np.full_like(x, seed))
        np.testing.assert_array_equal(values["y"], run(model, x=x)["y"])
        beyond = ~(np.abs(x) <= 3)
        np.testing.assert_array_equal(values["x_grad"][:-1], np.where(beyond, seed, 0)[:-1])


def test_other_choices_are_no_shrinks():
    for old, new in (
        ("Greater", "Less"),
        ("Sign(x)", "Sign(a)"),
        ("Mul(x, nought)", "Mul(x, low)"),
    ):
        model = parse(SHRINKS["soft"].replace(old, new))
        model.graph.initializer.append(onnx.helper.make_tensor("nought", 1, [], [0.0]))
        assert "Sign" in types(differentiate(model, wrt=["x"], vjp=True))


@pytest.mark.parametrize("shape", [(2, 5, 16, 64), (3, 7, 200)])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax_across_rows_is_written_out(name, shape):
    dims = ", ".join(map(str, shape))
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]> g (float[{dims}] x) => (float[{dims}] y)
        {{ y = {name}<axis = 1>(x) }}""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert name not in types(graded)
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=shape, scale=30).astype(np.float32) for _ in range(2))
    x[0, 1], x[1, 2] = -np.inf, 3e38
    values, expected = run(graded, x=x, y_grad=dy), run(model, x=x)["y"]
    np.testing.assert_allclose(values["y"], expected, rtol=1e-5, atol=1e-6)
    y = values["y"].astype(np.float64)
    if name == "Softmax":
        wanted = y * (dy - (dy * y).sum(1, keepdims=True))
    else:
        wanted = dy - np.exp(y) * dy.sum(1, keepdims=True)
    np.testing.assert_allclose(values["x_grad"], wanted, rtol=1e-4, atol=1e-4)


def test_softmax_along_rows_keeps_its_kernel():
    for shape, axis in (("64, 128", -1), ("64, 100, 16", 1), ("N, 4, 64", 1)):
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["": 18]> g (float[{shape}] x) => (float[{shape}] y)
            {{ y = Softmax<axis = {axis}>(x) }}""")
        assert "Softmax" in types(differentiate(model, wrt=["x"], vjp=True))


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


VOLUMES = {
    "sizes": ("int64[5] s = {2, 3, 3, 2, 7}", "x, , , s", ""),
    "scales": ("float[5] s = {1, 1, 0.75, 0.5, 1.4}", "x, , s", ""),
    "axes": ("float[3] s = {0.75, 0.5, 1.4}", "x, , s", ", axes=[2, 3, 4]"),
    "repeated": ("float[5] s = {1, 1, 2, 1, 3}", "x, , s", ""),
}


@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("given", VOLUMES)
def test_nearest_elements_of_volumes(given, batch):
    number, inputs, axes = VOLUMES[given]
    if given in ("sizes", "axes") and batch == "N":
        pytest.skip("the result's shape is not inferred, or the number of images is in it")
    body = (
        f'y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric"{axes}>({inputs})'
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{batch},3,4,4,5] x) => (float[A,B,C,D,E] y) <{number}> {{ {body} }}""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    forms = [n for n in graded.graph.node if n.op_type == "Resize" and n.output[0] != "y"]
    assert any([*a.ints] == [1, 2, 3] for n in forms for a in n.attribute if a.name == "axes")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4, 5)).astype(np.float32)
    x[0, 1, 2, 3], x[1, 0, 0, 0, 0] = np.nan, np.inf
    expected = run(model, x=x)["y"]
    values = run(graded, x=x, y_grad=np.ones_like(expected))
    np.testing.assert_array_equal(values["y"], expected)
    counts = run(graded, x=np.arange(x.size, dtype=np.float32).reshape(x.shape),
                 y_grad=np.ones_like(expected))  # fmt: skip
    wanted = np.bincount(counts["y"].astype(int).ravel(), minlength=x.size)
    np.testing.assert_allclose(counts["x_grad"].ravel(), wanted, atol=1e-6)


@pytest.mark.parametrize("batch", ["5", "N"])
@pytest.mark.parametrize("spatial", [(7,), (6, 5), (4, 3, 5)])
def test_places_within_planes_need_no_second_pool(spatial, batch):
    count, sizes = len(spatial), ", ".join(map(str, spatial))
    kernel, ones, zeros = ([n] * count for n in (2, 1, 0))
    constants = {"b": zeros, "e": ones, "a": range(2, 2 + count)}
    numbers = ", ".join(
        f"int64[{count}] {name} = {{{', '.join(map(str, values))}}}"
        for name, values in constants.items()
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{batch}, 3, {sizes}] x) => (float[{", ".join("ABCDE"[: count + 2])}] y,
            int64[{", ".join("ABCDE"[: count + 2])}] i) <{numbers}>
        {{ y, j = MaxPool<kernel_shape={kernel}, strides={kernel}>(x)
           c, k = MaxPool<kernel_shape={ones}, strides={ones}>(x)
           s = Slice(k, b, e, a) i = Sub(j, s) }}""")
    graded = differentiate(model, wrt=["x"], of="y", vjp=True)
    assert [n.op_type for n in graded.graph.node].count("MaxPool") == 1
    x = np.random.default_rng(0).normal(size=(5, 3, *spatial)).astype(np.float32)
    expected = run(model, x=x)
    values = run(graded, x=x, y_grad=np.ones_like(expected["y"]))
    np.testing.assert_array_equal(values["i"], expected["i"])
    assert expected["i"].max() < np.prod(spatial)


def test_celu_with_another_alpha():
    graded = differentiate(parse("y = Celu <alpha = 2.0> (x)"), wrt=["x"], vjp=True)
    values = run(graded, x=X, y_grad=np.ones_like(X))
    negative = np.minimum(X.astype(np.float64), 0)
    np.testing.assert_allclose(values["x_grad"], np.exp(negative / 2), rtol=1e-5, atol=2e-7)
    np.testing.assert_allclose(
        values["y"], np.maximum(X, 0) + 2 * np.expm1(negative / 2), rtol=2e-6, atol=4e-7
    )


def test_log_of_sigmoid_does_not_underflow():
    model = parse("s = Sigmoid(x) y = Log(s)")
    graded = differentiate(model, wrt=["x"], vjp=True)
    x = np.array([-1e4, -120, -50, -1, 0, 1, 50, 80, np.inf], np.float32)
    values = run(graded, x=x, y_grad=np.ones_like(x))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(values["y"], -np.logaddexp(0, -wide), rtol=1e-6)
    np.testing.assert_allclose(values["x_grad"], sigmoid(-wide), rtol=1e-5, atol=1e-7)


def group_norm(batch: str = "N", *, ones: str = "1, 1", shape: str = "0, 4, 3, 3"):
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{batch}, 4, 3, 3] x, float[4] scale, float[4] bias) => (float[A, 4, 3, 3] y)
        <int64[3] split = {{0, 2, -1}}, float[2] ones = {{{ones}}}, float[2] zeros = {{0, 0}},
         int64[4] whole = {{{shape}}}, int64[2] axes = {{1, 2}}>
        {{ r = Reshape(x, split) i = InstanceNormalization(r, ones, zeros) b = Reshape(i, whole)
           s = Unsqueeze(scale, axes) t = CastLike(s, b) m = Mul(b, t)
           u = Unsqueeze(bias, axes) v = CastLike(u, m) y = Add(m, v) }}""")


@pytest.mark.parametrize("mean", [0, 300])
@pytest.mark.parametrize("batch", ["N", "5"])
def test_group_norm_computes_its_statistics_once(batch, mean):
    torch = pytest.importorskip("torch")
    graded = differentiate(group_norm(batch), wrt=["x", "scale", "bias"], vjp=True)
    assert "InstanceNormalization" not in types(graded)
    assert sum(n.op_type == "ReduceMean" for n in graded.graph.node) == 2
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 5, 4, 3, 3)).astype(np.float32)
    x += np.float32(mean)
    scale, bias = rng.normal(size=(2, 4)).astype(np.float32)
    values = run(graded, x=x, scale=scale, bias=bias, y_grad=dy)
    wide = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (x, scale, bias)]
    y = torch.nn.functional.group_norm(wide[0], 2, *wide[1:])
    y.backward(torch.tensor(dy))
    wanted = {"y": y.detach(), **dict(zip(("x_grad", "scale_grad", "bias_grad"), wide))}
    for name, value in wanted.items():
        exact = value if name == "y" else value.grad
        np.testing.assert_allclose(values[name], exact, rtol=1e-4, atol=2e-4 if mean else 1e-5)


def test_group_norms_of_another_shape_are_left_alone():
    for model in (group_norm(ones="1, 2"), group_norm(batch="6", shape="3, 4, 6, 3")):
        graded = differentiate(model, wrt=["x", "scale", "bias"], vjp=True)
        assert "InstanceNormalization" in types(graded)
    named = differentiate(group_norm(), wrt=["x", "m"], vjp=True)
    assert "InstanceNormalization" in types(named)


def test_prelu_without_its_kernel():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        "g (float[2, 3, 4] x, float[3, 1] slope) => (float[2, 3, 4] y) { y = PRelu(x, slope) }"
    )
    graded = differentiate(model, wrt=["x", "slope"], vjp=True)
    assert "PRelu" not in types(graded)
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2))
    x[0, 0, 0] = 0
    slope = np.array([[0.25], [-0.5], [2.0]], np.float32)
    values = run(graded, x=x, slope=slope, y_grad=dy)
    np.testing.assert_allclose(values["y"], np.where(x > 0, x, slope * x), rtol=1e-6)
    np.testing.assert_allclose(values["x_grad"], np.where(x > 0, dy, slope * dy), rtol=1e-6)
    expected = (dy * np.minimum(x, 0)).sum((0, 2))[:, None]
    np.testing.assert_allclose(values["slope_grad"], expected, rtol=1e-5)


GELU = "k = Constant <value_float = 0.79788456> () a = Constant <value_float = 0.044715> ()"
CUBE = "three = Constant <value_float = 3.0> () c = Pow(x, three)"
TANH_GELU = {
    "half first": f"{GELU} {CUBE} d = Mul(a, c) e = Add(x, d) u = Mul(k, e) t = Tanh(u)"
    " s = Add(t, one) h = Mul(half, x) y = Mul(h, s)",
    "half last": f"{GELU} {CUBE} d = Mul(c, a) e = Add(d, x) u = Mul(e, k) t = Tanh(u)"
    " s = Add(one, t) h = Mul(x, s) y = Mul(h, half)",
    "half in between": f"{GELU} q = Mul(x, x) d = Mul(q, a) f = Add(d, one) e = Mul(x, k)"
    " u = Mul(e, f) t = Tanh(u) s = Add(t, one) h = Mul(s, half) y = Mul(x, h)",
}
NOT_GELU = {
    "another factor": TANH_GELU["half first"].replace("0.044715", "0.05"),
    "another x": TANH_GELU["half first"].replace("h = Mul(half, x)", "h = Mul(half, u)"),
    "twice": TANH_GELU["half last"].replace("y = Mul(h, half)", "y = Mul(h, two)"),
}


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("name", [*TANH_GELU, *NOT_GELU])
def test_gelu_by_tanh(name, opset):
    model = parse({**TANH_GELU, **NOT_GELU}[name])
    model.opset_import[0].version = opset
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert ("Tanh" in types(graded)) == (name in NOT_GELU)
    x = np.linspace(-6, 6, 41, dtype=np.float32)
    values, step = run(graded, x=x, y_grad=np.ones_like(x)), np.float32(1e-2)
    np.testing.assert_allclose(values["y"], run(model, x=x)["y"], rtol=1e-5, atol=1e-6)
    around = [run(model, x=x + s)["y"] for s in (step, -step)]
    slope = (around[0] - around[1]) / (2 * step)
    np.testing.assert_allclose(values["x_grad"], slope, atol=3e-3)


def test_an_infinite_gradient_from_outside_is_dropped_where_nothing_passes():
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2, 2] x, float[2, 2] w, float[2, 2] v) => (float[2, 2] y)
        { p = MatMul(v, w) r = Relu(x) y = Mul(r, p) }""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    x = np.array([[-1, 2], [3, -4]], np.float32)
    seed = np.array([[np.inf, 1], [1, np.nan]], np.float32)
    one = np.eye(2, dtype=np.float32) + 1
    values = run(graded, x=x, w=one, v=one, y_grad=seed)
    np.testing.assert_allclose(values["x_grad"], np.where(x > 0, one @ one, 0))


@pytest.mark.parametrize("name", ["Relu", "HardSigmoid", "HardSwish"])
@pytest.mark.parametrize("worst", [np.inf, np.nan])
def test_masks_drop_an_infinity_that_nobody_asked_for(name, worst):
    graded = differentiate(parse(f"y = {name}(x)", size="64"), wrt=["x"], vjp=True)
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=64, scale=4).astype(np.float32) for _ in range(2))
    expected = run(graded, x=x, y_grad=dy)["x_grad"]
    dy[x < -3] = worst
    assert (x < -3).any()
    np.testing.assert_array_equal(run(graded, x=x, y_grad=dy)["x_grad"], expected)


@pytest.mark.parametrize("name", ["Relu", "HardSigmoid", "HardSwish"])
def test_masks_have_second_derivatives(name):
    once = differentiate(parse(f"h = {name}(x) y = Mul(h, h)", size="64"), wrt=["x"], vjp=True)
    rng = np.random.default_rng(0)
    x, dy, v = (rng.normal(size=64, scale=2).astype(np.float32) for _ in range(3))
    twice = differentiate(once, wrt=["x", "y_grad"], of=["x_grad"], vjp=True)
    found = run(twice, x=x, y_grad=dy, x_grad_grad=v)
    slope = run(once, x=x, y_grad=np.ones_like(x))["x_grad"]
    np.testing.assert_allclose(found["y_grad_grad"], v * slope, rtol=1e-5, atol=1e-6)
    step = np.float32(1e-3)
    around = [run(once, x=x + s, y_grad=dy)["x_grad"] for s in (step, -step)]
    smooth = (np.abs(np.abs(x) - 3) > 0.01) & (np.abs(x) > 0.01) & (np.abs(np.abs(x) - 2.5) > 0.01)
    expected = v * (around[0] - around[1]) / (2 * step)
    np.testing.assert_allclose(found["x_grad_1"][smooth], expected[smooth], rtol=1e-2, atol=2e-2)


def test_masks_behind_products_need_no_where():
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2, 3] x, float[3, 3] w, float[3, 3] v, float[3] gain) => (float[2, 3] y)
        { a = MatMul(x, w) r = Relu(a) b = Mul(r, gain) c = Add(b, x) h = HardSigmoid(c)
          s = LeakyRelu(h) y = MatMul(s, v) }""")
    graded = differentiate(model, wrt=["w", "gain"], vjp=True)
    assert "Where" not in types(graded)


def test_a_value_that_is_asked_for_stays():
    model = parse("b = Mul(x, one) t = Softplus(b) y = Mul(t, two)")
    graded = differentiate(model, wrt=["x", "b", "t"], vjp=True)
    values = run(graded, x=X[:4], y_grad=np.ones(4, np.float32))
    np.testing.assert_allclose(values["t_grad"], np.full(4, 2.0))
    np.testing.assert_allclose(values["b_grad"], values["x_grad"])


def test_softplus_of_a_very_negative_number_is_not_zero():
    graded = differentiate(parse("y = Softplus(x)"), wrt=["x"], vjp=True)
    assert "Softplus" not in types(graded)
    x = np.array([-np.inf, -80, -30, -17, -12, -1, 0, 3, 90, np.inf], np.float32)
    values = run(graded, x=x, y_grad=np.ones(10, np.float32))
    exact = np.logaddexp(0, x.astype(np.float64))
    np.testing.assert_allclose(values["y"], exact, rtol=1e-6)


def test_the_logarithm_of_softplus_has_seven_digits():
    graded = differentiate(parse("y = Softplus(x)"), wrt=["x"], vjp=True)
    x = -np.geomspace(1e-6, 80, 20_001, dtype=np.float32)
    values = run(graded, x=x, y_grad=np.ones_like(x))
    np.testing.assert_allclose(values["y"], np.logaddexp(0, x.astype(np.float64)), rtol=6e-7)


def test_other_types_are_left_alone():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (double[N] x) => (double[N] y)'
        "{ y = Softplus(x) }"
    )
    assert "Softplus" in types(differentiate(model, wrt=["x"], vjp=True))


@pytest.mark.parametrize(
    ("a", "b", "product"),
    [
        ((7,), (7,), "Gemm"), ((3, 7), (7,), "MatMul"), ((2, 3, 7), (7,), "MatMul"),
        ((0, 7), (7,), "MatMul"), ((1,), (1,), "Gemm"),
    ],
)  # fmt: skip
def test_products_with_a_vector_are_those_of_matrices(
    a: tuple[int, ...], b: tuple[int, ...], product: str
) -> None:
    axes = ", ".join("MNK"[3 - len(a) :])
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{axes}] a, float[K] b) => (float[{axes.rpartition(", ")[0]}] y)
        {{ y = MatMul (a, b) }}""")
    graded = differentiate(model, wrt=["a", "b"], vjp=True)
    nodes = {n.output[0]: n for n in graded.graph.node}
    assert nodes[nodes["y"].input[0]].op_type == product
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    dy = rng.standard_normal(a[:-1]).astype(np.float32)
    found = run(graded, a=left, b=right, y_grad=dy)
    np.testing.assert_allclose(found["y"], left @ right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["a_grad"], dy[..., None] * right, rtol=1e-5, atol=1e-6)
    expected = np.tensordot(dy, left, (range(dy.ndim), range(dy.ndim)))
    np.testing.assert_allclose(found["b_grad"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [2, 3, 6, -1, 0, 2**24 + 1])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integral_powers(exponent, kind):
    """A float exponent where there is one that is equal, for numbers of either sign."""
    body = f"p = Constant<value = {kind} {{{exponent}}}> () y = Pow(x, p)"
    model = parse(body)
    graded = differentiate(model, wrt=["x"], vjp=True)
    exponents = {i.name: i.data_type for i in graded.graph.initializer}
    powers = [n for n in graded.graph.node if n.op_type == "Pow" and n.output[0] == "y"]
    for node in powers:
        is_float = exponents[node.input[1]] == onnx.TensorProto.FLOAT
        assert is_float == (abs(exponent) <= 2**24)
    x = np.array([*X, np.nan], np.float32)
    with np.errstate(all="ignore"):
        values = run(graded, x=x, y_grad=np.ones_like(x))
        np.testing.assert_allclose(values["y"], run(model, x=x)["y"], rtol=2e-7)
        if abs(exponent) < 10:
            x64 = x.astype(np.float64)
            slope = (exponent * x64 ** (exponent - 1)).astype(np.float32)
            inside = np.isfinite(slope) & (np.abs(x64) < 1e3) & (x != 0)
            np.testing.assert_allclose(
                values["x_grad"][inside], slope[inside], rtol=1e-6, atol=1e-38
            )


WHOLE = [("0", "9", "0", 0), ("0", "9223372036854775807", "1", 0), ("0", "8", "0", 1),
         ("1", "9", "0", 1), ("0", "9", "1", 1), ("0", "-1", "0", 1)]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "axis", "slices"), WHOLE)
def test_a_slice_of_everything_is_no_node(start, end, axis, slices):
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]> g (float[9, n] x) => (float[a, b] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{{axis}}}>
        {{ s = Slice(x, start, end, axis) y = Exp(s) }}""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert [n.op_type for n in graded.graph.node].count("Slice") == slices
    x = np.random.default_rng(0).standard_normal((9, 12)).astype(np.float32)
    whole = slice(int(start), min(int(end), 12))
    expected = np.exp(x[:, whole] if axis == "1" else x[whole])
    np.testing.assert_allclose(run(model, x=x)["y"], expected, rtol=1e-6)
    got = run(graded, x=x, y_grad=np.ones_like(expected))
    np.testing.assert_allclose(got["y"], expected, rtol=1e-6)
    assert got["x_grad"].sum() == pytest.approx(expected.sum(), rel=1e-5)


@pytest.mark.parametrize(("index", "factor"), [(0, 1), (1, 2), (-1, 3), (-3, 1)])
def test_elements_of_a_sequence_that_was_just_made(index: int, factor: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[N] x) => (float[N] y)
        <float two = {{2.0}}, float three = {{3.0}}, int64 index = {{{index}}}>
        {{ a = Mul(x, two) b = Mul(x, three) s = SequenceConstruct(x, a, b)
           c = SequenceAt(s, index) y = Exp(c) }}""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert not any("Sequence" in kind for kind in types(graded))
    x = np.array([0.5, -1.0], np.float32)
    results = run(graded, x=x, y_grad=np.ones_like(x))
    np.testing.assert_allclose(results["y"], np.exp(factor * x), rtol=1e-6)
    np.testing.assert_allclose(results["x_grad"], factor * np.exp(factor * x), rtol=1e-6)


def test_an_element_that_a_sequence_does_not_have_stays_an_error() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[N] x) => (float[N] y) <int64 index = {2}>
        { s = SequenceConstruct(x, x) c = SequenceAt(s, index) y = Exp(c) }""")
    graded = differentiate(model, wrt=["x"], vjp=True)
    with pytest.raises(Exception, match=r"[Ii]nvalid sequence index"):
        run(graded, x=np.ones(2, np.float32), y_grad=np.ones(2, np.float32))
