"""Each rewrite: what it turns a graph into, that the numbers stay, and when it must not apply."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from onnxtrain import differentiate
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.parameters import to_inputs
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up

PRODUCT = (
    "a = Unsqueeze(x, i0) b = Transpose<perm=[1,2,0]>(a) c = Unsqueeze(x, i1) d = MatMul(b, c) "
    "y = Reshape(d, back)"
)
AXES = (
    "a = Unsqueeze(x, i0) b = Exp(a) c = Squeeze(b, i0) d = Unsqueeze(c, i0) "
    "y = ReduceSum<keepdims=0>(d, i0)"
)
SHAPES = ["Shape", "Expand"]
OVERWRITTEN = (  # Exp may write into its operand's memory, so the shape stays that of the result
    "a = Transpose<perm=[1,0]>(x) b = Exp(a) s = Shape(b) e = Expand(one, s) "
    "y = Concat<axis=0>(b, e)"
)
INVERSES = ["Div", "Exp", "Div", "Add"]
NO_INVERSES = ["Div", "Exp", "Div", "Mul", "Add"]
CASES = [
    # what the model computes, and the operators that are left
    ("y = Mul(x, one)", ["Identity"]),
    ("y = Div(x, one)", ["Identity"]),
    ("y = Add(zero, x)", ["Identity"]),
    ("y = Sub(x, zero)", ["Identity"]),
    ("y = Sub(zero, x)", ["Sub"]),
    ("a = Neg(x) b = Neg(a) y = Exp(b)", ["Exp"]),
    ("a = Neg(x) b = Add(one, a) y = Exp(b)", ["Sub", "Exp"]),
    # a product of inverses, one of which is read by others, too
    ("h = Div(one, x) a = Exp(x) p = Div(one, a) u = Mul(h, p) y = Add(u, h)", INVERSES),
    ("h = Div(one, x) a = Exp(x) p = Div(one, a) u = Mul(p, h) y = Add(u, h)", INVERSES),
    ("h = Div(one, x) a = Exp(x) p = Div(one, a) y = Mul(h, p)", ["Div", "Exp", "Div", "Mul"]),
    ("h = Div(half, x) a = Exp(x) p = Div(one, a) u = Mul(h, p) y = Add(u, h)", NO_INVERSES),
    ("h = Div(one, x) a = Exp(x) p = Div(half, a) u = Mul(h, p) y = Add(u, h)", NO_INVERSES),
    ("a = Transpose<perm=[1,0]>(x) b = Transpose<perm=[1,0]>(a) y = Exp(b)", ["Exp"]),
    ("a = Transpose<perm=[0,1]>(x) y = Exp(a)", ["Exp"]),
    ("a = Cast<to=1>(x) y = Exp(a)", ["Exp"]),
    ("a = Reshape(x, flat) b = Reshape(a, back) y = Exp(b)", ["Exp"]),
    ("a = Unsqueeze(x, i1) b = Squeeze(a, i1) y = Exp(b)", ["Exp"]),
    ("a = Unsqueeze(x, i1) b = Squeeze(a, m2) y = Exp(b)", ["Exp"]),
    ("a = ReduceSum(x, i1) b = Squeeze(a, m1) y = Unsqueeze(b, i0)", ["ReduceSum", "Unsqueeze"]),
    (
        "a = ReduceMax(x, i1) b = Squeeze(a, i1) c = Unsqueeze(b, i1) y = Add(a, c)",
        ["ReduceMax", "Add"],
    ),
    (AXES, ["Unsqueeze", "Exp", "ReduceSum"]),
    ("a = Pad(x, two, , i1) y = Exp(a)", ["Pad", "Exp"]),
    ("s = Shape(x) a = Pad(x, s, , m2) y = Exp(a)", ["Shape", "Concat", "Gather", "Pad", "Exp"]),
    ("s = Shape(x) a = Expand(one, s) y = Mul(x, a)", ["Identity"]),
    ("s = Shape(x) a = Expand(half, s) y = Mul(x, a)", ["Mul"]),
    ("a = Exp(x) b = Exp(x) y = Mul(a, b)", ["Exp", "Mul"]),
    ("a = Exp(x) dead = Log(a) y = Tanh(a)", ["Exp", "Tanh"]),
    ("a = Identity(x) y = Tanh(a)", ["Tanh"]),
    ("a = Gemm<transA=1>(x, x) b = Transpose<perm=[1,0]>(a) y = Exp(b)", ["Gemm", "Exp"]),
    ("a = Slice(x, i0, all, i1) y = Exp(a)", ["Exp"]),
    ("a = Slice(x, i0, i1, i1) y = Exp(a)", ["Slice", "Exp"]),
    ("a = Slice(x, m1, low, i1, m1) y = Exp(a)", ["Slice", "Exp"]),  # backwards
    ("a = Slice(x, i0, i0, i1) b = Concat<axis=1>(a, x) y = Exp(b)", ["Exp"]),
    ("a = Slice(x, i0, i0, i1) b = Concat<axis=1>(x, a, x) y = Exp(b)", ["Concat", "Exp"]),
    ("a = Concat<axis=1>(x) y = Exp(a)", ["Exp"]),
    # a shape is that of an operand which is there anyway; what it was asked of is dropped
    ("a = Mul(x, x) b = Mul(a, half) c = Abs(b) s = Shape(c) y = Expand(one, s)", SHAPES),
    ("a = Add(x, row) s = Shape(a) y = Expand(one, s)", ["Add", *SHAPES]),  # may have more rows
    (OVERWRITTEN, ["Transpose", "Exp", *SHAPES, "Concat"]),
    # rows are moved, and the swap that onnxruntime makes part of the product is apart
    (PRODUCT, ["Unsqueeze", "Unsqueeze", "Transpose", "Transpose", "MatMul", "Reshape"]),
]


TWO_MEANS = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N,C] x, int64[N] first, int64[N] second) => (float y)
<float two = {2}> {
    a = SoftmaxCrossEntropyLoss<ignore_index=3>(x, first)
    b = SoftmaxCrossEntropyLoss<ignore_index=3>(x, second)
    sum = Add(a, b)
    y = Div(sum, two)
}"""


