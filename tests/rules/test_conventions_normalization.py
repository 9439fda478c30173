"""Normalization, losses and Dropout against PyTorch, in the places where they are delicate."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.evaluate import evaluator
from onnxtrain.graph.retype import to_float64

from .conventions import INF, f32, gradients, torch_gradients
from .harness import run_ort


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


def test_batch_statistics_of_large_half_precision_maps() -> None:
    """The sum of 80,000 ones is more than a float16 can hold; their mean is not."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float16[N, 2, 200, 200] x, float16[2] s, float16[2] b, float16[2] m, float16[2] v)
          => (float16[N, 2, 200, 200] y, float16[2] m2, float16[2] v2) {
            y, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v)
        }"""
    )
    result = onnxtrain.differentiate(model, wrt=["x", "s"], of=["y"], vjp=True)
    x = 1 + np.random.default_rng(7).normal(size=(2, 2, 200, 200)).astype(np.float16)
    ones, seed = np.ones(2, np.float16), (x * 1e-3).astype(np.float16)
    feeds = {"x": x, "s": ones, "b": ones, "m": ones, "v": ones, "y_grad": seed}
    y, mean, variance, dx, ds = run_ort(result, feeds)
    want = torch_gradients(
        lambda x, s: F.batch_norm(x, None, None, s, None, True),
        x.astype(np.float32), f32(1, 1), seed=seed.astype(np.float32),
    )  # fmt: skip
    np.testing.assert_allclose([mean, variance], np.ones((2, 2)), atol=0.02)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(dx, want[0], atol=1e-4)
    np.testing.assert_allclose(ds, want[1], rtol=0.02)


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


@pytest.mark.parametrize("spread", [1e-9, 1e-3, 0.5])
def test_of_two_numbers_only_the_epsilon_of_mean_variance_normalization_is_left(
    spread: float,
) -> None:
    """y = ±d/(d + ε) with d half of what is between them: its slope is ε/(d + ε)²."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1, 2] x) => (float[1, 2] y)
              { y = MeanVarianceNormalization<axes = [1]>(x) }"""
    gradient = onnxtrain.differentiate(onnx.parser.parse_model(text), wrt=["x"], vjp=True)
    exact = evaluator(to_proto(to_float64(load(gradient))))
    feeds = {"x": np.array([[spread, -spread]]), "y_grad": np.array([[1.0, 0.0]])}
    _, dx = exact.run(None, feeds)
    slope = 0.5e-9 / (spread + 1e-9) ** 2
    np.testing.assert_allclose(dx, [[slope, -slope]], rtol=1e-6)


@pytest.mark.parametrize("operator", ["InstanceNormalization", "GroupNormalization<num_groups=1>"])
def test_nothing_is_left_of_a_shift_in_front_of_a_normalization(operator: str) -> None:
    """Of three elements, of which a third is no number of single precision."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 1, 3] x, float[1] shift, float[1] w, float[1] b) => (float[2, 1, 3] y)
        {{ moved = Add(x, shift)  y = {operator}(moved, w, b) }}"""
    gradient = onnxtrain.differentiate(onnx.parser.parse_model(text), wrt=["shift"], vjp=True)
    rng = np.random.default_rng(0)
    exact = evaluator(to_proto(to_float64(load(gradient))))
    feeds = {"x": rng.normal(size=(2, 1, 3)), "y_grad": rng.normal(size=(2, 1, 3))}
    _, d_shift = exact.run(None, {**feeds, "shift": f64(0.5), "w": f64(2.0), "b": f64(0.1)})
    np.testing.assert_allclose(d_shift, [0.0], atol=1e-13)


def f64(number: float) -> np.ndarray[Any, Any]:
    return np.array([number])
