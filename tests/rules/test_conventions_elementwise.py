"""PyTorch's conventions at ties, kinks and delicate points, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

import onnxtrain

from .harness import run_ort, run_reference

INF = float("inf")


def gradients(
    op: str,
    *inputs: np.ndarray | None,
    opset: int = 18,
    wrt: list[int] | None = None,
    constants: tuple[int, ...] = (),
    seed: np.ndarray | None = None,
    dynamic: bool = False,
    **attrs: Any,
) -> list[np.ndarray]:
    """Gradients of one operator on onnxruntime, given the gradient `seed` of its output."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = {n: np.asarray(a) for n, a in zip(names, inputs) if a is not None}
    stored = {f"x{i}" for i in constants}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="node", **attrs)],
        "g",
        [
            helper.make_tensor_value_info(
                n,
                helper.np_dtype_to_tensor_dtype(a.dtype),
                [f"{n}_{i}" for i in range(a.ndim)] if dynamic else a.shape,
            )
            for n, a in given.items()
            if n not in stored
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(given[n], n) for n in sorted(stored)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    targets = [f"x{i}" for i in (range(1) if wrt is None else wrt)]
    result = onnxtrain.differentiate(model, wrt=targets, of=["y"], vjp=True)
    feeds = {n: a for n, a in given.items() if n not in stored}
    shape = run_ort(model, feeds)[0].shape
    feeds["y_grad"] = np.ones(shape, np.float32) if seed is None else seed
    return run_ort(result, feeds)[1:]


def torch_gradients(function: Any, *inputs: np.ndarray, seed: np.ndarray | None = None) -> list:
    tensors = [torch.tensor(a, requires_grad=True) for a in inputs]
    y = function(*tensors)
    y.backward(torch.ones_like(y) if seed is None else torch.tensor(seed))
    return [t.grad.numpy() for t in tensors]


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


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


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_equal_operands_share(op: str) -> None:
    a, b = f32(1, 2, 3, INF, -INF), f32(1, 3, 2, INF, -INF)
    function = torch.maximum if op == "Max" else torch.minimum
    for got, want in zip(gradients(op, a, b, wrt=[0, 1]), torch_gradients(function, a, b)):
        np.testing.assert_array_equal(got, want)
    thirds = gradients(op, a, a, a, wrt=[0, 1, 2])
    np.testing.assert_allclose(thirds, np.full((3, 5), 1 / 3), rtol=1e-6)


def test_clip_passes_at_the_bounds() -> None:
    x, low, high = f32(-2, -1, 0, 1, 2), f32(-1)[0], f32(1)[0]
    got = gradients("Clip", x, low, high, wrt=[0, 1, 2])
    for g, want in zip(got, torch_gradients(torch.clamp, x, low, high)):
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


# --- normalization and losses ------------------------------------------------------------------


def _group_norm(groups: int, per_group: bool) -> Any:
    def function(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        repeat = x.shape[1] // scale.shape[0] if per_group else 1
        scale, bias = (t.repeat_interleave(repeat) for t in (scale, bias))
        return F.group_norm(x, groups, scale, bias)

    return function


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("dynamic", [False, True])
def test_group_normalization_of_both_opsets(opset: int, dynamic: bool) -> None:
    rng = np.random.default_rng(0)
    per = 2 if opset == 18 else 6
    args = [rng.normal(size=s).astype(np.float32) for s in [(3, 6, 4, 2), (per,), (per,)]]
    seed = rng.normal(size=(3, 6, 4, 2)).astype(np.float32)
    got = gradients(
        "GroupNormalization", *args, opset=opset, wrt=[0, 1, 2], num_groups=2, seed=seed,
        dynamic=dynamic,
    )  # fmt: skip
    want = torch_gradients(_group_norm(2, opset == 18), *args, seed=seed)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_normalizations_equal_torch(offset: float) -> None:
    """Also with a mean far from zero, where E[x²] - E[x]² would lose all digits."""
    rng = np.random.default_rng(1)
    x, seed = (rng.normal(size=(4, 6, 5, 3)).astype(np.float32) for _ in range(2))
    x += np.float32(offset)
    w, b = (rng.normal(size=6).astype(np.float32) for _ in range(2))
    zeros, ones = np.zeros(6, np.float32), np.ones(6, np.float32)
    checks = [
        (
            _batch_norm_gradients(x, w, b, zeros, ones, seed),
            torch_gradients(
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, w, b, seed=seed
            ),
        ),
        (
            gradients("InstanceNormalization", x, w, b, wrt=[0, 1, 2], seed=seed),
            torch_gradients(
                lambda x, w, b: F.instance_norm(x, None, None, w, b), x, w, b, seed=seed
            ),
        ),
        (
            gradients("LayerNormalization", x, w[:3], b[:3], wrt=[0, 1, 2], seed=seed),
            torch_gradients(lambda x, w, b: F.layer_norm(x, [3], w, b), x, w[:3], b[:3], seed=seed),
        ),
    ]
    for got, want in checks:
        for g, t in zip(got, want):
            np.testing.assert_allclose(g, t, rtol=2e-3, atol=2e-3 if offset else 1e-4)


def _batch_norm_gradients(*args: np.ndarray) -> list[np.ndarray]:
    """With all three outputs in use, as exporters write it."""
    *inputs, seed = args
    names = ["x", "scale", "bias", "mean", "variance"]
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node(
                    "BatchNormalization", names, ["y", "mean2", "variance2"], training_mode=1
                )
            ],
            "g",
            [helper.make_tensor_value_info(n, 1, a.shape) for n, a in zip(names, inputs)],
            [onnx.ValueInfoProto(name=n) for n in ("y", "mean2", "variance2")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    result = onnxtrain.differentiate(model, wrt=names[:3], of=["y"], vjp=True)
    feeds = dict(zip(names, inputs))
    got = run_ort(result, {**feeds, "y_grad": seed})
    for ours, kernel in zip(got, run_ort(model, feeds)):  # running statistics as the kernel's
        np.testing.assert_allclose(ours, kernel, rtol=1e-3, atol=1e-3)
    return got[3:]


def test_operators_rewritten_in_a_row() -> None:
    """Rules that rewrite their forward node do not read what later layers' gradients share."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, float[4] s, float[4] b, float[4] m, float[4] v, int64[N] t)
          => (float loss) {
            h = Add(x, b)
            n1, m1, v1 = BatchNormalization <training_mode = 1> (h, s, b, m, v)
            h1 = Add(n1, b)
            n2, m2, v2 = BatchNormalization <training_mode = 1> (h1, s, b, m, v)
            h2 = Add(n2, b)
            loss = SoftmaxCrossEntropyLoss(h2, t)
        }"""
    )
    result = onnxtrain.differentiate(model, wrt=["x", "s", "b"])
    onnx.checker.check_model(result, full_check=True)
    rng = np.random.default_rng(6)
    x, t = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    s, b = f32(1, 2, 0.5, -1), f32(0.1, 0.2, 0.3, 0.4)

    def function(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = F.batch_norm(x + b, None, None, s, b, True)
        return F.cross_entropy(x + b, torch.tensor(t))

    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    got = run_ort(result, {"x": x, "s": s, "b": b, "m": zeros, "v": ones, "t": t})[1:]
    for g, want in zip(got, torch_gradients(function, x, s, b)):
        np.testing.assert_allclose(g, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("target", [[0, -100, 2], [-100, -100, -100]])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_with_ignored_targets(
    op: str, reduction: str, target: list[int], weighted: bool
) -> None:
    """All targets ignored: the mean is 0/0, and its gradient 0 as in torch."""
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(3, 4)).astype(np.float32), f32(1, 2, 0.5, 3)
    function = F.cross_entropy if op.startswith("Softmax") else F.nll_loss
    extra = [weight] if weighted else []
    got = gradients(
        op, x, np.array(target), *extra, reduction=reduction, ignore_index=-100, dynamic=True
    )[0]
    want = torch_gradients(
        lambda t: function(
            t, torch.tensor(target), torch.tensor(weight) if weighted else None,
            reduction=reduction,
        ),
        x,
    )[0]  # fmt: skip
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_impossible_classes() -> None:
    """Scores of -inf (masked classes) and far apart ones give no NaN."""
    x = f32([-INF, 0, 1], [0, 500, -500])
    target = np.array([1, 2])
    got = gradients("SoftmaxCrossEntropyLoss", x, target)[0]
    want = torch_gradients(lambda t: F.cross_entropy(t, torch.tensor(target)), x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_log_softmax_behind_a_picked_label() -> None:
    """The gradient of a picked log-probability is sparse; LogSoftmax then takes a shorter way."""
    rng = np.random.default_rng(3)
    for shape in [(4, 5), (2, 5, 3)]:
        target = rng.integers(0, 5, (shape[0], *shape[2:]))
        x = rng.normal(size=shape).astype(np.float32)
        model = helper.make_model(
            helper.make_graph(
                [
                    helper.make_node("LogSoftmax", ["x"], ["p"], axis=1),
                    helper.make_node("NegativeLogLikelihoodLoss", ["p", "t"], ["loss"]),
                ],
                "g",
                [
                    helper.make_tensor_value_info("x", 1, ["N", *shape[1:]]),
                    helper.make_tensor_value_info("t", 7, ["N", *shape[2:]]),
                ],
                [helper.make_tensor_value_info("loss", 1, [])],
            ),
            opset_imports=[helper.make_opsetid("", 18)],
            ir_version=10,
        )
        result = onnxtrain.differentiate(model, wrt=["x"])
        want = torch_gradients(lambda t: F.cross_entropy(t, torch.tensor(target)), x)[0]  # noqa: B023
        np.testing.assert_allclose(run_ort(result, {"x": x, "t": target})[1], want, atol=1e-6)
        operators = [n.op_type for n in result.graph.node]
        assert not {"ReduceSum", "ConstantOfShape"} & set(operators)


def test_zero_vector_has_no_direction() -> None:
    x = f32([0, 0], [3, 4])
    for p in (1, 2):
        got = gradients("LpNormalization", x, p=p, axis=1)[0]
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got[0], [0, 0])


# --- random ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 0.0, 0.999])
@pytest.mark.parametrize("stored", [True, False])
def test_dropout_gives_back_what_it_kept(ratio: float, stored: bool) -> None:
    """Linear in its input, so the gradient times the input is the output, mask and all."""
    x = np.random.default_rng(4).normal(size=(50, 20)).astype(np.float32)
    args = [x, np.array(ratio, np.float32), np.array(True)]
    graph = helper.make_graph(
        [helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 20])],
        [helper.make_tensor_value_info("y", 1, ["N", 20])],
    )
    feeds = {"x": x, "y_grad": np.ones_like(x)}
    for name, value in zip(["ratio", "training"], args[1:]):
        if stored:
            graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(helper.make_tensor_value_info(name, kind, []))
            feeds[name] = value
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    y, dx = run_ort(onnxtrain.differentiate(model, wrt=["x"], of=["y"], vjp=True), feeds)
    np.testing.assert_allclose(dx * x, y, rtol=1e-5)
    assert abs((dx == 0).mean() - ratio) < 0.1
