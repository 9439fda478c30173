"""Symbolic shapes: polynomials, shape arithmetic of exporters, sequences that are only split."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.tensor import dims_of
from onnxtrain.normalize import normalize
from onnxtrain.normalize.polynomial import Poly, UnknownError
from onnxtrain.passes import clean_up


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\n{text}')


def shapes(model: onnx.ModelProto) -> dict[str, tuple]:
    graph = normalize(load(model)).graph
    return {o.name: dims_of(o) for node in graph for o in node.outputs}


def test_polynomials_are_in_normal_form() -> None:
    n, m = Poly.symbol("n"), Poly.symbol("m")
    assert n * 2 + m == m + n + n
    assert (n + 1) * (n - 1) == n * n - 1
    assert (n * m * 6) // (m * 2) == n * 3
    assert n - n == 0
    assert (n * 4) // n == 4
    assert str(n * 4 + 1) == "4*n + 1"
    assert hash(n * 2) == hash(n + n)


@pytest.mark.parametrize(
    "divide", [lambda n: (n + 1) // 2, lambda n: n // (n + 1), lambda n: 3 // n]
)
def test_division_with_a_rest_is_unknown(divide) -> None:
    with pytest.raises(UnknownError):
        divide(Poly.symbol("n"))


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (1, ("N", "3*S")),
        (0, (1, "3*N*S")),
        (2, ("3*N", "S")),
        (3, ("3*N*S", 1)),
        (-1, ("3*N", "S")),
    ],
)
def test_flattened(axis: int, expected: tuple) -> None:
    """onnx gives both sizes names of their own, and a gradient behind knows its batch no more."""
    found = shapes(
        parse(f"g (float[N,3,S] x) => (float[A,B] z) {{ y = Flatten<axis={axis}>(x) z = Exp(y) }}")
    )
    assert found["z"] == expected


RESHAPED = """
g (float[N,S,12] x) => (float[N,S,12] y) <int64 zero = {0}, int64 one = {1}, int64[1] front = {0},
  int64[1] heads = {3}, int64[1] size = {4}, int64[1] width = {12}>
{
  s = Shape(x)
  n = Gather<axis=0>(s, zero)  n1 = Unsqueeze(n, front)
  l = Gather<axis=0>(s, one)   l1 = Unsqueeze(l, front)
  split = Concat<axis=0>(n1, l1, heads, size)
  a = Reshape(x, split)
  b = Transpose<perm=[0,2,1,3]>(a)
  c = Mul(b, b)
  d = Transpose<perm=[0,2,1,3]>(c)
  merge = Concat<axis=0>(n1, l1, width)
  y = Reshape(d, merge)
}
"""


def test_dimensions_survive_shape_arithmetic() -> None:
    found = shapes(parse(RESHAPED))
    assert found["a"] == ("N", "S", 3, 4)
    assert found["c"] == ("N", 3, "S", 4)
    assert found["y"] == ("N", "S", 12)


def test_one_symbolic_dimension_becomes_minus_one() -> None:
    model = parse(RESHAPED.replace("float[N,S,12]", "float[N,5,12]"))
    normal = clean_up(normalize(load(model)))
    assert [n.op_type for n in normal.graph] == [
        "Reshape",
        "Transpose",
        "Mul",
        "Transpose",
        "Reshape",
    ]
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
    session = ort.InferenceSession(to_proto(normal).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x * x, rtol=1e-6)


def test_flattened_batch_keeps_its_factor() -> None:
    found = shapes(
        parse("""g (float[N,6,4] x) => (float y) <int64[2] t = {-1,8}>
        { z = Reshape(x, t) y = ReduceSum<keepdims=0>(z) }""")
    )
    assert found["z"] == ("3*N", 8)


def test_positions_have_the_length_that_they_count() -> None:
    """What is looked up for each position is as long as the sequence; below zero nothing is."""
    found = shapes(
        parse("""g (float[N,S,4] x, float[9,4] table) => (float y, int64[L] back)
        <int64 zero = {0}, int64 one = {1}, int64 nine = {9}, int64[1] last = {-1}, int64 at = {1}>
        {
          s = Shape(x)
          length = Gather<axis=0>(s, at)
          p = Range(zero, length, one)
          rows = Gather<axis=0>(table, p)
          index = Unsqueeze(p, last)
          same = GatherND(table, index)
          sum = Add(rows, same)
          moved = Mul(x, sum)
          y = ReduceSum<keepdims=0>(moved)
          below = Sub(length, nine)
          back = Range(zero, below, one)
        }""")
    )
    assert found["rows"] == found["same"] == ("S", 4)
    assert found["moved"] == ("N", "S", 4)
    assert found["back"] == ("L",)


def test_unnamed_dimensions_get_a_name() -> None:
    model = parse("g (float[N,2] x) => (float[N,2] y) { y = Tanh(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert shapes(model)["y"] == ("x_dim0", 2)


def test_a_trainable_scalar_is_not_folded() -> None:
    graph = normalize(
        load(
            parse("""g (float[N] x) => (float[N] y) <float s = {4.0}>
        { r = Sqrt(s) y = Mul(x, r) }""")
        )
    ).graph
    assert [n.op_type for n in graph] == ["Sqrt", "Mul"]


def test_sequences_that_are_only_indexed_become_a_split() -> None:
    model = parse("""g (float[N,6] x) => (float[N,2] a, float[N,2] c)
        <int64 two = {2}, int64 i = {0}, int64 k = {-1}>
        { q = SplitToSequence<axis=1, keepdims=1>(x, two)
          p = SequenceAt(q, i) a = Neg(p) c = SequenceAt(q, k) }""")
    normal = clean_up(normalize(load(model)))
    assert [n.op_type for n in normal.graph] == ["Split", "Neg"]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    session = ort.InferenceSession(to_proto(normal).SerializeToString())
    a, c = session.run(["a", "c"], {"x": x})
    np.testing.assert_array_equal(a, -x[:, :2])
    np.testing.assert_array_equal(c, x[:, 4:])


def test_integers_that_were_cast_are_computed_as_floats() -> None:
    model = parse("""
        g (float[2] x) => (double[8] angles, double[3] parts, double[2] back, float rest)
        <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 seven = {7}, int64 eight = {8},
         int64[1] three = {3}>
        {
          begin = Cast<to = 11>(zero)
          end = Cast<to = 11>(eight)
          step = Cast<to = 11>(one)
          double = Cast<to = 11>(two)
          numbers = Range(begin, end, step)
          divided = Div(numbers, end)
          angles = Sin(divided)
          all = Expand(step, three)
          shares = Div(all, end)
          parts = Cos(shares)
          half = Div(step, double)
          few = Range(half, double, step)
          back = Sin(few)
          a = Cast<to = 1>(seven)
          b = Cast<to = 1>(two)
          left = Mod<fmod = 1>(a, b)
          rest = Sin(left)
        }""")
    session = ort.InferenceSession(to_proto(normalize(load(model))).SerializeToString())
    angles, parts, back, rest = session.run(None, {"x": np.ones(2, np.float32)})
    np.testing.assert_allclose(angles, np.sin(np.arange(8) / 8), rtol=1e-12)
    np.testing.assert_allclose(parts, np.cos(np.full(3, 1 / 8)), rtol=1e-12)
    np.testing.assert_allclose(back, np.sin([0.5, 1.5]), rtol=1e-12)
    np.testing.assert_allclose(rest, np.sin(1.0), rtol=1e-6)
