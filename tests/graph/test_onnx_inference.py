"""Which models have their values followed by shape inference, and that shapes are the same."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import onnx.shape_inference
import pytest

from onnxtrain.graph import load, onnx_inference
from onnxtrain.graph.infer import infer_shapes
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
RESHAPED = (
    "g (float[100000] p) => (y) <int64[1] s = {0}, int64 e = {8}, int64[1] one = {-1}> "
    "{ u = Reshape(e, one) y = Slice(p, s, u) }"
)
SHORT = "g (float[8] p) => (y) <float c = {2}> { y = Mul(p, c) }"


@pytest.mark.parametrize(
    ("text", "shape", "followed"),
    [
        (STATIC, [8], [False]),
        (COMPUTED, [8], [False, False]),
        (RESHAPED, [8], [False, False]),
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


@pytest.mark.parametrize(
    ("equation", "a", "b", "shape"),
    [
        ("...ij,...jk->...ik", "1,2,3", "N,3,4", ["N", 2, 4]),
        ("...ij,...jk->...ik", "N,2,3", "1,3,4", ["N", 2, 4]),
        ("...ij,...jk->...ik", "N,2,3", "M,3,4", [None, 2, 4]),
        ("...ij,...jk->...ik", "2,3", "M,3,4", ["M", 2, 4]),
        ("...ij,...jk", "5,M,2,3", "1,N,3,4", [5, None, 2, 4]),
        ("i...,j...->ij...", "2,N", "3,N", [2, 3, "N"]),
    ],
)
def test_the_dots_of_an_einsum_are_broadcast(
    equation: str, a: str, b: str, shape: list[int | str | None]
) -> None:
    """onnx takes those of the first operand, a 1 included; what follows would be wrong too."""
    model = onnx.parser.parse_model(
        f"{HEAD}g (float[{a}] a, float[{b}] b) => (z) "
        f'{{ y = Einsum <equation = "{equation}"> (a, b) x = Einsum <equation = "...,..."> (y, y) '
        "z = Relu(x) }"
    )
    inferred = infer_shapes_of(model)
    assert [(n.op_type, n.domain) for n in inferred.graph.node[:2]] == [("Einsum", "")] * 2
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    got = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
    assert [None if str(d).startswith("unk__") else d for d in got] == shape


def test_the_dots_are_broadcast_where_values_cannot_be_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Following values fails on valid models too; then they are inferred without."""

    def fails(*_: object) -> onnx.ModelProto:
        raise RuntimeError("a [2, 1] tensor of integers is taken for a shape")

    monkeypatch.setattr(onnx_inference, "_infer", fails)
    model = onnx.parser.parse_model(
        f"{HEAD}g (float[1,2,3] a, float[N,3,4] b) => (float[N,2,4] z) "
        '{ y = Einsum <equation = "...ij,...jk->...ik"> (a, b) z = Relu(y) }'
    )
    inferred = infer_shapes(load(model))
    (y,) = inferred.graph.node(0).outputs
    assert y.shape is not None
    assert [str(d) for d in y.shape] == ["N", "2", "4"]
