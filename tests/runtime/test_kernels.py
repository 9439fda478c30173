"""Kernels of our own in sessions: the numbers of the standard operators, on any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.operators import KERNEL
from onnxtrain.passes.partition import partition
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.library import is_available
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.kernels import with_own_kernels

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no numba, or no Linux")
HEAD = '<ir_version: 8, opset_import: ["": 18]> '


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def marked(model: onnx.ModelProto, *operators: str) -> bytes:
    """With marks on nodes that are too small for the pass."""
    for node in model.graph.node:
        if node.op_type in operators:
            node.doc_string = KERNEL
    return model.SerializeToString()


def backward(text: str, wrt: str, *operators: str) -> bytes:
    both = onnxtrain.differentiate(parsed(text), wrt=[wrt], vjp=True)
    return marked(partition(both, ["y_grad"], [f"{wrt}_grad"]).backward, *operators)


def operators_of(content: bytes) -> list[str]:
    """Of the model as a session gets it."""
    outline = Outline.of(content)
    assert outline is not None
    changed = with_own_kernels(outline)
    return [n.op_type for n in onnx.load_from_string(changed or content).graph.node]


def run(content: bytes, feeds: dict[str, Any], threads: int = 1) -> list[np.ndarray[Any, Any]]:
    session = create_session(content, session_options(threads=threads))
    return list(session.run(None, feeds))


def both_ways(
    monkeypatch: pytest.MonkeyPatch, content: bytes, feeds: dict[str, Any]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Our results, the same with one and two threads, and those of the standard operators."""
    ours, with_two = run(content, feeds), run(content, feeds, threads=2)
    for a, b in zip(ours, with_two, strict=True):
        np.testing.assert_array_equal(a, b)
    with monkeypatch.context() as patch:
        patch.setenv("ONNXTRAIN_NO_FUSION", "1")
        plain = run(content, feeds)
    for a, b in zip(ours, plain, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
    return ours, plain


# --- rows added up by number ----------------------------------------------------------------------

TABLES = [
    (1000, 64, 16384), (1000, 63, 5000), (50, 8, 0), (33, 1, 40), (40, 3, 7), (2000, 300, 100),
    (1_000, 5, 60_000), (70_000, 1, 50_000),
]  # fmt: skip


def embedding(rows: int, width: int, tokens: str = "N") -> bytes:
    text = f"g (float[{rows},{width}] x, int64[{tokens}] i) => (float[{tokens},{width}] y) {{ "
    return backward(text + "y = Gather(x, i) }", "x", "ScatterND", "ScatterElements")


@pytest.mark.parametrize(("rows", "width", "tokens"), TABLES)
def test_embedding(monkeypatch: pytest.MonkeyPatch, rows: int, width: int, tokens: int) -> None:
    content, rng = embedding(rows, width), np.random.default_rng(0)
    assert operators_of(content)[-1] == "AddRows"
    assert "TopK" not in operators_of(content)
    indices = rng.integers(-rows, rows, tokens)
    dy = rng.standard_normal((tokens, width)).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"i": indices, "y_grad": dy})
    expected = np.zeros((rows, width), np.float32)
    np.add.at(expected, indices, dy)
    np.testing.assert_array_equal(ours, expected)  # in the same order
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def test_open_sizes_of_the_table_leave_the_modulo(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[R,16] x, int64[N,M] i) => (float[N,M,16] y) { y = Gather(x, i) }"
    content = backward(text, "x", "ScatterND", "ScatterElements")
    assert "AddRows" in operators_of(content)
    rng = np.random.default_rng(0)
    feeds = {
        "x": np.zeros((50, 16), np.float32), "i": rng.integers(-50, 50, (4, 30)),
        "y_grad": rng.standard_normal((4, 30, 16)).astype(np.float32),
    }  # fmt: skip
    wanted = {i.name for i in onnx.load_from_string(content).graph.input}
    (ours,), (plain,) = both_ways(
        monkeypatch, content, {k: v for k, v in feeds.items() if k in wanted}
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def test_not_a_number_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    dy = np.ones((5, 8), np.float32)
    dy[1], dy[3] = np.nan, np.inf
    feeds = {"i": np.array([3, 5, 3, 7, 0]), "y_grad": dy}
    (ours,), (plain,) = both_ways(monkeypatch, embedding(40, 8), feeds)
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("index", [40, -41, 2**62, -(2**63)])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_out_of_range_is_an_error(index: int, threads: int) -> None:
    indices = np.zeros(20_000, np.int64)
    indices[15_000] = index
    feeds = {"i": indices, "y_grad": np.ones((20_000, 8), np.float32)}
    with pytest.raises(Exception, match="out of range"):
        run(embedding(40, 8), feeds, threads)


def test_what_does_not_match_stays() -> None:
    """Another constant or attribute anywhere in it: the nodes compute something else."""
    content = embedding(1000, 64)
    assert "AddRows" in operators_of(content)
    for operator, name, value in (("CumSum", "exclusive", 1), ("ScatterND", "reduction", "add")):
        model = onnx.load_from_string(content)
        node = next(n for n in model.graph.node if n.op_type == operator)
        node.attribute.append(onnx.helper.make_attribute(name, value))
        assert "AddRows" not in operators_of(model.SerializeToString())
    model = onnx.load_from_string(content)
    model.graph.node[-1].doc_string = ""
    assert "AddRows" not in operators_of(model.SerializeToString())
    model = onnx.load_from_string(content)
    zeros = next(n for n in model.graph.node if n.op_type == "ConstantOfShape")
    zeros.attribute[0].t.raw_data = np.float32(1).tobytes()
    zeros.attribute[0].t.ClearField("float_data")
    assert "AddRows" not in operators_of(model.SerializeToString())


def test_another_type_stays() -> None:
    text = "g (double[1000,64] x, int64[N] i) => (double[N,64] y) { y = Gather(x, i) }"
    assert "AddRows" not in operators_of(backward(text, "x", "ScatterND"))


def test_the_pass_marks_what_is_large() -> None:
    def marks(rows: int) -> int:
        text = f"g (float[{rows},8] x, int64[9] i) => (float[9,8] y) {{ y = Gather(x, i) }}"
        model = onnxtrain.differentiate(parsed(text), wrt=["x"], vjp=True)
        return sum(node.doc_string == KERNEL for node in model.graph.node)

    assert (marks(100), marks(10_000)) == (0, 1)


# --- attributes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "a", "1 0 0 1 1 0 0", "1 0 2 1 1 2 0", "4 0", f"{2**40}"])
def test_attributes_that_are_not_sound(text: str) -> None:
    for operator in operators.OPERATORS:
        with pytest.raises(ProgramError):
            operator.parse(text)