def test_half_of_two_means_can_be_loaded() -> None:
    """Where text begins and ends: the mean of two losses, as models for questions have it.

    The gradient of each is ½ times one over its number of labels, and onnxruntime refused that.
    """
    model = differentiate(onnx.parser.parse_model(TWO_MEANS), wrt=["x"], of="y")
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    labels = {"first": [0, 3, 2, 4], "second": [3, 1, 1, 3]}
    feeds = {name: np.array(values, np.int64) for name, values in labels.items()}
    session = ort.InferenceSession(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": x, **feeds}), strict=True))
    wide = np.exp(x.astype(np.float64))
    share = wide / wide.sum(1, keepdims=True)
    expected = np.zeros_like(wide)
    for targets in feeds.values():
        counted = (targets != 3)[:, None]
        expected += (share - np.eye(5)[targets]) * counted / counted.sum() / 2
    gradient = next(value for value in found.values() if value.shape == x.shape)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_inverses_that_onnxruntime_cannot_load() -> None:
    """The smallest such graph: both readers of 1/a are products with other inverses."""
    body = (
        "e = Exp(x) h = Div(one, e) a = Cosh(x) p = Div(one, a) b = Sqrt(e) q = Div(one, b) "
        "u = Mul(h, p) v = Mul(q, h) y = Add(u, v)"
    )
    result = clean_up(normalize(load(model_of(body))))
    assert [n.op_type for n in result.graph].count("Mul") == 0
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    session = ort.InferenceSession(to_proto(result).SerializeToString())
    wide = x.astype(np.float64)
    expected = np.exp(-wide) / np.cosh(wide) + np.exp(-wide * 1.5)
    np.testing.assert_allclose(session.run(["y"], {"x": x})[0], expected, rtol=1e-5)


def model_of(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[N,3] x) => (float[A,B] y) <float one = {1}, float zero = {0}, "
        "int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] m2 = {-2}, int64[1] m1 = {-1}, "
        "int64[2] two = {1, 2}, "
        "float half = {0.5}, float[1,3] row = {1, 2, 3}, int64[1] all = {9}, int64[1] low = {-9}, "
        f"int64[1] flat = {{-1}}, int64[2] back = {{-1,3}}> {{ {body} }}"
    )


