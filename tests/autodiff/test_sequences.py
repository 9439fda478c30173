"""Sequences and optional values: gradients of sequences are sequences of the same length."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain

from .loop_models import check

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


@pytest.mark.parametrize("keep", [0, 1])
def test_split_and_pick(keep: int) -> None:
    text = f"""
g (REAL[4,N,3] x) => (REAL loss) {{
  s = SplitToSequence<axis=0, keepdims={keep}>(x)
  one = Constant<value=int64{{1}}>()
  last = Constant<value=int64{{-1}}>()
  a = SequenceAt(s, one) b = SequenceAt(s, last) ab = Mul(a, b) c = SequenceAt(s, one)
  abc = Mul(ab, c) loss = ReduceSum<keepdims=0>(abc)
}}"""
    check(text, {"x": real(4, 2, 3)}, ["x"])


def test_split_in_parts_and_concatenate() -> None:
    text = """
g (REAL[5,3] x, REAL[2,3] y, REAL[7,3] r) => (REAL loss) {
  sizes = Constant<value=int64[2]{2, 3}>()
  s = SplitToSequence<axis=0>(x, sizes)
  t = SequenceInsert(s, y)
  u = ConcatFromSequence<axis=0>(t) v = Mul(u, u) w = Mul(v, r) loss = ReduceSum<keepdims=0>(w)
}"""
    check(text, {"x": real(5, 3), "y": real(2, 3), "r": real(7, 3)}, ["x", "y", "r"])


def test_parts_of_sizes_known_at_run_time() -> None:
    """As experts get their tokens; one name for all sizes would let unequal parts share memory."""
    parts = "".join(
        f"i{k} = Constant<value=int64{{{k}}}>() a{k} = SequenceAt(s, i{k}) "
        f"b{k} = MatMul(a{k}, w) c{k} = Tanh(b{k})\n"
        for k in range(4)
    )
    text = f"""
g (REAL[N,3] x, REAL[3,2] w, int64[4] sizes) => (REAL loss) {{
  h = Sin(x) s = SplitToSequence<axis=0>(h, sizes)
  {parts}
  y = Concat<axis=0>(c0, c1, c2, c3) loss = ReduceSum<keepdims=0>(y)
}}"""
    sizes = np.array([4, 1, 2, 3])
    check(text, {"x": real(10, 3), "w": real(3, 2), "sizes": sizes}, ["x", "w"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_construct_and_stack(axis: int) -> None:
    text = f"""
g (REAL[N,3] x, REAL[N,3] y) => (REAL loss) {{
  s = SequenceConstruct(x, y, x)
  n0 = Constant<value=int64{{{axis}}}>()
  u = ConcatFromSequence<axis={axis}, new_axis=1>(s) c = CumSum(u, n0) e = Exp(c)
  loss = ReduceSum<keepdims=0>(e)
}}"""
    check(text, {"x": real(2, 3), "y": real(2, 3)}, ["x", "y"])


@pytest.mark.parametrize("pos", [0, 1, 2, -1, -2])
def test_insert_and_erase(pos: int) -> None:
    text = f"""
g (REAL[N] x, REAL[N] y, REAL[N] z) => (REAL loss) {{
  p = Constant<value=int64{{{pos}}}>()
  z0 = Constant<value=int64{{0}}>()
  s = SequenceConstruct(x, y)
  t = SequenceInsert(s, z, p)
  k = SequenceErase(t, p)
  n = SequenceLength(t)
  m = Cast<to=11>(n)
  a = ConcatFromSequence<axis=0>(t) b = ConcatFromSequence<axis=0>(k)
  q = CumSum(a, z0) e = Exp(q) f = Sin(b) g0 = ReduceSum<keepdims=0>(e)
  h = ReduceSum<keepdims=0>(f) md = CastLike(m, h) hm = Mul(h, md) loss = Add(g0, hm)
}}"""
    check(text, {"x": real(2), "y": real(2), "z": real(2)}, ["x", "y", "z"])


def test_shrunk_then_filled() -> None:
    text = """
