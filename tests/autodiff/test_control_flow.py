"""If, Loop and Scan: branches, captured weights, nesting, early exit, second derivatives."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import onnxtrain
import onnxtrain.errors
from onnxtrain.autodiff import registry

from .loop_models import cast, check, parse, reference, runtime

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


SCAN_RNN = """
g (REAL[T,N,3] x, REAL[N,4] h0, REAL[3,4] w, REAL[4,4] r, REAL[4] b) => (REAL loss) {
  h, ys = Scan<num_scan_inputs=1, body = step (s, xt) => (s2, y) {
    xw = MatMul(xt, w) sr = MatMul(s, r) z0 = Add(xw, sr) z = Add(z0, b) s2 = Tanh(z)
    y = Mul(s2, s2)
  }>(h0, x)
  a = ReduceSum<keepdims=0>(ys) c = ReduceSum<keepdims=0>(h) loss = Add(a, c)
}"""
SCAN_FEEDS = {
    "x": real(5, 2, 3), "h0": real(2, 4), "w": real(3, 4), "r": real(4, 4), "b": real(4),
}  # fmt: skip


def test_scan_rnn_with_captured_weights_twice() -> None:
    check(SCAN_RNN, SCAN_FEEDS, ["x", "h0", "w", "r", "b"], twice=True)


def test_scan_directions_axes_and_two_states() -> None:
    text = """
g (REAL[N,T,3] x, REAL[T,N,3] u, REAL[N,3] a0, REAL[N,3] b0, REAL[3] w) => (REAL loss) {
  a, b, p, q = Scan<num_scan_inputs=2, scan_input_axes=[1, 0], scan_input_directions=[1, 0],
    scan_output_axes=[-1, 1], scan_output_directions=[0, 1],
    body = step (s, t, xt, ut) => (s2, t2, y, z) {
      xu = Mul(xt, ut) s1 = Mul(s, w) s2 = Add(s1, xu) t1 = Sub(t, s2) t2 = Sin(t1)
      y = Mul(s2, t2) z = Cos(s)
    }>(a0, b0, x, u)
  qs = Mul(q, q) l0 = ReduceSum<keepdims=0>(qs) pp = Exp(p) l1 = ReduceSum<keepdims=0>(pp)
  ab = Mul(a, b) l2 = ReduceSum<keepdims=0>(ab) loss = Sum(l0, l1, l2)
}"""
    feeds = {
        "x": real(2, 4, 3), "u": real(4, 2, 3), "a0": real(2, 3), "b0": real(2, 3), "w": real(3),
    }  # fmt: skip
    check(text, feeds, ["x", "u", "a0", "b0", "w"], twice=True)


def test_scan_without_states_and_with_an_integer_input() -> None:
    text = """
g (REAL[T,3] x, int64[T] k, REAL[5,3] table) => (REAL loss) {
  ys = Scan<num_scan_inputs=2, body = step (xt, kt) => (y) {
    row = Gather(table, kt) y = Mul(row, xt)
  }>(x, k)
  e = Exp(ys) loss = ReduceSum<keepdims=0>(e)
}"""
    check(text, {"x": real(4, 3), "k": np.array([0, 3, 3, 1]), "table": real(5, 3)}, ["x", "table"])


def test_nested_scan() -> None:
    text = """
g (REAL[T,K,3] x, REAL[3] h0, REAL[3,3] w) => (REAL loss) {
  h, ys = Scan<num_scan_inputs=1, body = outer (s, xt) => (s2, y) {
    s2, zs = Scan<num_scan_inputs=1, body = inner (u, xk) => (u2, z) {
      m = MatMul(u, w) n = Add(m, xk) u2 = Tanh(n) z = Mul(u2, s)
    }>(s, xt)
    y = ReduceSum<keepdims=0>(zs)
  }>(h0, x)
  a = ReduceSum<keepdims=0>(ys) b = ReduceSum<keepdims=0>(h) loss = Add(a, b)
}"""
    check(text, {"x": real(3, 2, 3), "h0": real(3), "w": real(3, 3)}, ["x", "h0", "w"], twice=True)


POWER = """
g (REAL[3,3] a, REAL[3] v0, int64 n) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  v = Loop(n, yes, v0)<body = step (int64 i, bool c, REAL[3] v) => (c2, v2) {
    c2 = Identity(c) w = MatMul(a, v) norm = ReduceL2<keepdims=1>(w) v2 = Div(w, norm)
  }>
  av = MatMul(a, v) va = Mul(v, av) loss = ReduceSum<keepdims=0>(va)
}"""


@pytest.mark.parametrize("count", [0, 1, 6])
def test_power_iteration(count: int) -> None:
    feeds = {"a": real(3, 3) + 2 * np.eye(3), "v0": real(3), "n": np.array(count)}
    check(POWER, feeds, ["a", "v0"], twice=count > 0)


def test_power_iteration_finds_the_gradient_of_the_largest_eigenvalue() -> None:
    a = np.diag([3.0, 1.0, 0.5]) + 0.1
    feeds = {"a": a, "v0": np.ones(3), "n": np.array(60)}
    got = check(POWER, feeds, ["a"])["a"]
    vector = np.linalg.eigh(a)[1][:, -1]
    np.testing.assert_allclose(got, np.outer(vector, vector), atol=1e-8)


def test_loop_that_stops_by_its_condition() -> None:
    text = """