@pytest.mark.parametrize(("body", "expected"), CASES, ids=[c[0] for c in CASES])
def test_rewrite(body: str, expected: list[str]) -> None:
    model = model_of(body)
    result = clean_up(normalize(load(model)))
    assert [n.op_type for n in result.graph] == expected
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(["y"], {"x": x})[0]
        for m in (model, to_proto(result))
    )
    np.testing.assert_allclose(before, after, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (512, 12_000, ["Transpose", "MatMul", "Transpose"]),
        (256, 25_000, ["Transpose", "MatMul", "Transpose"]),
        (64, 100_000, ["Gemm"]),  # too few rows
        (512, 1_000, ["Gemm"]),  # not a large operand
    ],
)
def test_a_tall_weight_gradient_is_computed_wide(
    rows: int, columns: int, expected: list[str]
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[{rows},{columns}] a, float[{rows},4] b) => (float[{columns},4] y)"
        " { y = Gemm<transA=1>(a, b) }"
    )
    result = clean_up(normalize(load(model)))
    assert [n.op_type for n in result.graph] == expected
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(rows, n)).astype(np.float32) for n in (columns, 4))
    found = ort.InferenceSession(to_proto(result).SerializeToString()).run(["y"], {"a": a, "b": b})
    np.testing.assert_allclose(found[0], a.T @ b, rtol=1e-4, atol=1e-4)


def test_a_tall_weight_gradient_of_fewer_rows_than_columns_stays() -> None:
    """Transposing the result would take as long as it saves, and twice the memory."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[256,50000] a, float[256,300] b) => (float[50000,300] y)"
        " { y = Gemm<transA=1>(a, b) }"
    )
    assert [n.op_type for n in clean_up(normalize(load(model))).graph] == ["Gemm"]


SINGLE = """z = ConstantOfShape(size)
    s = ScatterElements<reduction = "none">(z, each, rows)"""
SCATTERED = "z = ConstantOfShape(size) s = ScatterND(z, at, rows)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{SCATTERED} y = Add(full, s)", ["GatherND", "Add", "ScatterND"]),
        (f"{SCATTERED} y = Add(s, full)", ["GatherND", "Add", "ScatterND"]),
        (f"{SCATTERED} a = Add(s, full) y = Mul(a, s)", None),  # somebody else reads the rows
        (f"{SCATTERED} y = Add(s, one)", None),  # not one number for each of the scattered
        ("z = Exp(full) s = ScatterND(z, at, rows) y = Add(full, s)", None),  # no zeros
        (f"{SCATTERED} y = Add(full, s)".replace("D(", 'D<reduction = "add">('), None),
        (f"{SINGLE.replace('none', 'add')} y = Add(full, s)", ["ScatterElements"]),
        (f"{SINGLE} y = Add(full, s)", None),
    ],
)
def test_rows_are_added_where_they_belong(body: str, expected: list[str] | None) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[6,3] full, float[2,3] rows) => (float[6,3] y) <int64[2] size = {6, 3}, "
        "int64[2,1] at = {4, 1}, int64[2,3] each = {4, 1, 0, 5, 2, 3}, "
        f"float[3] one = {{1, 2, 3}}> {{ {body} }}"
    )
    result = clean_up(normalize(load(model)))
    operators = [n.op_type for n in result.graph]
    assert operators == expected if expected else "GatherND" not in operators
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(k, 3)).astype(np.float32) for n, k in (("full", 6), ("rows", 2))}
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(["y"], feeds)[0]
        for m in (model, to_proto(result))
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("bad", [0.5, np.nan])
def test_a_table_that_is_looked_up_and_multiplied_with_has_one_full_gradient(bad: float) -> None:
    """No second tensor of its size is made, neither zeros nor a sum."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[50,9] w, int64[7] i, float[7,50] c) => (float loss) "
        "{ x = Gather(w, i) t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) m = Mul(y, c) "
        "loss = ReduceSum<keepdims=0>(m) }"
    )
    gradient = differentiate(model, wrt=["w"], of="loss")
    full = [v.name for v in gradient.graph.value_info if shape_of(v) == [50, 9]]
    assert len(full) <= 1, f"besides the gradient itself: {full}"
    rng = np.random.default_rng(0)
    w, c = rng.normal(size=(50, 9)).astype(np.float32), rng.normal(size=(7, 50)).astype(np.float32)
    i = np.array([3, 41, 3, 0, 49, 41, 3])
    c[2, 10] = bad
    expected = c.T @ w[i]
    np.add.at(expected, i, c @ w)
    session = ort.InferenceSession(gradient.SerializeToString())
    (found,) = session.run(["w_grad"], {"w": w, "i": i, "c": c})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(found).any(axis=1).sum() == (2 if np.isnan(bad) else 0)


