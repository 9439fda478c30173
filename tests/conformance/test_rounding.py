"""Which gradients of a model that rounds can be judged by differences."""

from __future__ import annotations

import onnx.parser

from conformance.rounding import behind_roundings


def model(last: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x) => (float[2] y)
            <float[2] early = {{1, 2}}, float[2] late = {{3, 4}}, float[2] both = {{5, 6}}> {{
            a = Mul(x, early)
            b = Mul(a, both)
            {last}
            d = Mul(c, both)
            y = Add(d, late)
        }}""")


def test_what_lies_behind_the_last_rounding() -> None:
    rounded = model("q, s, z = DynamicQuantizeLinear(b) c = DequantizeLinear(q, s, z)")
    assert behind_roundings(rounded) == ["late"]


def test_a_model_that_does_not_round() -> None:
    assert behind_roundings(model("c = Neg(b)")) is None