g (REAL[N] x, REAL[N] f, REAL limit) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  y, steps = Loop(, yes, x)<body = step (int64 i, bool c, REAL[N] v) => (c2, v2, s) {
    v2 = Mul(v, f) s = Exp(v) total = ReduceSum<keepdims=0>(v2) c2 = Less(total, limit)
  }>
  p = ReduceSum<keepdims=0>(y) q = ReduceSum<keepdims=0>(steps) loss = Add(p, q)
}"""
    feeds = {"x": np.array([0.5, 0.7]), "f": np.array([1.5, 1.3]), "limit": np.array(9.0)}
    check(text, feeds, ["x", "f"], twice=True)


def test_loop_whose_state_grows() -> None:
    text = """
g (REAL[K] x, REAL w, int64 n) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  y = Loop(n, yes, x)<body = step (int64 i, bool c, v) => (c2, v2) {
    c2 = Identity(c) e = Mul(v, v) d = Mul(e, w) v2 = Concat<axis=0>(v, d)
  }>
  s = Sin(y) loss = ReduceSum<keepdims=0>(s)
}"""
    for count in (0, 1, 3):
        feeds = {"x": real(2), "w": np.array(0.7), "n": np.array(count)}
        check(text, feeds, ["x", "w"] if count else ["x"])


def test_loop_uses_its_iteration_number() -> None:
    text = """
g (REAL[T,3] x, REAL[3] h0, REAL[3] w) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  shape = Shape<start=0,end=1>(x)
  zero = Constant<value=int64[1]{0}>()
  n = Squeeze(shape, zero)
  h, hs = Loop(n, yes, h0)<body = step (int64 i, bool c, REAL[3] h) => (c2, h2, y) {
    c2 = Identity(c) xt = Gather<axis=0>(x, i) a = Mul(h, w) b = Add(a, xt) h2 = Tanh(b)
    y = Mul(h2, xt)
  }>
  p = ReduceSum<keepdims=0>(h) q = ReduceSum<keepdims=0>(hs) loss = Add(p, q)
}"""
    feeds = {"x": real(4, 3), "h0": real(3), "w": real(3)}
    check(text, feeds, ["x", "h0", "w"], twice=True)


IF = """
g (REAL[N,3] x, REAL[3,3] w, REAL[3] b, bool c) => (REAL loss) {
  y, z = If(c)<then_branch = yes () => (ty, tz) {
      m = MatMul(x, w) t = Tanh(m) ty = Mul(t, t) tz = Add(t, b)
    }, else_branch = no () => (ey, ez) {
      ey = Exp(x) k = Constant<value_int=2>() kf = CastLike(k, x) ez = Mul(ey, kf)
    }>
  yz = Mul(y, z) loss = ReduceSum<keepdims=0>(yz)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition: bool) -> None:
    feeds = {"x": real(2, 3), "w": real(3, 3), "b": real(3), "c": np.array(condition)}
    grads = check(IF, feeds, ["x", "w", "b"], twice=condition)
    assert np.any(grads["w"]) == condition
    assert np.any(grads["b"]) == condition


