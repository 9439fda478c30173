"""Forms that the oldest onnxruntime computes as the newest does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
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
