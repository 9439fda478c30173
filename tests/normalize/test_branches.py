"""An If whose condition follows from the shapes is its branch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from .compare import assert_same, normalized, operators

TEXT = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[{size}, 4] x) => (float[M, 4] y) <int64 zero = {{0}}, int64 two = {{2}}> {{
        s = Shape (x)
        n = Gather (s, zero)
        c = Equal (n, two)
        h = If (c) <
            then_branch = t () => (float[A, 4] o) {{ k = Neg (x) o = Exp (k) }},
            else_branch = e () => (float[A, 4] p) {{ p = Identity (x) }}
        >
        y = Abs (h)
    }}
"""


@pytest.mark.parametrize(("size", "kept"), [(2, {"Neg", "Exp", "Abs"}), (3, {"Identity", "Abs"})])
def test_a_decided_if_is_its_branch(size: int, kept: set[str]) -> None:
    model = onnx.parser.parse_model(TEXT.format(size=size))
    after = normalized(model)
    assert "If" not in operators(after)
    assert kept <= operators(after)
    assert not operators(after) & {"Neg", "Identity"} - kept
    assert_same(model, after, {"x": np.linspace(-1, 1, 4 * size, dtype=np.float32).reshape(-1, 4)})


def test_an_undecided_if_stays() -> None:
    model = onnx.parser.parse_model(TEXT.format(size="N"))
    after = normalized(model)
    assert "If" in operators(after)
    for size in (2, 3):
        assert_same(model, after, {"x": np.ones((size, 4), np.float32)})


def test_a_branch_that_returns_an_outer_value_twice() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x) => (float[2] y, float[2] z) <bool c = {1}> {
            y, z = If (c) <
                then_branch = t () => (float[2] o, float[2] p) { o = Neg (x) p = Identity (o) },
                else_branch = e () => (float[2] q, float[2] r) { q = Abs (x) r = Abs (q) }
            >
        }""")
    after = normalized(model)
    assert "If" not in operators(after)
    assert_same(model, after, {"x": np.array([1, -2], np.float32)})


def test_integer_arithmetic_on_constants_is_done_and_floats_are_left() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2, 3] x) => (float[M, N] y)
        <int64[2, 2] pads = {0, 1, 0, 2}, int64[1] flat = {-1},
         float[2] a = {1, 2}, float[2] b = {3, 4}> {
            columns = Transpose <perm = [1, 0]> (pads)
            back = Reshape (columns, flat)
            w = Mul (a, b)
            s = ReduceSum <keepdims = 0> (w)
            p = Pad (x, back, s)
            y = Relu (p)
        }""")
    after = normalized(model)
    assert "Mul" in operators(after)
    shape = after.graph.output[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [3, 5], shape
    assert_same(model, after, {"x": np.ones((2, 3), np.float32)})