@pytest.mark.parametrize("count", [0, 3])
def test_loop_in_if_in_loop(count: int) -> None:
    text = """
g (REAL[3] x, REAL[3] w, REAL[3] u, int64 n) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  two = Constant<value=int64{2}>()
  y = Loop(n, yes, x)<body = outer (int64 i, bool c, REAL[3] v) => (c2, v2) {
    c2 = Identity(c) r = Mod(i, two) even = Equal(r, two) odd = Not(even) even2 = Cast<to=9>(r)
    v2 = If(even2)<then_branch = a () => (p) {
        p = Loop(two, yes, v)<body = inner (int64 j, bool d, REAL[3] s) => (d2, s2) {
          d2 = Identity(d) e = Mul(s, w) s2 = Sin(e)
        }>
      }, else_branch = b () => (q) { g = Mul(v, u) q = Tanh(g) }>
  }>
  e = Exp(y) loss = ReduceSum<keepdims=0>(e)
}"""
    feeds = {"x": real(3), "w": real(3), "u": real(3), "n": np.array(count)}
    check(text, feeds, ["x", "w", "u"])


def test_dropout_in_a_scan_uses_the_mask_it_drew() -> None:
    text = """
g (float[T,N,50] x) => (float loss, float[T,N,50] kept) {
  ratio = Constant<value=float{0.5}>()
  yes = Constant<value=bool{1}>()
  kept = Scan<num_scan_inputs=1, body = step (xt) => (y) { y = Dropout(xt, ratio, yes) }>(x)
  loss = ReduceSum<keepdims=0>(kept)
}"""
    x = np.ones((3, 2, 50), np.float32)
    graph = onnxtrain.differentiate(parse(text, "float"), wrt=["x"])
    _, kept, gradient = runtime(graph, {"x": x})
    np.testing.assert_array_equal(kept, gradient)  # both are 0 or 2, element for element
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert any(np.any(kept[0] != kept[t]) for t in (1, 2))


def test_a_node_without_a_rule_inside_a_body_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", "Sin"))
    text = """
g (float[T,3] x, float[3] w) => (float loss) {
  yes = Constant<value=bool{1}>()
  n = Constant<value=int64{2}>()
  y = Loop(n, yes, w)<body = outer (int64 i, bool c, float[3] v) => (c2, v2) {
    axes = Constant<value=int64[1]{0}>() c2 = Identity(c)
    ys = Scan<num_scan_inputs=1, body = step (xt) => (z) { m = Mul(xt, v) z = Sin(m) }>(x)
    v2 = ReduceSum<keepdims=0>(ys, axes)
  }>
  loss = ReduceSum<keepdims=0>(y)
}"""
    with pytest.raises(onnxtrain.errors.NoGradientError, match=r"ai\.onnx::Sin") as caught:
        onnxtrain.differentiate(parse(text, "float"), wrt=["w"])
    assert len(caught.value.blockers) == 1


YES = "yes = Constant<value=bool{1}>() zero = Constant<value=int64{0}>()"
SUM = "z = Mul(y, y) loss = ReduceSum<keepdims=0>(z)"


def carried(body: str, *, start: str = "s0 = SequenceEmpty<dtype=TYPE>()", after: str = "") -> str:
    """A Loop that carries the sequence t and the tensor h."""
    return f"""
g (REAL[3] x, REAL[3] w, int64 n) => (REAL loss) {{
  {YES} {start}
  s, last = Loop(n, yes, s0, x)<body = step (int64 i, bool c, seq(REAL[3]) t, REAL[3] h) =>
    (c2, t2, h2) {{ c2 = Identity(c) {body} }}>
  {after or "y = ConcatFromSequence<axis=0>(s)"} {SUM}
}}"""


@pytest.mark.parametrize(
    "text",
    [
        # a list to which every iteration appends, as torch's scripted modules write it
        carried("p = Mul(h, w) h2 = Sin(p) t2 = SequenceInsert(t, h2)"),
        carried(
            "p = Mul(h, w) h2 = Sin(p) t2 = SequenceInsert(t, h2)",
            start="e = Exp(w) s0 = SequenceConstruct(x, e)",
        ),
        # in front, and then another one taken away
        carried(
            "p = Mul(h, w) h2 = Sin(p) u = SequenceInsert(t, h2, zero) v = SequenceInsert(u, p) "
            "t2 = SequenceErase(v, zero)",
            start="s0 = SequenceConstruct(x, w)",
        ),
        # the final state too, and an element of the sequence
        carried(
            "p = Mul(h, w) h2 = Sin(p) t2 = SequenceInsert(t, p)",
            after="f = SequenceAt(s, zero) y = Mul(f, last)",
        ),
        # elements read while it grows, from both ends
        carried(
            "e = SequenceAt(t, zero) f = SequenceAt(t, minus) p = Mul(e, w) q = Mul(p, f) "
            "h2 = Add(q, h) t2 = SequenceInsert(t, h2)",
            start="minus = Constant<value=int64{-1}>() s0 = SequenceConstruct(x)",
        ),
        carried(
            "e = SequenceAt(t, i) h2 = Mul(e, w) t2 = SequenceInsert(t, h2, minus)",
            start="minus = Constant<value=int64{-1}>() s0 = SequenceConstruct(x, w)",
        ),
        # all of it joined while it grows
        carried(
            "p = Mul(h, w) t2 = SequenceInsert(t, p) k = ConcatFromSequence<axis=0>(t2) "
            "m = ReduceMean<keepdims=0>(k) h2 = Mul(p, m)"
        ),
    ],
)
def test_a_loop_that_carries_a_sequence(text: str) -> None:
    feeds = {"x": [0.3, -0.7, 1.1], "w": [1.2, 0.4, -0.8], "n": 4}
    check(text, feeds, ["x", "w"])


