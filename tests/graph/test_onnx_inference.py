"""Which models have their values followed by shape inference, and that shapes are the same."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import onnx.shape_inference
import pytest

from onnxtrain.graph.onnx_inference import infer_shapes_of

HEAD = '<ir_version: 8, opset_import: ["": 18]>\n'
STATIC = "g (float[100000] p) => (y) <int64[1] s = {0}, int64[1] e = {8}> { y = Slice(p, s, e) }"
OPEN = (
    "g (float[100000] p, float[N,4] x) => (y) <int64[1] m = {-1}, int64[1] i = {1}, "
    "int64[1] j = {2}> { d = Shape(x) k = Slice(d, i, j) t = Concat<axis=0>(m, k) "
    "y = Reshape(p, t) }"
)
COMPUTED = (
    "g (float[100000] p) => (y) <int64[1] s = {0}, int64 e = {8}, int64[1] a = {0}> "
    "{ u = Unsqueeze(e, a) y = Slice(p, s, u) }"
)
SHORT = "g (float[8] p) => (y) <float c = {2}> { y = Mul(p, c) }"


@pytest.mark.parametrize(
    ("text", "shape", "followed"),
    [
        (STATIC, [8], [False]),
        (COMPUTED, [8], [False, False]),
        (OPEN, [25000, 4], [False, False, True]),
        (SHORT, [8], [False]),
    ],
)
def test_long_vectors_are_followed_only_where_a_shape_needs_it(
    text: str, shape: list[int], followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(HEAD + text)
    infer = onnx.shape_inference.infer_shapes
    asked: list[bool] = []

    def spy(proto: onnx.ModelProto, data_prop: bool = False, **options: Any) -> onnx.ModelProto:
        asked.append(data_prop)
        return infer(proto, data_prop=data_prop, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    found = infer_shapes_of(model).graph
    assert [d.dim_value for d in found.output[0].type.tensor_type.shape.dim] == shape
    assert found.node == model.graph.node
    assert found.initializer == model.graph.initializer
    assert asked == followed
