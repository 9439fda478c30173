"""Straight-through gradients of quantize–dequantize pairs, against PyTorch's fake quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

from .harness import run_ort

RNG = np.random.default_rng(0)
DATA = RNG.uniform(-3, 3, (3, 5, 4)).astype(np.float32)
WEIGHTS = RNG.uniform(-1, 1, DATA.shape).astype(np.float32)
SCALES = np.array([0.01, 0.02, 0.005, 0.1, 0.03], np.float32)


def gradient(
    scale: Any,
    zero: Any,
    *,
    between: tuple[str, dict[str, Any]] | None = None,
    opset: int = 21,
    dynamic: bool = False,
    data: np.ndarray = DATA,
    weights: np.ndarray = WEIGHTS,
    wrt: str = "x",
    **attributes: Any,
) -> np.ndarray:
    """Gradient of ``sum(weights * DequantizeLinear(QuantizeLinear(x)))``, run by onnxruntime."""
    inits = [
        numpy_helper.from_array(np.asarray(scale, np.float32), "scale"),
        numpy_helper.from_array(np.asarray(zero), "zero"),
        numpy_helper.from_array(weights, "r"),
    ]
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **attributes)]
    code = "q"
    if between is not None:
        nodes.append(helper.make_node(between[0], ["q"], ["moved"], **between[1]))
        code = "moved"
    nodes += [
        helper.make_node("DequantizeLinear", [code, "scale", "zero"], ["y"], **attributes),
        helper.make_node("Mul", ["y", "r"], ["p"]),
        helper.make_node("ReduceSum", ["p"], ["loss"], keepdims=0),
    ]
    shape = [f"d{i}" for i in range(data.ndim)] if dynamic else data.shape
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        inits,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    result = onnxtrain.differentiate(model, wrt=[wrt], of="loss")
    onnx.checker.check_model(result, full_check=True)
    return run_ort(result, {"x": data})[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("scale", "zero", "low", "high"),
    [
        (0.01, np.int8(0), -128, 127),
        (0.02, np.uint8(100), 0, 255),
        (5e-5, np.int16(5), -32768, 32767),
    ],
)
def test_per_tensor(scale: float, zero: Any, low: int, high: int, dynamic: bool) -> None:
    x = torch.tensor(DATA, requires_grad=True)
    y = torch.fake_quantize_per_tensor_affine(x, scale, int(zero), low, high)
    (y * torch.tensor(WEIGHTS)).sum().backward()
    assert 0 < np.count_nonzero(x.grad) < DATA.size, "some values must be clipped, some not"
    np.testing.assert_allclose(gradient(scale, zero, dynamic=dynamic), x.grad, rtol=1e-5)


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_per_axis(axis: int, dynamic: bool) -> None:
    zero = np.array([0, 1, -5, 3, 100], np.int8)
    x = torch.tensor(DATA, requires_grad=True)
    y = torch.fake_quantize_per_channel_affine(
        x, torch.tensor(SCALES), torch.tensor(zero.astype(np.int32)), 1, -128, 127
    )
    (y * torch.tensor(WEIGHTS)).sum().backward()
    assert 0 < np.count_nonzero(x.grad) < DATA.size
    got = gradient(SCALES, zero, axis=axis, dynamic=dynamic)
    np.testing.assert_allclose(got, x.grad, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_per_block(dynamic: bool) -> None:
    data, weights = DATA.reshape(6, 10), WEIGHTS.reshape(6, 10)
    scale = RNG.uniform(0.005, 0.03, (6, 4)).astype(np.float32)
    zero = RNG.integers(-5, 5, (6, 4)).astype(np.int8)
    wide = np.repeat(scale, 3, axis=1)[:, :10]
    code = np.round(data / wide) + np.repeat(zero, 3, axis=1)[:, :10]
    expected = np.where((code >= -128) & (code <= 127), weights, 0)
    assert 0 < np.count_nonzero(expected) < data.size
    got = gradient(scale, zero, axis=1, block_size=3, data=data, weights=weights, dynamic=dynamic)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("scale", "zero", "low", "high"),
    [
        (0.01, np.int8(0), -128, 127),
        (0.02, np.uint8(100), 0, 255),
        ([0.015], np.int8([3]), -128, 127),
    ],
)
def test_scale_per_tensor(scale: Any, zero: Any, low: int, high: int, dynamic: bool) -> None:
    """A learned step size: what rounding has added inside the range, the bound outside of it."""
    steps = torch.tensor(np.atleast_1d(scale).astype(np.float32), requires_grad=True)
    points = torch.tensor(np.atleast_1d(zero).astype(np.float32))
    y = torch._fake_quantize_learnable_per_tensor_affine(
        torch.tensor(DATA, requires_grad=True), steps, points, low, high, 1.0
    )
    (y * torch.tensor(WEIGHTS)).sum().backward()
    got = gradient(scale, zero, dynamic=dynamic, wrt="scale")
    assert got.shape == np.shape(scale)
    np.testing.assert_allclose(got.reshape(1), steps.grad, rtol=1e-4)


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_scale_per_axis(axis: int, dynamic: bool) -> None:
    zero = np.array([0, 1, -5, 3, 100], np.int8)
    steps = torch.tensor(SCALES, requires_grad=True)
    y = torch._fake_quantize_learnable_per_channel_affine(
        torch.tensor(DATA, requires_grad=True), steps, torch.tensor(zero.astype(np.float32)), 1,
        -128, 127, 1.0,
    )  # fmt: skip
    (y * torch.tensor(WEIGHTS)).sum().backward()
    got = gradient(SCALES, zero, axis=axis, dynamic=dynamic, wrt="scale")
    np.testing.assert_allclose(got, steps.grad, rtol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_scale_per_block(dynamic: bool) -> None:
    data, weights = DATA.reshape(6, 10), WEIGHTS.reshape(6, 10)
    scale = RNG.uniform(0.005, 0.03, (6, 4)).astype(np.float32)
    zero = RNG.integers(-5, 5, (6, 4)).astype(np.int8)
    wide, shift = (np.repeat(p, 3, axis=1)[:, :10] for p in (scale, zero))
    code = np.round(data / wide) + shift
    inside = (code >= -128) & (code <= 127)
    each = weights * (np.clip(code, -128, 127) - shift - np.where(inside, data / wide, 0))
    expected = np.add.reduceat(each, [0, 3, 6, 9], axis=1)
    got = gradient(
        scale, zero, axis=1, block_size=3, data=data, weights=weights, dynamic=dynamic, wrt="scale"
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_scales_of_frozen_integer_weights() -> None:
    """Weights stored as integers: their scale alone has a gradient, if it is asked for."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 21]>
        g (float[N, 3] x) => (float loss)
        <int8[3, 2] q = {1, -2, 3, 4, -5, 6}, float[2] s = {0.1, 0.2}, int8[2] z = {0, 1}> {
            w = DequantizeLinear<axis = 1>(q, s, z) y = MatMul(x, w) t = Mul(y, y)
            loss = ReduceSum<keepdims = 0>(t)
        }
    """)
    onnxtrain.check_gradient(model, wrt=["s", "x"]).raise_if_wrong()


def test_scales_and_class_weights_are_trained_when_named_only() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[N, 3] x, int64[N] t) => (float loss)
        <float[3, 2] w = {1, -2, 3, 4, -5, 6}, float s = {0.1}, int8 z = {0}, float[2] c = {1, 2}> {
            q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d)
            loss = SoftmaxCrossEntropyLoss(y, t, c)
        }
    """)
    found = [o.name for o in onnxtrain.differentiate(model).graph.output]
    assert found == ["loss", "w_grad"]
    named = onnxtrain.differentiate(model, wrt=["s", "c"]).graph.output
    assert [o.name for o in named] == ["loss", "s_grad", "c_grad"]


