"""Integers are computed now where they can be; what cannot be folded is left as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up


def model(nodes: str, constants: str) -> onnx.ModelProto:
    """A product of x with a number that the nodes compute as `n`."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2, 3] x) => (float loss) <float[3] w = {{1, 2, 3}}, {constants}>
        {{ {nodes} f = Cast<to = 1>(n) y = Mul(x, f) z = Mul(y, w)
           loss = ReduceSum<keepdims = 0>(z) }}
    """)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def run(proto: onnx.ModelProto) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    return list(session.run(None, {"x": x}))


def numbers(shape: str, count: int) -> str:
    return f"int64[{shape}] data = {{{', '.join(str(3 * i + 1) for i in range(count))}}}"


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        # what BERT does with its buffer of token types: a longer axis than indices
        (
            "n = GatherElements<axis = 1>(data, i)",
            numbers("1, 512", 512) + ", int64[1, 3] i = {0, 400, -1}",
        ),
        (
            "n = GatherElements<axis = 0>(data, i)",
            numbers("40, 3", 120) + ", int64[2, 3] i = {0, 39, -1, 33, 5, 2}",
        ),
        # onnx's own evaluator gives the wrong rows here
        (
            "c = GatherElements<axis = 0>(data, i) n = Slice(c, a, b)",
            numbers("40, 1", 40) + f", int64[40, 1] i = {{{', '.join('0' * 40)}}}, "
            "int64[1] a = {3}, int64[1] b = {5}",
        ),
        ("c = Sub(p, q) n = Mul(c, q)", "int64[3] p = {4, 5, 6}, int64[1] q = {2}"),
        # division towards zero, and both kinds of remainder
        ("n = Div(p, q)", "int64[3] p = {-7, 7, -8}, int64[3] q = {2, -2, 4}"),
        ("n = Mod(p, q)", "int64[3] p = {-7, 7, -8}, int64[3] q = {2, -2, 4}"),
        ("n = Mod<fmod = 1>(p, q)", "int64[3] p = {-7, 7, -8}, int64[3] q = {2, -2, 5}"),
        (
            "c = Div(data, q) n = ReduceSum<keepdims = 0>(c)",
            numbers("100", 100).replace("{", "{-5, -").replace(", 298", "") + ", int64 q = {2}",
        ),
        (
            "n = ReduceProd<keepdims = 0>(p, a)",
            "int64[2, 3] p = {1, 2, 3, 4, 5, 6}, int64[1] a = {0}",
        ),
        # what torch's exporter makes of ones of integers
        (
            "c = Cast<to = 7>(p) e = Expand(c, q) n = Gather<axis = 0>(e, i)",
            "float p = {1.0}, int64[2] q = {4, 3}, int64 i = {2}",
        ),
        # and of the places that a resized axis reads
        (
            "k = Cast<to = 1>(p) r = Div(s, t) m = Mul(k, r) c = Clip(m, o) n = Cast<to = 7>(c)",
            "int64[3] p = {0, 1, 2}, float s = {6.0}, float t = {4.0}, float o = {0.0}",
        ),
    ],
)
def test_folded_numbers_are_onnxruntimes(nodes: str, constants: str) -> None:
    given = model(nodes, constants)
    plain = to_proto(clean_up(normalize(load(given))))
    assert operators(plain) == ["Mul", "Mul", "ReduceSum"]
    np.testing.assert_array_equal(run(plain)[0], run(given)[0])
    assert len(run(onnxtrain.differentiate(given, wrt=["w"]))) == 2


@pytest.mark.parametrize(
    ("nodes", "constants", "kept"),
    [
        # outside of the data: an error if it were ever computed, which is not for us to say
        ("n = Gather(p, i)", "int64[3] p = {4, 5, 6}, int64[1] i = {7}", "Gather"),
        # terabytes
        (
            "big = ConstantOfShape<value = int64[1] {1}>(p) n = ReduceMax<keepdims = 0>(big)",
            "int64[2] p = {3000, 3000}",
            "ConstantOfShape",
        ),
        ("big = Expand(q, p) n = ReduceMax<keepdims = 0>(big)",
         "int64[1] q = {1}, int64[2] p = {3000, 3000}", "Expand"),
        ("big = Range(a, b, c) n = ReduceMax<keepdims = 0>(big)",
         "int64 a = {0}, int64 b = {9000000}, int64 c = {1}", "Range"),
        # floats may be weights
        ("n = Cast<to = 7>(p)", "float[3] p = {1.5, 2.5, 3.5}", "Cast"),
        ("m = Mul(p, q) n = Cast<to = 7>(m)", "float[3] p = {1.5, 2.5, 3.5}, float q = {2.0}",
         "Cast"),
    ],
)  # fmt: skip
def test_what_cannot_be_folded_is_left_alone(nodes: str, constants: str, kept: str) -> None:
    plain = to_proto(normalize(load(model(nodes, constants))))
    assert kept in operators(plain)
    assert "w_grad" in [o.name for o in onnxtrain.differentiate(plain, wrt=["w"]).graph.output]


def test_constants_inside_bodies_are_folded_and_decide_their_branches() -> None:
    given = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[3] x, int64 n) => (float loss)
        <float[3] w = {1, 2, 3}, int64 mode = {1}, int64 one = {1}, bool yes = {1}> {
            y = Loop(n, yes, x) <body = step (int64 i, bool c, float[3] h) => (c2, h2) {
                c2 = Identity(c) k = Equal(mode, one)
                h2 = If(k) <then_branch = t () => (a) { a = Mul(h, w) },
                            else_branch = e () => (b) { b = Add(h, w) }> }>
            loss = ReduceSum<keepdims = 0>(y)
        }
    """)
    plain = to_proto(clean_up(normalize(load(given))))
    (loop,) = [n for n in plain.graph.node if n.op_type == "Loop"]
    assert {n.op_type for n in loop.attribute[0].g.node} == {"Identity", "Mul"}
    feeds = {"x": np.ones(3, np.float32), "n": np.array(2)}
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs=feeds).raise_if_wrong()
