"""Large outputs that are copies of another value."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
from onnxtrain.passes import copies_by_all_threads, optimize


def made(size: int | str, kind: str = "float") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g ({kind}[{size}] x) => ({kind}[{size}] a, {kind}[{size}] b, {kind}[{size}] c) "
        "{ a = Neg(x) b = Neg(x) c = Neg(x) }"
    )
    result = to_proto(copies_by_all_threads(optimize(normalize(load(model)))))
    onnx.checker.check_model(result, full_check=True)
    return model, result


def test_they_are_products_with_one() -> None:
    size = 100_003
    model, result = made(size)
    assert [n.op_type for n in result.graph.node] == ["Neg", "Size", "Cast", "Div", "Mul", "Mul"]
    assert [o.name for o in result.graph.output] == ["a", "b", "c"]
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    x[:4] = [np.nan, np.inf, -np.inf, 0.0]
    results = [
        ort.InferenceSession(m.SerializeToString()).run(None, {"x": x}) for m in (model, result)
    ]
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(expected.view(np.uint32), found.view(np.uint32))


@pytest.mark.parametrize(("size", "kind"), [(1000, "float"), ("N", "float"), (100_000, "int64")])
def test_others_stay(size: int | str, kind: str) -> None:
    _, result = made(size, kind)
    assert [n.op_type for n in result.graph.node] == ["Neg", "Identity", "Identity"]