def test_a_loop_that_reads_a_list() -> None:
    """The sequence is captured: its gradient is the sum of the iterations'."""
    text = f"""
g (REAL[4, 3] x, REAL[3] w, int64 n) => (REAL loss) {{
  {YES}
  s = SplitToSequence<axis=0, keepdims=0>(x)
  y = Loop(n, yes, w)<body = step (int64 i, bool c, REAL[3] h) => (c2, h2) {{
    c2 = Identity(c) e = SequenceAt(s, i) p = Mul(h, e) q = SequenceAt(s, zero) h2 = Add(p, q)
  }}>
  {SUM}
}}"""
    rng = np.random.default_rng(0)
    check(text, {"x": rng.uniform(-1, 1, (4, 3)), "w": rng.uniform(-1, 1, 3), "n": 3}, ["x", "w"])


@pytest.mark.parametrize(
    "body",
    [
        "t2 = SequenceConstruct(h, w) h2 = Mul(h, w)",  # a new sequence each time, longer at first
        "e = SequenceAt(t, zero) h2 = Mul(e, w) t2 = SequenceConstruct(h2)",  # made of the old one
        "e = SequenceAt(t, zero) f = Mul(e, w) h2 = Sin(h) t2 = SequenceConstruct(f, h2, e)",
        # the length changes from iteration to iteration
        (
            "k = ConcatFromSequence<axis=0>(t) m = ReduceMean<keepdims=0>(k) h2 = Mul(h, m) "
            "u = SequenceConstruct(h2) t2 = SequenceInsert(u, w)"
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_loop_that_replaces_the_sequence_that_it_carries(body: str, count: int) -> None:
    text = carried(body, start="s0 = SequenceConstruct(x)")
    feeds = {"x": [0.3, -0.7, 1.1], "w": [1.2, 0.4, -0.8], "n": count}
    check(text, feeds, ["x", "w"])


def test_gradient_reaches_only_through_the_state() -> None:
    """A state that is constant at first depends on the weight from the second iteration on."""
    text = """
g (REAL[3] w, int64 n) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  zero = Sub(w, w) ones = Cos(zero)
  y = Loop(n, yes, ones)<body = step (int64 i, bool c, REAL[3] v) => (c2, v2) {
    c2 = Identity(c) v2 = Mul(v, w)
  }>
  loss = ReduceSum<keepdims=0>(y)
}"""
    got = check(text, {"w": np.array([0.5, 1.0, 2.0]), "n": np.array(3)}, ["w"])["w"]
    np.testing.assert_allclose(got, 3 * np.array([0.5, 1.0, 2.0]) ** 2)


@pytest.mark.parametrize("opset", [18, 19, 20, 21])
def test_every_opset_that_is_emitted(opset: int) -> None:
    check(SCAN_RNN, SCAN_FEEDS, ["x", "h0", "w", "r", "b"], opset=opset)


def test_dynamic_iteration_count_of_one_session() -> None:
    graph = onnxtrain.differentiate(parse(SCAN_RNN, "float"), wrt=["w"])
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for steps, batch in ((1, 2), (6, 1), (3, 4)):
        feeds = {**SCAN_FEEDS, "x": real(steps, batch, 3), "h0": real(batch, 4)}
        exact = onnxtrain.differentiate(parse(SCAN_RNN, "double"), wrt=["w"])
        expected = reference(exact, cast(feeds, np.float64))[1]
        got = session.run(None, cast(feeds, np.float32))[1]
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