def test_data_may_move_in_between() -> None:
    got = gradient(0.01, np.int8(0), between=("Transpose", {"perm": [0, 1, 2]}))
    # one by one the gradient is multiplied by the scale and divided by it
    np.testing.assert_allclose(got, gradient(0.01, np.int8(0)), rtol=1e-6)


def test_dynamic_quantization_clips_nothing() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, float[N, 4] r) => (float loss) {
            q, s, z = DynamicQuantizeLinear(x)
            y = DequantizeLinear(q, s, z)
            p = Mul(y, r)
            loss = ReduceSum <keepdims=0> (p)
        }
    """)
    result = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    x, r = DATA[0, :, :], WEIGHTS[0, :, :]
    np.testing.assert_allclose(run_ort(result, {"x": x, "r": r})[1], r, rtol=1e-5)


def test_codes_that_are_cast_to_floats_pass_the_gradient() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N] x) => (float loss) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)
            y = Cast <to=1> (q)
            loss = ReduceSum <keepdims=0> (y)
        }
    """)
    result = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    x = np.array([0.3, -20.0], np.float32)
    np.testing.assert_allclose(run_ort(result, {"x": x})[1], [10.0, 0.0], rtol=1e-5)


def test_integers_elsewhere_stop_the_gradient() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N] x) => (float loss) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)
            i = Cast <to=7> (q)
            y = Cast <to=1> (i)
            loss = ReduceSum <keepdims=0> (y)
        }
    """)
    with pytest.raises(onnxtrain.errors.UnreachableError):
        onnxtrain.differentiate(model, wrt=["x"], of="loss")
