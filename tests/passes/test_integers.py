"""Choices and counts of integers in the forms that onnxruntime computes fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up

COUNT = "c = Greater(n, nought) i = Cast<to=7>(c) y = ReduceSum<keepdims=0>(i)"
CHOICE = "c = Greater(n, low) y = Where(c, n, nought)"
CASES = [
    # sizes of n, what is computed, whether it becomes another form
    ("200,100", COUNT, True),
    ("N,3,100", COUNT, True),
    ("N,M,200", COUNT, True),
    ("0,300,100", COUNT, False),
    ("20000", COUNT, False),
    ("200,N", COUNT, False),
    ("9,100", COUNT, False),
    ("200,100", COUNT.replace("keepdims=0", "keepdims=1"), False),
    ("200,100", COUNT.replace("to=7", "to=1") + " z = Cast<to=7>(y)", False),
    ("200,100", CHOICE, True),
    ("N,3,100", CHOICE, True),
    ("20000", CHOICE, True),
    ("9,100", CHOICE, False),
    ("200,100", CHOICE.replace("n, nought", "n, low"), False),
    ("200,100", CHOICE.replace("n, nought", "nought, n"), False),
]


@pytest.mark.parametrize(("sizes", "text", "expected"), CASES)
def test_integers(sizes: str, text: str, expected: bool) -> None:
    result = "z" if " z = " in text else "y"
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (int64[{sizes}] n) => (int64[?] {result})
        <int64 nought = {{0}}, int64 low = {{-3}}> {{ {text} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    before = normalize(load(model))
    after = to_proto(clean_up(before))
    operators = [node.op_type for node in after.graph.node]
    changed = operators.count("Cast") > (2 if result == "z" else "Cast" in text)
    assert changed == expected
    assert ("Where" in operators) == ("Where" in text and not expected)
    for open_size in (1, 7):
        dims = [int(s) if s.isdigit() else open_size for s in sizes.split(",")]
        numbers = np.random.default_rng(0).integers(-(2**62), 2**62, dims)
        numbers.reshape(-1)[::3] = 0
        feeds = {"n": numbers}
        np.testing.assert_array_equal(run(after, feeds), run(model, feeds))


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    (result,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    return result
