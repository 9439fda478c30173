"""Forms that the oldest onnxruntime computes as the newest does."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain.errors import OldRuntimeWarning
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize, old_runtimes
from onnxtrain.normalize.old_runtimes import OF_ONE_ELEMENT
from tests.rules.harness import run_ort

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4) + np.float32(0.01)
BY_ELEMENT = {"Identity": lambda x: x, "Abs": np.abs, "Mul": np.square, "Log": np.log}


def normalized(body: str, shape: str = "2, 3, 4") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[{shape}] x) => (float[a, b, c] y)
        <int64[0] none = {{}}> {{ {body} }}"""
    return to_proto(normalize(load(onnx.parser.parse_model(text))))


@pytest.mark.parametrize("given", ["x", "x, none"])
@pytest.mark.parametrize("reduction", OF_ONE_ELEMENT)
def test_a_reduction_over_no_axes(reduction: str, given: str) -> None:
    model = normalized(f"y = {reduction}<noop_with_empty_axes = 1, keepdims = 0>({given})")
    x = np.abs(X) if reduction == "ReduceLogSum" else X
    expected = BY_ELEMENT[OF_ONE_ELEMENT[reduction]](x)
    np.testing.assert_allclose(run_ort(model, {"x": x})[0], expected, rtol=1e-6)
    assert [n.op_type for n in model.graph.node] == [OF_ONE_ELEMENT[reduction]]


@pytest.mark.parametrize("given", ["x", "x, none"])
def test_over_all_axes_it_stays(given: str) -> None:
    model = normalized(f"y = ReduceL2<keepdims = 1>({given})")
    np.testing.assert_allclose(run_ort(model, {"x": X})[0].item(), np.linalg.norm(X), rtol=1e-6)


def test_the_axes_of_resize_count_from_the_front() -> None:
    body = "s = Constant<value = float[2] {2.0, 2.0}>() y = Resize<axes = [-2, -1]>(x, , s)"
    model = normalized(body)
    (resize,) = (n for n in model.graph.node if n.op_type == "Resize")
    assert list(next(a for a in resize.attribute if a.name == "axes").ints) == [1, 2]
    assert run_ort(model, {"x": X})[0].shape == (2, 6, 8)


GROUPS = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
    g (float[1, 8, 64] q, float[1, 8, 32] k, float[1, 8, 32] v, int32[1] s, int32 t) => (y) {
        y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2%s>(q, k, v, , , s, t)
    }"""
EXPERTS = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
    g (float[6, 32] x, float[6, 4] r, uint8[4, 64, %d] a, float[4, 64] b, float[4, 64] c,
       uint8[4, 32, %d] d, float[4, 32] e, float[4, 32] f) => (y) {
        y = com.microsoft.QMoE<expert_weight_bits = %d, activation_type = "swiglu",
            swiglu_fusion = 1, k = 2>(x, r, a, b, c, d, e, f)
    }"""
LINEAR = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
    g (float[2, 3] x) => (int64[2] label, float[2, 2] y) {
        label, y = ai.onnx.ml.LinearClassifier<coefficients = [%s], intercepts = [%s],
            classlabels_ints = [0, 1], post_transform = "%s">(x)
    }"""
VECTORS = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
    g (float[2, 3] x) => (int64[2] label, float[2, 2] y) {
        label, y = ai.onnx.ml.SVMClassifier<coefficients = [0.5, -0.5], rho = [0.1],
            kernel_params = [0.5, 0.5, 3.0], support_vectors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            vectors_per_class = [1, 1], classlabels_ints = [0, 1], post_transform = "%s">(x)
    }"""


@pytest.mark.parametrize(
    ("release", "model", "warned"),
    [
        ((1, 23), GROUPS % ", local_window_size = 2", True),
        ((1, 24), GROUPS % ", local_window_size = 2", False),
        ((1, 23), GROUPS % ", local_window_size = -1", False),
        ((1, 23), GROUPS % "", False),
        (None, GROUPS % ", local_window_size = 2", False),
        ((1, 24), EXPERTS % (16, 16, 4), True),
        ((1, 25), EXPERTS % (16, 16, 4), False),
        ((1, 23), EXPERTS % (32, 32, 8), False),
        ((1, 26), LINEAR % ("1.0, 2.0, 3.0", "0.5", "LOGISTIC"), True),
        ((1, 27), LINEAR % ("1.0, 2.0, 3.0", "0.5", "LOGISTIC"), False),
        ((1, 26), LINEAR % ("1.0, 2.0, 3.0", "0.5", "NONE"), False),
        ((1, 26), LINEAR % ("1.0, 2.0, 3.0, 4.0, 5.0, 6.0", "0.5, 1.0", "LOGISTIC"), False),
        ((1, 26), VECTORS % "LOGISTIC", True),
        ((1, 27), VECTORS % "LOGISTIC", False),
        ((1, 26), VECTORS % "NONE", False),
    ],
)
def test_kernels_that_compute_another_thing_are_told(
    release: tuple[int, int] | None, model: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written here is right, and has none of the operators."""
    monkeypatch.setattr(old_runtimes, "installed", lambda: release)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        written = to_proto(normalize(load(onnx.parser.parse_model(model))))
    assert [w.category for w in said] == [OldRuntimeWarning] * warned
    assert {node.domain for node in written.graph.node} == {""}


def test_the_release_that_is_installed() -> None:
    release = old_runtimes.installed()
    assert release is None or onnxruntime.__version__.startswith(f"{release[0]}.{release[1]}.")


@pytest.mark.parametrize(
    ("size", "window", "moves"),
    [
        ("12", "kernel_shape = [1], strides = [4]", True),
        ("10", "kernel_shape = [1], strides = [4]", False),  # one element is left, behind the last
        ("N", "kernel_shape = [2], strides = [5]", True),
        ("12", "kernel_shape = [2], strides = [3]", False),
        ("12", "kernel_shape = [2], strides = [5], dilations = [4]", False),
    ],
)
@pytest.mark.parametrize("way", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_that_onnxruntime_moves_are_told_of(
    size: str, window: str, moves: bool, way: str
) -> None:
    pool = f'first = LpPool<{window}, auto_pad = "{way}">(x) y = Mul(first, first)'
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[2, 1, {size}] x) => (float[a, b, c] y) {{ {pool} }}"""
    model = load(onnx.parser.parse_model(text))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        normalize(model)
    assert [w.category for w in told] == [OldRuntimeWarning] * moves


def test_the_windows_of_a_convolution_are_as_wide_as_its_weight() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2, 1, 12] x) => (float[a, b, c] y)
        <float[1, 1, 1] w = {2}> { y = Conv<strides = [4], auto_pad = "SAME_UPPER">(x, w) }"""
    with pytest.warns(OldRuntimeWarning, match="pads"):
        normalize(load(onnx.parser.parse_model(text)))
