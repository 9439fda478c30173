"""Exporters' detours: slices that together are a whole value become one Split."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize


def gates(bounds: list[tuple[int, int]], step: int = 1) -> onnx.ModelProto:
    """The rows of a weight in another order, as torch's exporters write those of an LSTM."""
    parts = [f"p{i} = Slice(w, s{i}, e{i}, axis, step)" for i in range(len(bounds))]
    numbers = [
        f"int64[1] s{i} = {{{a}}}, int64[1] e{i} = {{{b}}}" for i, (a, b) in enumerate(bounds)
    ]
    joined = ", ".join(f"p{i}" for i in range(len(bounds)))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[8, 3] w) => (float[r, 3] y)
        <int64[1] axis = {{0}}, int64[1] step = {{{step}}}, {", ".join(numbers)}>
        {{ {" ".join(parts)} y = Concat<axis = 0>({joined}) }}
    """)


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("bounds", [[(0, 2), (6, 8), (2, 6)], [(-2, 2**62), (0, 6)]])
def test_slices_side_by_side_are_a_split(bounds: list[tuple[int, int]]) -> None:
    model = gates(bounds)
    plain = to_proto(normalize(load(model)))
    assert operators(plain) == ["Split", "Concat"]
    w = np.arange(24, dtype=np.float32).reshape(8, 3)
    results = []
    for proto in (model, plain):
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        results.append(session.run(None, {"w": w})[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("bounds", "step"),
    [
        ([(0, 2), (2, 6)], 1),  # not all of it
        ([(0, 4), (2, 8)], 1),  # some of it twice
        ([(0, 4), (4, 8)], 2),  # every second row
        ([(0, 8)], 1),
        ([(0, 8), (3, 3)], 1),  # nothing at all is no part
    ],
)
def test_other_slices_stay(bounds: list[tuple[int, int]], step: int) -> None:
    assert "Split" not in operators(to_proto(normalize(load(gates(bounds, step)))))


def test_the_gradient_is_one_concat() -> None:
    model = onnxtrain.differentiate(gates([(0, 2), (6, 8), (2, 6)]), wrt=["w"], vjp=True)
    assert sorted(operators(model)) == ["Concat", "Concat", "Split", "Split"]
    seed = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(["w_grad"], {"w": np.zeros((8, 3), np.float32), "y_grad": seed})[0]
    np.testing.assert_array_equal(found, seed[[0, 1, 4, 5, 6, 7, 2, 3]])


def test_slices_of_a_slice() -> None:
    """Partial rotary embeddings: half of a vector is rotated, in halves again."""
    bounds = "".join(f", int64[1] n{i} = {{{i}}}" for i in (0, 2, 4, 8))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[3, 8] x) => (float loss)
        <float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64[1] axis = {{1}}{bounds}> {{
            h = Mul(x, w)
            a = Slice(h, n0, n4, axis) b = Slice(h, n4, n8, axis)
            c = Slice(a, n0, n2, axis) d = Slice(a, n2, n4, axis)
            e = Neg(d)
            r = Concat<axis = 1>(e, c, b)
            s = Mul(r, h)
            loss = ReduceSum<keepdims = 0>(s)
        }}
    """)
    plain = to_proto(normalize(load(model)))
    assert operators(plain).count("Split") == 2
    assert "Slice" not in operators(plain)
    onnxtrain.check_gradient(model, wrt=["w", "x"]).raise_if_wrong()


def test_slices_inside_of_a_branch() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, bool b) => (float loss)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] one = {1}> {
            y = If (b) <
                then_branch = t () => (p) {
                    e = Exp(x) l = Slice(e, zero, two, one) r = Slice(e, two, four, one)
                    p = Mul(l, r)
                },
                else_branch = f () => (q) { q = Slice(x, zero, two, one) }
            >
            loss = ReduceSum<keepdims = 0>(y)
        }""")
    plain = to_proto(normalize(load(model)))
    branches = {a.name: [n.op_type for n in a.g.node] for a in plain.graph.node[0].attribute}
    assert branches == {"then_branch": ["Exp", "Split", "Mul"], "else_branch": ["Slice"]}
    gradient = onnxtrain.differentiate(model, wrt=["x"])
    session = onnxruntime.InferenceSession(gradient.SerializeToString())
    x = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
    (_, dx) = session.run(None, {"x": x, "b": np.array(True)})
    product = np.exp(x[:, :2]) * np.exp(x[:, 2:])
    np.testing.assert_allclose(dx, np.tile(product, (1, 2)), rtol=1e-5)
