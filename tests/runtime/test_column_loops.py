"""Loops over time that take columns through all steps: the numbers of a Scan, on any threads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.operators import COLUMN_LOOP as MARK
from onnxtrain.passes import column_loops as marking
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion.columns import Columns
from onnxtrain.runtime.fusion.library import is_available
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session import column_loops
from onnxtrain.runtime.session.column_loops import with_column_loops
from onnxtrain.runtime.session.devices import create_session, session_options

Array = np.ndarray[Any, Any]


def has_kernel() -> bool:
    if not is_available():
        return False
    from onnxtrain.runtime.fusion import tiles

    return tiles.is_available()


pytestmark = pytest.mark.skipif(not has_kernel(), reason="needs numba, Linux and AVX-512")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZES = [  # steps, sequences, input size, hidden size
    (5, 16, 3, 4),
    (1, 17, 9, 30),
    (7, 33, 1, 29),
    (3, 48, 30, 57),
]
CELLS = {
    "LSTM": ("LSTM", ""),
    "LSTM, lengths": ("LSTM", "lengths"),
    "LSTM, peepholes": ("LSTM", "peepholes"),
    "LSTM, lengths and peepholes": ("LSTM", "lengths peepholes"),
    "LSTM, both ways": ("LSTM", "both"),
    "LSTM, backwards": ("LSTM", "reverse"),
    "GRU": ("GRU", ""),
    "GRU, reset before": ("GRU", "before"),
    "GRU, lengths": ("GRU", "lengths"),
    "RNN": ("RNN", ""),
    "RNN, lengths": ("RNN", "lengths"),
}


def layer(cell: str, options: str, sizes: tuple[int, int, int, int], *, is_open: bool) -> Any:
    """A model of one layer, and what it is fed."""
    steps, batch, width, hidden = sizes
    rng, directions = np.random.default_rng(3), 2 if "both" in options else 1
    rows = GATES[cell] * hidden

    def normal(*shape: int) -> Array:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    feeds = {
        "x": normal(steps, batch, width),
        "w": normal(directions, rows, width),
        "r": normal(directions, rows, hidden),
        "b": normal(directions, 2 * rows),
    }
    names = ["x", "w", "r", "b", "", ""]
    if "lengths" in options:
        feeds["lengths"] = rng.integers(1, steps + 1, batch).astype(np.int32)
        names[4] = "lengths"
    if "peepholes" in options:
        feeds["p"] = normal(directions, 3 * hidden)
        names += ["", "p"]
    attributes: dict[str, Any] = {"hidden_size": hidden}
    if cell == "GRU":
        attributes["linear_before_reset"] = 0 if "before" in options else 1
    if "both" in options or "reverse" in options:
        attributes["direction"] = "bidirectional" if "both" in options else "reverse"
    helper = onnx.helper
    node = helper.make_node(cell, names, ["y", "h"], **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype),
            [d if not is_open or i != axis else "batch" for i, d in enumerate(value.shape)],
        )
        for name, value in feeds.items()
        for axis in [{"x": 1, "lengths": 0}.get(name, -1)]
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("y", "h")]
    graph = helper.make_graph([node], "layer", inputs, outputs)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9), feeds


def gradients(
    cell: str, options: str, sizes: tuple[int, int, int, int], *, is_open: bool = False
) -> tuple[bytes, dict[str, Array]]:
    model, feeds = layer(cell, options, sizes, is_open=is_open)
    wrt = [name for name in feeds if name != "lengths"]
    both = onnxtrain.differentiate(model, wrt=wrt, of=["y", "h"], vjp=True)
    rng, shapes = np.random.default_rng(4), {}
    plain = create_session(model.SerializeToString(), session_options(threads=1)).run(None, feeds)
    for name, value in zip(("y", "h"), plain, strict=True):
        shapes[f"{name}_grad"] = rng.standard_normal(value.shape).astype(np.float32)
    wanted = {i.name for i in both.graph.input}
    feeds = {name: value for name, value in {**feeds, **shapes}.items() if name in wanted}
    return both.SerializeToString(), feeds


def outline_of(content: bytes) -> Outline:
    outline = Outline.of(content)
    assert outline is not None
    return outline


def loops_in(graph: onnx.GraphProto) -> int:
    """How many there are, in branches too."""
    count = 0
    for node in graph.node:
        count += node.op_type == "ColumnLoop"
        count += sum(loops_in(a.g) for a in node.attribute if a.type == a.GRAPH)
    return count


def changed(content: bytes) -> onnx.ModelProto:
    return onnx.load_from_string(with_column_loops(outline_of(content)) or content)


def run(content: bytes, feeds: dict[str, Array], threads: int = 1) -> list[Array]:
    return list(create_session(content, session_options(threads=threads)).run(None, feeds))


def check(monkeypatch: pytest.MonkeyPatch, content: bytes, feeds: dict[str, Array]) -> None:
    ours, with_two = run(content, feeds), run(content, feeds, threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(column_loops, "_has_tiles", lambda: False)
        plain = run(content, feeds)
    for a, b, c in zip(ours, with_two, plain, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.shape == c.shape
        np.testing.assert_allclose(
            a, c, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(c).max(initial=0.0)))
        )


@pytest.fixture(autouse=True)
def small_loops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marking, "ELEMENTS", 1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_the_numbers_of_a_scan(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: tuple[int, int, int, int]
) -> None:
    content, feeds = gradients(*CELLS[name], sizes)
    check(monkeypatch, content, feeds)


@pytest.mark.parametrize("name", CELLS)
def test_forward_and_backward_are_loops(name: str) -> None:
    content, _ = gradients(*CELLS[name], (4, 32, 16, 257))
    model = changed(content)
    is_both = "both" in CELLS[name][1]
    assert loops_in(model.graph) == (4 if is_both else 2)
    assert not any(n.op_type == "Scan" for n in model.graph.node)


def operators_of(content: bytes) -> list[str]:
    return [node.op_type for node in changed(content).graph.node]


@pytest.mark.parametrize("batch", [16, 20, 32, 33])
def test_the_gradient_of_the_input_is_computed_in_the_loop(batch: int) -> None:
    is_inside = batch % 16 == 0  # else columns that are not there would be computed, too
    content, _ = gradients("LSTM", "", (4, batch, 48, 64))
    assert operators_of(content).count("MatMul") == 1 - is_inside


def test_weights_that_do_not_fit_into_the_cache_are_not_multiplied_in_the_loop() -> None:
    content, _ = gradients("LSTM", "", (2, 16, 256, 257))
    assert "MatMul" in operators_of(content)


@pytest.mark.parametrize("name", CELLS)
def test_biases_are_summed_in_the_loop(name: str) -> None:
    content, _ = gradients(*CELLS[name], (4, 32, 16, 257))
    model = changed(content)
    makers = {out: node for node in model.graph.node for out in node.output}
    sums = [n for n in model.graph.node if n.op_type == "ReduceSum"]
    in_loops = [n for n in sums if makers[n.input[0]].op_type == "ColumnLoop"]
    assert in_loops
    assert not any(makers[n.input[0]].op_type == "Flatten" for n in sums)


SCAN = (
    '<ir_version: 8, opset_import: ["": 18]> g (float[R,B] s, float[T,R,B] x, float[R,R] w, '
    "float[M,R] v) => (float[R,B] last, {more}) <int64[1] one = {{1}}, int64[1] zero = {{0}}> "
    "{{ last, all = Scan <num_scan_inputs = 1, body = b (float[R,B] old, float[R,B] now) => "
    "(float[R,B] new, float[R,B] out) {{ {body} }}> (s, x) {behind} }}"
)
"""A loop, and what is behind it."""
STEP = "p = MatMul(w, old) new = Add(p, now) out = Tanh(new)"
TOTAL = "t = Transpose <perm = [1, 0, 2]> (all) f = Flatten <axis = 1> (t) "
BEHIND = {  # the body, what is behind the loop, results, and how many nodes are left of that
    "a product": (STEP, "more = MatMul(v, all)", "float[T,M,B] more", 0),
    "two products": (
        STEP, "p1 = MatMul(v, all) p2 = MatMul(w, all) more = Concat <axis = 1> (p1, p2)",
        "float[T,N,B] more", 1,
    ),
    "a product and the stack": (STEP, "more = MatMul(v, all)", "float[T,M,B] more, all", 0),
    "a product of what is joined": (
        "p = MatMul(w, old) new = Add(p, now) out = Concat <axis = 0> (new, old)",
        "more = MatMul(v, all)", "float[T,M,B] more", 0,
    ),
    "a matrix that is made behind it": (
        STEP, "m = Identity(v) n = Neg(m) more = MatMul(n, all)", "float[T,M,B] more", 3,
    ),
    "a sum": (STEP, TOTAL + "more = ReduceSum <keepdims = 0> (f, one)", "float[R] more", 1),
    "a sum that is a column": (STEP, TOTAL + "more = ReduceSum(f, one)", "float[R,U] more", 1),
    "a sum and the stack": (
        STEP, TOTAL + "more = ReduceSum(f, one)", "float[R,U] more, float[R,S] f", 2,
    ),
    "a sum over rows": (STEP, TOTAL + "more = ReduceSum(f, zero)", "float[U,S] more", 2),
    "a sum of another form": (
        STEP, TOTAL.replace("axis = 1", "axis = 2") + "more = ReduceSum(f, one)",
        "float[S,U] more", 2,
    ),
    "a slice that is the next state": (
        "p = MatMul(w, old) out = Add(p, now) new = Identity(now)", "more = MatMul(v, all)",
        "float[T,M,B] more", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 16, 50])
@pytest.mark.parametrize("columns", [1, 16, 17, 32])
@pytest.mark.parametrize("name", BEHIND)
def test_what_is_behind_a_loop(
    monkeypatch: pytest.MonkeyPatch, name: str, columns: int, rows: int
) -> None:
    body, behind, more, left = BEHIND[name]
    model = onnx.parser.parse_model(SCAN.format(body=body, behind=behind, more=more))
    for node in model.graph.node:
        if node.op_type in ("Scan", "MatMul"):
            node.doc_string = MARK
    rng, steps = np.random.default_rng(0), 5
    shapes = {"s": (rows, columns), "x": (steps, rows, columns), "w": (rows, rows)}
    shapes["v"] = (3, 2 * rows if "joined" in name else rows)
    feeds = {n: rng.standard_normal(d).astype(np.float32) for n, d in shapes.items()}
    content = model.SerializeToString()
    assert operators_of(content).count("ColumnLoop") == 1
    assert len(operators_of(content)) == 1 + left
    check(monkeypatch, content, feeds)


CROSSED = {  # bodies with two states: the next ones and what is stacked
    "states that change places": "p = MatMul(w, a) q = Add(p, now) na = Add(b, now) nb = Tanh(q)",
    "parts of what they are joined to": (
        "j = Concat <axis = 0> (a, b, now) p = MatMul(w, a) q = Add(p, now) "
        "x1, nb, na = Split <axis = 0, num_outputs = 3> (j) r = Add(x1, q)"
    ),
    "joined before and behind the product": (
        "j = Concat <axis = 0> (a, now) k = MatMul(w, b) n1 = Mul(k, now) n2 = Sub(a, k) "
        "na = Tanh(n1) l = Concat <axis = 0> (n1, n2) nb, y = Split <axis = 0, num_outputs = 2> (l)"
    ),
}


@pytest.mark.parametrize("columns", [5, 32])
@pytest.mark.parametrize("rows", [3, 16, 64])
@pytest.mark.parametrize("name", CROSSED)
def test_two_states(monkeypatch: pytest.MonkeyPatch, name: str, rows: int, columns: int) -> None:
    stacked = ["a1", "b1", "n1"]
    body = CROSSED[name] + " a1 = Neg(na) b1 = Neg(nb) n1 = Neg(now)"
    if "before and behind" in name:
        body = CROSSED[name] + " a1 = Neg(j) b1 = Neg(l)"
        stacked = ["a1", "b1", "j", "l", "y"]
    elif "parts" in name:
        stacked += ["j", "r"]
    results = "".join(f", all{i}" for i in range(len(stacked)))
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[R,B] s, float[R,B] t, float[T,R,B] x, '
        f"float[R,R] w) => (float[R,B] u, float[R,B] v{results.replace(', ', ', float[T,M,B] ')}) "
        f"{{ u, v{results} = Scan <num_scan_inputs = 1, body = b (float[R,B] a, float[R,B] b, "
        f"float[R,B] now) => (na, nb, {', '.join(stacked)}) {{ {body} }}> (s, t, x) }}"
    )
    model = onnx.parser.parse_model(text)
    model.graph.node[0].doc_string = MARK
    rng, content = np.random.default_rng(0), model.SerializeToString()
    shapes = {"s": (rows, columns), "t": (rows, columns), "x": (6, rows, columns)}
    shapes["w"] = (rows, rows)
    feeds = {n: 0.3 * rng.standard_normal(d).astype(np.float32) for n, d in shapes.items()}
    assert operators_of(content) == ["ColumnLoop"]
    check(monkeypatch, content, feeds)


@pytest.mark.parametrize("batch", [1, 4, 40])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_batch_size_that_is_open(monkeypatch: pytest.MonkeyPatch, cell: str, batch: int) -> None:
    content, feeds = gradients(cell, "", (6, batch, 24, 64), is_open=True)
    assert loops_in(changed(content).graph) == 2
    check(monkeypatch, content, feeds)


def test_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[4,B] s, float[T,4,B] x, float[4,4] w) '
        "=> (float[4,B] last, float[T,4,B] all) { last, all = Scan <num_scan_inputs = 1, body = b "
        "(float[4,B] old, float[4,B] now) => (float[4,B] new, float[4,B] out) "
        "{ p = MatMul(w, old) new = Add(p, now) out = Tanh(new) }> (s, x) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.node[0].doc_string = MARK
    content = model.SerializeToString()
    assert loops_in(changed(content).graph) == 1
    for steps, batch in ((0, 5), (3, 0), (2, 16)):
        rng = np.random.default_rng(0)
        shapes = {"s": (4, batch), "x": (steps, 4, batch), "w": (4, 4)}
        feeds = {n: rng.standard_normal(d).astype(np.float32) for n, d in shapes.items()}
        if steps:
            check(monkeypatch, content, feeds)
        else:  # where onnxruntime's Scan fails
            last, stack = run(content, feeds)
            np.testing.assert_array_equal(last, feeds["s"])
            assert stack.shape == (0, 4, 5)


BODIES = {
    "columns that are mixed": "p = MatMul(w, old) q = MatMul(p, v) new = Add(q, now) out = Tanh(p)",
    "a reduction": "p = MatMul(w, old) q = ReduceMax <axes = [0]> (p) new = Add(q, now) out = p",
    "a product that is turned": "p = Gemm <transB = 1> (w, old) new = Add(p, now) out = Tanh(p)",
    "rows side by side": "p = MatMul(w, old) new = Add(p, now) out = Concat <axis = 1> (p, p)",
    "a foreign operator": "p = MatMul(w, old) new = Add(p, now) out = Sin(p)",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_else_a_body_may_do_is_left_alone(name: str) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[4,4] s, float[3,4,4] x, float[4,4] w, '
        "float[4,4] v) => (last, all) { last, all = Scan <num_scan_inputs = 1, body = b "
        f"(old, now) => (new, out) {{ {BODIES[name].replace('out = p', 'out = Identity(p)')} }}> "
        "(s, x) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.node[0].doc_string = MARK
    assert with_column_loops(outline_of(model.SerializeToString())) is None


def test_a_mark_that_is_wrong_makes_an_error() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[B] s, float[T,4] x, float[4,4] w) '
        "=> (float[B] last) { last = Scan <num_scan_inputs = 1, body = b (float[B] old, float[4] "
        "now) => (float[B] new) { p = MatMul(w, old) new = Add(p, now) }> (s, x) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.node[0].doc_string = MARK
    shapes = {"s": (4,), "x": (2, 4), "w": (4, 4)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(Exception, match="shapes that its node was made for"):
        run(model.SerializeToString(), feeds)


GOOD = "1 1 1 1 0 0 3 3 1 2 2 0 -1"
BAD = {
    "": "ends too early",
    "a": "not made of numbers",
    "0 1 0 0 0 0": "no states",
    "1 0 0 0 0 0": "no states",
    "99 1 0 0 0": "too many operands",
    "1 1 1 1 2 0 3 3 1 2 2 0 -1": "a way that is none",
    "1 1 1 1 0 5 3 3 1 2 2 0 -1": "a way that is none",
    "1 1 1 1 0 0 3 3 1 2 0 1 -1": "cannot be done",
    "1 1 1 1 0 0 3 3 1 2 2 7 -1": "cannot be done",
    "1 1 1 1 0 0 3 3 1 2 2 0 2": "cannot be done",
    "1 1 1 1 0 0 9 3 1 2 2 0 -1": "has not computed",
    "1 1 1 1 0 0 2 3 1 2 2 0 -1": "has not computed",
    "1 1 1 1 0 0 3 3 1 7 2 0 -1": "an instruction that is none",
    "1 1 1 1 0 0 3 3 99": "too many instructions",
    "1 1 1 1 0 0 3 3 1 0 0": "cannot be done",
    "1 1 1 1 0 0 3 3 1 0 9999": "too long",
    "1 1 1 1 0 0 3 3 1 1 0 0": "cannot be done",
    "1 1 1 1 0 0 3 3 1 3 0 1": "not made of numbers",
    "1 1 1 1 0 0 3 3 1 2 2 0 -1 5": "behind its end",
}


def test_a_sound_program_is_read() -> None:
    assert Columns.parse(GOOD).text() == GOOD


@pytest.mark.parametrize("text", BAD)
def test_programs_that_cannot_be_carried_out(text: str) -> None:
    with pytest.raises(ProgramError, match=BAD[text]):
        Columns.parse(text)


def test_a_mark_between_two_nodes_is_passed_by() -> None:
    content, _ = gradients("LSTM", "", (2, 16, 8, 48))
    outline = outline_of(content)
    first, last = outline.nodes[0], outline.nodes[-1]
    cut = dataclasses.replace(outline, nodes=[first, last])
    assert list(cut.mentioning(MARK.encode())) == []
