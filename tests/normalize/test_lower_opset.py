"""Operators newer than opset 21, against onnx's own test cases; relabelling and refusals."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

from onnxtrain.errors import ModelError

from .compare import normalized, op_model, operators, run_ort, run_reference

RNG = np.random.default_rng(3)
NEW = {
    "Attention", "RotaryEmbedding", "RMSNormalization", "Swish", "SwiGLU", "TensorScatter",
    "LinearAttention", "CausalConvWithState", "SpaceToDepth",
}  # fmt: skip


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@functools.cache
def official() -> dict[str, Any]:
    """onnx's cases of the operators that opset 21 does not have (half types: tested below)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return {
        c.name: c
        for c in cases
        if len(c.model.graph.node) == 1
        and c.model.graph.node[0].op_type in NEW
        and not c.model.graph.node[0].domain
        and not any(t in c.name for t in ("bf16", "fp16", "float16"))
    }


def assert_near(got: np.ndarray, expected: np.ndarray) -> None:
    scale = 10 if expected.dtype == np.float16 else 1
    np.testing.assert_allclose(got, expected, rtol=2e-4 * scale, atol=2e-5 * scale)


@pytest.mark.parametrize("name", sorted(official()))
def test_official_case(name: str) -> None:
    case = official()[name]
    after = normalized(case.model)
    assert operators(after).isdisjoint(NEW - {"SpaceToDepth"})
    for inputs, outputs in case.data_sets:
        feeds = dict(zip([i.name for i in case.model.graph.input], inputs))
        for got, expected in zip(run_ort(after, feeds), outputs):
            assert_near(got, expected)


def symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dimension but the heads (axis 1) made symbolic."""
    for value in model.graph.input:
        shape = value.type.tensor_type.shape
        for axis, dim in enumerate(shape.dim):
            if axis != 1 or len(shape.dim) < 4:
                dim.dim_param = f"{value.name}_{axis}"
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize(
    "name",
    [n for n in sorted(official()) if n.startswith(("test_attention", "test_rotary", "test_rms"))],
)
def test_official_case_with_symbolic_shapes(name: str) -> None:
    case = official()[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    after = normalized(symbolic(model))
    inputs, outputs = case.data_sets[0]
    feeds = dict(zip([i.name for i in case.model.graph.input], inputs))
    for got, expected in zip(run_ort(after, feeds), outputs):
        assert_near(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_cumulative_product(
    axis: int, reverse: int, exclusive: int, dynamic: bool, constants: tuple[int, ...]
) -> None:
    x = f(3, 5, 4)
    x[1, 2] = 0
    model, feeds = op_model(
        "CumProd", [x, np.array(axis)], opset=26, constants=constants, dynamic=dynamic,
        exclusive=exclusive, reverse=reverse, ir_version=11,
    )  # fmt: skip
    after = normalized(model)
    assert "CumProd" not in operators(after)
    flipped = np.flip(x, axis) if reverse else x
    expected = np.cumprod(flipped, axis)
    if exclusive:
        ones = np.ones_like(np.take(expected, [0], axis))
        expected = np.concatenate([ones, np.take(expected, range(x.shape[axis] - 1), axis)], axis)
    expected = np.flip(expected, axis) if reverse else expected
    np.testing.assert_allclose(run_ort(after, feeds)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("opset", [22, 23, 24, 25, 26, 27, 28])
def test_widened_operators_are_relabelled(opset: int) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("this onnx does not know the opset")
    model, feeds = op_model("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], opset=opset, ir_version=10)
    after = normalized(model)
    assert after.opset_import[0].version == 21
    np.testing.assert_allclose(
        run_ort(after, feeds)[0], run_reference(after, feeds)[0], rtol=1e-4, atol=1e-5
    )


def test_types_that_only_newer_versions_take_are_computed_in_float32() -> None:
    half = ml_dtypes.bfloat16
    x, w = f(1, 2, 5, 5).astype(half), f(3, 2, 3, 3).astype(half)
    model, feeds = op_model("Conv", [x, w], opset=22, ir_version=10)
    after = normalized(model)
    assert operators(after) == {"Conv", "Cast"}
    (y,) = run_reference(after, feeds)
    assert y.dtype == half
    wide, wide_feeds = op_model(
        "Conv", [x.astype(np.float32), w.astype(np.float32)], opset=21, ir_version=10
    )
    np.testing.assert_allclose(
        y.astype(np.float32), run_ort(wide, wide_feeds)[0], rtol=2e-2, atol=2e-2
    )


def test_half_precision_attention() -> None:
    q, k, v = (f(2, 4, 5, 8).astype(np.float16) for _ in range(3))
    model, feeds = op_model("Attention", [q, k, v], opset=23, is_causal=1, ir_version=10)
    (y,) = run_ort(normalized(model), feeds)
    assert y.dtype == np.float16
    (expected,) = run_reference(model, feeds)
    np.testing.assert_allclose(y, expected, rtol=2e-2, atol=2e-3)


def test_inside_a_branch() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 24]>
        g (float[N, 4] x, bool c) => (float[N, 4] y) <float[4] scale = {1, 2, 3, 4}> {
            y = If (c) <
                then_branch = t () => (float[N, 4] o) { o = Swish (x) },
                else_branch = e () => (float[N, 4] o) { o = RMSNormalization (x, scale) }
            >
        }""")
    after = normalized(model)
    for c in (True, False):
        feeds = {"x": f(3, 4), "c": np.array(c)}
        np.testing.assert_allclose(
            run_ort(after, feeds)[0], run_reference(model, feeds)[0], rtol=1e-5
        )


def test_attributes_that_say_nothing_new_are_dropped() -> None:
    model, feeds = op_model("Cast", [f(3)], opset=24, to=TensorProto.INT64, round_mode="up")
    after = normalized(model)
    assert [a.name for a in after.graph.node[0].attribute] == ["to"]
    assert run_ort(after, feeds)[0].dtype == np.int64


def test_an_attribute_with_a_meaning_is_refused() -> None:
    scale = np.array(0.5, np.float32)
    model, _ = op_model(
        "DequantizeLinear", [np.array([1, 2], np.uint8), scale], opset=23, ir_version=10,
        output_dtype=TensorProto.FLOAT16,
    )  # fmt: skip
    with pytest.raises(ModelError, match="output_dtype"):
        normalized(model)


def test_a_type_that_21_lacks_is_refused_by_name() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1, name="narrow")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT4E2M1, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(ModelError, match=r"narrow.*FLOAT4E2M1.*opset 21"):
        normalized(model)


def test_bit_casts_are_refused() -> None:
    model, _ = op_model("BitCast", [f(3)], opset=26, to=TensorProto.INT32, ir_version=11)
    with pytest.raises(ModelError, match="BitCast from FLOAT to INT32"):
        normalized(model)
