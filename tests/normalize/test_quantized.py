"""Integer operators: their lowering against onnxruntime, their gradients against floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

from .compare import normalized, run_ort

RNG = np.random.default_rng(3)
MS = "com.microsoft"
STEP = 0.02


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def codes(*shape: int) -> np.ndarray:
    return RNG.integers(-60, 60, shape).astype(np.int8)


def model_of(
    nodes: list[onnx.NodeProto], x: np.ndarray, constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def surrounded(op: str, x: np.ndarray, inputs: list[str], constants: Any, **attrs: Any) -> Any:
    """A float input, rounded to integers for one operator on integers, and floats again."""
    domain = attrs.pop("domain", MS)
    scales = {"s": np.float32(STEP), "z": np.int8(3), "t": np.float32(0.03), "u": np.int8(-2)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node(op, inputs, ["r"], domain=domain, **attrs),
        helper.make_node("DequantizeLinear", ["r", "t", "u"], ["y"]),
    ]
    arrays = {n: np.asarray(a) for n, a in {**scales, **constants}.items()}
    return model_of(nodes, x, arrays)


IN, OUT = ["q", "s", "z"], ["t", "u"]
PER_CHANNEL = {
    "w": codes(4, 2, 3, 3),
    "v": np.full(4, 0.01, np.float32),
    "wz": np.zeros(4, np.int8),
}
WEIGHT = {"w": codes(4, 5), "v": np.float32(0.01), "wz": np.int8(1)}
FINE = {"t": np.float32(0.008), "u": np.int8(-128)}
SINGLE = [
    ("QLinearConv", f(1, 2, 5, 5), [*IN, "w", "v", "wz", *OUT, "b"],
     PER_CHANNEL | {"b": np.arange(4, dtype=np.int32) * 50}, {"domain": "", "pads": [1] * 4}),
    ("QLinearMatMul", f(2, 3, 4), [*IN, "w", "v", "wz", *OUT], WEIGHT, {"domain": ""}),
    ("QGemm", f(3, 4), [*IN, "w", "v", "wz", "c", *OUT],
     WEIGHT | {"c": np.arange(5, dtype=np.int32) * 30}, {}),
    ("QLinearAdd", f(3, 4), [*IN, "w", "v", "wz", *OUT], WEIGHT | {"w": codes(4)}, {}),
    ("QLinearMul", f(3, 4), [*IN, "w", "v", "wz", *OUT], WEIGHT | {"w": codes(4)}, {}),
    ("QLinearSigmoid", f(3, 4), [*IN, *OUT], FINE, {}),
    ("QLinearLeakyRelu", f(3, 4), [*IN, *OUT], {}, {"alpha": 0.2}),
    ("QLinearSoftmax", f(3, 4), [*IN, *OUT], FINE, {"axis": -1, "opset": 13}),
    ("QLinearAveragePool", f(1, 2, 4, 4), [*IN, *OUT], {}, {"kernel_shape": [2, 2]}),
    ("QLinearGlobalAveragePool", f(1, 2, 4, 4), [*IN, *OUT], {}, {}),
    ("QLinearConcat", f(3, 4), [*OUT, *IN, "w", "v", "wz"], WEIGHT | {"w": codes(3, 2)},
     {"axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "x", "inputs", "constants", "attrs"), SINGLE, ids=[c[0] for c in SINGLE]
)
def test_an_operator_on_integers(
    op: str, x: np.ndarray, inputs: list[str], constants: Any, attrs: Any
) -> None:
    model = surrounded(op, x, inputs, constants, **attrs)
    (before,), (after,) = run_ort(model, {"x": x}), run_ort(normalized(model), {"x": x})
    np.testing.assert_allclose(after, before, atol=0.03 * 1.01)  # one step, where ties fall apart
    assert_passes_straight_through(model, x)


def assert_passes_straight_through(model: onnx.ModelProto, x: np.ndarray) -> None:
    """The gradient is the slope of the function without its steps, seen from far enough away."""
    gradient = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    y = run_ort(model, {"x": x})[0]
    direction, seed = f(*x.shape), f(*y.shape)
    dx = run_ort(gradient, {"x": x, "y_grad": seed})[-1]
    wide = 0.2
    ends = [run_ort(model, {"x": x + s * wide * direction})[0] for s in (1, -1)]
    slope = float(np.sum((ends[0] - ends[1]) / (2 * wide) * seed))
    claimed = float(np.sum(dx * direction))
    assert dx.any()
    assert abs(slope - claimed) < 0.12 * float(np.linalg.norm(dx) * np.linalg.norm(direction))


def integer_product(op: str, weight: np.ndarray, zero: Any, **attrs: Any) -> list[onnx.NodeProto]:
    """What dynamic quantization writes: integers for the input, their product, both scales."""
    return [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(op, ["q", "w", "z", "wz"], ["i"], **attrs),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "v"], ["both"]),
        helper.make_node("Mul", ["c", "both"], ["y"]),
    ]


@pytest.mark.parametrize(
    ("op", "x", "weight", "zero", "attrs"),
    [
        ("MatMulInteger", f(2, 3, 4), codes(4, 5), np.int8(0), {}),
        ("MatMulInteger", f(3, 4), codes(4, 5), np.array([1, 2, 0, -3, 4], np.int8), {}),
        ("ConvInteger", f(1, 2, 5, 5), codes(3, 2, 3, 3).view(np.uint8), np.uint8(120),
         {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        ("ConvInteger", f(1, 2, 5, 5), codes(4, 1, 2, 2).view(np.uint8), np.uint8(3),
         {"group": 2}),
    ],
)  # fmt: skip
def test_dynamic_quantization_passes_the_gradient(
    op: str, x: np.ndarray, weight: np.ndarray, zero: Any, attrs: Any
) -> None:
    constants = {"w": weight, "wz": np.asarray(zero), "v": np.asarray(np.float32(0.01))}
    model = model_of(integer_product(op, weight, zero, **attrs), x, constants)
    gradient = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert op in {n.op_type for n in gradient.graph.node}, "the forward product stays as it is"
    weights = (weight.astype(np.float32) - np.asarray(zero)) * np.float32(0.01)
    plain = "MatMul" if op == "MatMulInteger" else "Conv"
    twin = model_of([helper.make_node(plain, ["x", "w"], ["y"], **attrs)], x, {"w": weights})
    exact = onnxtrain.differentiate(twin, wrt=["x"], of="y", vjp=True)
    seed = f(*run_ort(twin, {"x": x})[0].shape)
    got, expected = (run_ort(g, {"x": x, "y_grad": seed})[-1] for g in (gradient, exact))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_cast_to_integers_still_stops_the_gradient() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    x = f(3)
    gradient = onnxtrain.differentiate(model_of(nodes, x, {}), wrt=["x"], of="y", vjp=True)
    dx = run_ort(gradient, {"x": x, "y_grad": np.ones(3, np.float32)})[-1]
    np.testing.assert_array_equal(dx, np.ones(3))


LSTM_STATES = {"b": f(2, 24), "h": f(2, 2, 3), "c": f(2, 2, 3)}


@pytest.mark.parametrize("per_channel", [False, True])
def test_an_lstm_with_integer_weights(per_channel: bool) -> None:
    x = f(4, 2, 5)
    scales = (2, 12) if per_channel else (2,)
    constants = {
        "w": codes(2, 5, 12), "r": codes(2, 3, 12), **LSTM_STATES,
        "ws": np.full(scales, 0.01, np.float32),
        "wz": np.full(scales, 0 if per_channel else 2, np.int8),
        "rs": np.full(scales, 0.02, np.float32), "rz": np.zeros(scales, np.int8),
    }  # fmt: skip
    inputs = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y"], domain=MS, hidden_size=3, direction="bidirectional"
    )
    model = model_of([node], x, constants)
    (before,), (after,) = run_ort(model, {"x": x}), run_ort(normalized(model), {"x": x})
    np.testing.assert_allclose(after, before, atol=0.02)
    onnxtrain.check_gradient(model, {"x": x}, wrt=["x", "b", "ws", "rs"]).raise_if_wrong()
    chosen = {t.name for t in onnxtrain.differentiate(model, vjp=True).graph.output}
    assert chosen == {"y", *(f"{n}_grad" for n in ("b", "h", "c", "ws", "rs"))}, "no integers"


def test_products_with_floats_outside() -> None:
    x = f(3, 4)
    constants = {"w": codes(4, 5), "v": np.full(5, 0.01, np.float32), "b": f(5)}
    node = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "v", "", "b"], ["y"], domain=MS)
    model = model_of([node], x, constants)
    (before,), (after,) = run_ort(model, {"x": x}), run_ort(normalized(model), {"x": x})
    np.testing.assert_allclose(after, before, atol=0.02)
    assert_passes_straight_through(model, x)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(
            "MatMulIntegerToFloat", ["q", "w", "s", "v", "z", "", "b"], ["y"], domain=MS
        ),
    ]
    fused = model_of(nodes, x, constants)
    np.testing.assert_allclose(run_ort(normalized(fused), {"x": x})[0], after, atol=1e-5)