def shape_of(value: onnx.ValueInfoProto) -> list[int]:
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("body", ["y = Mul(x, one)", "y = Add(x, zero)"])
def test_parameters_are_not_neutral(body: str) -> None:
    model = normalize(load(model_of(body)))
    to_inputs(model, ["one", "zero"])
    assert [n.op_type for n in clean_up(model).graph] == [body[4:7]]


def test_dead_control_flow_lets_go_of_outer_values() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[3] x, bool c) => (float[3] y) {
          a = Exp(x)
          dead = If (c) <then_branch = t () => (float[3] p) { p = Neg(a) },
                         else_branch = e () => (float[3] q) { q = Abs(a) }>
          y = Tanh(x)
        }""")
    assert [n.op_type for n in clean_up(normalize(load(model))).graph] == ["Tanh"]


def test_a_transpose_may_be_moved_past_a_pad() -> None:
    """onnxruntime does that, and does not look at the axes of the Pad."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[2,3,4] x) => (float[A,B,C] y) <int64[2] pads = {1, 2}, int64[1] axis = {2}> "
        "{ a = Transpose<perm=[0,2,1]>(x) b = Pad(a, pads, , axis) "
        "c = Transpose<perm=[0,2,1]>(b) y = Exp(c) }"
    )
    result = clean_up(normalize(load(model)))
    assert all(len(n.inputs) <= 3 for n in result.graph if n.op_type == "Pad")
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    session = ort.InferenceSession(to_proto(result).SerializeToString())
    expected = np.exp(np.pad(x, ((0, 0), (1, 2), (0, 0))))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)


def test_an_einsum_that_repeats_its_first_operand_has_a_shape_of_its_own() -> None:
    """onnx infers that of the first operand: Shape nodes of the two are not the same."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[a0, a1] a, float[b0, b1] b) => (float loss) <float[2, 4] w = {1,1,1,1,1,1,1,1}>
        { y = Einsum <equation = "...,...->..."> (a, b) m = Mul (y, w)
          loss = ReduceSum <keepdims = 0> (m) }""")
    result = differentiate(model, wrt=["a"], of="loss")
    session = ort.InferenceSession(result.SerializeToString())
    feeds = {"a": np.ones((2, 1), np.float32), "b": np.ones((2, 4), np.float32)}
    np.testing.assert_array_equal(session.run(["a_grad"], feeds)[0], [[4.0], [4.0]])


def test_an_einsum_of_one_row_and_many_has_many() -> None:
    """onnx infers one row; a gradient that believed it would not sum over them."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 3, 4] x) => (float loss)
        <float[1, 2, 3] w = {1,2,3,4,5,6}, float[2, 4] b = {1,1,1,1,1,1,1,1}>
        { y = Einsum <equation = "...ij,...jk->...ik"> (w, x) z = Add (y, b) q = Mul (z, z)
          loss = ReduceSum <keepdims = 0> (q) }""")
    result = differentiate(model, wrt=["w", "b"], of="loss")
    session = ort.InferenceSession(result.SerializeToString())
    x = np.arange(60, dtype=np.float32).reshape(5, 3, 4) / 10
    w, b = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3), np.ones((2, 4), np.float32)
    outer = 2 * (w @ x + b)
    w_grad, b_grad = session.run(["w_grad", "b_grad"], {"x": x})
    np.testing.assert_allclose(w_grad, (outer @ x.transpose(0, 2, 1)).sum(0, keepdims=True), 1e-5)
    np.testing.assert_allclose(b_grad, outer.sum(0), 1e-5)