g (REAL[N] x, REAL[M] y) => (REAL loss) {
  s0 = SplitToSequence(x)
  s1 = SequenceErase(s0)
  s2 = SequenceInsert(s1, y)
  a = ConcatFromSequence<axis=0>(s2) b = Mul(a, a) loss = ReduceSum<keepdims=0>(b)
}"""
    check(text, {"x": real(3), "y": real(4)}, ["x", "y"])


def test_filled_from_empty() -> None:
    text = """
g (REAL[N] x, REAL[N] y) => (REAL loss) {
  s0 = SequenceEmpty<dtype=TYPE>()
  s1 = SequenceInsert(s0, x)
  s2 = SequenceInsert(s1, y)
  a = ConcatFromSequence<axis=0>(s2) b = Exp(a) loss = ReduceSum<keepdims=0>(b)
}"""
    check(text, {"x": real(3), "y": real(3)}, ["x", "y"])


def test_sequence_map_with_a_shared_and_a_captured_weight() -> None:
    text = """
g (REAL[4,3] x, REAL[3] w, REAL[3] u) => (REAL loss) {
  s = SplitToSequence<axis=0>(x)
  t = SequenceMap(s, w)<body = each (REAL[1,3] a, REAL[3] b) => (REAL[1,3] c) {
    d = Mul(a, b) e = Tanh(d) c = Mul(e, u)
  }>
  y = ConcatFromSequence<axis=0>(t) z = Mul(y, y) loss = ReduceSum<keepdims=0>(z)
}"""
    check(text, {"x": real(4, 3), "w": real(3), "u": real(3)}, ["x", "w", "u"])


def test_optional_values() -> None:
    text = """
g (REAL[N] x) => (REAL loss) {
  y = Mul(x, x) o = Optional(y) has = OptionalHasElement(o) v = OptionalGetElement(o)
  e = Exp(v) s = ReduceSum<keepdims=0>(e) h = CastLike(has, s) loss = Mul(s, h)
}"""
    check(text, {"x": real(3)}, ["x"])


def test_the_gradient_of_an_output_that_is_a_sequence_is_fed_as_one() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x) => (seq(float[2]) s) {
            a = Mul(x, x)
            s = SequenceConstruct(a, x)
        }""")
    gradient = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    session = onnxruntime.InferenceSession(
        gradient.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x, seed = np.float32([1, 2]), [np.float32([1, 10]), np.float32([0.5, 0.25])]
    (dx,) = session.run(["x_grad"], {"x": x, "s_grad": seed})
    np.testing.assert_allclose(dx, [2.5, 40.25])


def test_a_branch_inside_a_mapped_body_is_differentiated_twice() -> None:
    """As torch exports hstack; nodes that the first gradient dropped must not hold on to values."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x, float[2] k) => (float loss)
        <int64 zero = {0}, int64 last = {1}, int64[1] one = {1}> {
            s = SequenceConstruct(x, k)
            m = SequenceMap(s) <body = each (t) => (u) {
                shape = Shape(t) rank = Size(shape) nought = CastLike(zero, rank)
                scalar = Equal(rank, nought)
                u = If(scalar) <then_branch = a () => (p) { p = Reshape(t, one) },
                                else_branch = b () => (q) { q = Identity(t) }>
            }>
            c = SequenceAt(m, zero) d = SequenceAt(m, last) y = Concat<axis = 0>(c, d)
            yy = Mul(y, y) yyy = Mul(yy, y) loss = ReduceSum<keepdims = 0>(yyy) }
    """)
    once = onnxtrain.differentiate(model, wrt=["x", "k"])
    for name in ("x", "k"):
        node = onnx.helper.make_node("ReduceSum", [f"{name}_grad"], [f"z{name}"], keepdims=0)
        once.graph.node.append(node)
    once.graph.node.append(onnx.helper.make_node("Add", ["zx", "zk"], ["z"]))
    once.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, []))
    twice = onnxtrain.differentiate(once, wrt=["x", "k"], of="z")
    x, k = np.array([0.5, -2.0], np.float32), np.array([1.0, 2.0], np.float32)
    session = onnxruntime.InferenceSession(
        twice.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    got = session.run(None, {"x": x, "k": k})[-2:]
    np.testing.assert_allclose(np.concatenate(got), 6 * np.concatenate([x, k]), rtol=1e-5)
