"""Kernels of our own in sessions: the numbers of the standard operators, on any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.operators import ACROSS, KERNEL
from onnxtrain.passes.partition import partition
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.library import is_available, register_path
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.kernels import with_own_kernels
from onnxtrain.runtime.session.rows_in_place import with_rows_in_place

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


def outline_of(content: bytes) -> Outline:
    outline = Outline.of(content)
    assert outline is not None
    return outline


def operators_of(content: bytes) -> list[str]:
    """Of the model as a session gets it."""
    changed = with_own_kernels(outline_of(content))
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


# --- elements added up by their places ------------------------------------------------------------

PICKED = [
    ((30, 7), (30, 1), 1), ((30, 7), (30, 12), -1), ((9, 4, 5, 6), (9, 1, 5, 6), 1),
    ((8, 300), (20, 300), 0), ((500, 40, 3), (500, 5, 3), 1), ((40,), (1000,), 0),
    ((9, 8), (4, 5), 1), ((9, 8, 7), (3, 20, 2), 1), ((5, 6), (0, 6), 0), ((5, 6), (5, 0), 1),
]  # fmt: skip


def picking(shape: tuple[int, ...], picked: tuple[int, ...], axis: int) -> bytes:
    x, i = (", ".join(map(str, sizes)) for sizes in (shape, picked))
    text = f"g (float[{x}] x, int64[{i}] i) => (float[{i}] y) {{ y = GatherElements<axis = {axis}>"
    return backward(text + "(x, i) }", "x", "ScatterElements")


@pytest.mark.parametrize(("shape", "picked", "axis"), PICKED)
def test_elements_that_were_picked(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], picked: tuple[int, ...], axis: int
) -> None:
    content, rng = picking(shape, picked, axis), np.random.default_rng(0)
    assert {"AddElements", "AddRows"} & {*operators_of(content)}
    indices = rng.integers(-shape[axis], shape[axis], picked)
    dy = rng.standard_normal(picked).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"i": indices, "y_grad": dy})
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["add", "none", "max", "min"])
@pytest.mark.parametrize(("shape", "picked", "axis"), PICKED)
def test_elements_scattered_over_a_tensor(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    picked: tuple[int, ...],
    axis: int,
    reduction: str,
) -> None:
    x, i = (", ".join(map(str, sizes)) for sizes in (shape, picked))
    text = f"g (float[{x}] x, int64[{i}] i, float[{i}] u) => (float[{x}] y) "
    said = f'axis = {axis}, reduction = "{reduction}"'
    model = parsed(f"{text} {{ y = ScatterElements<{said}>(x, i, u) }}")
    content, rng = marked(model, "ScatterElements"), np.random.default_rng(0)
    changed = onnx.load_from_string(with_own_kernels(outline_of(content)) or b"")
    assert changed.graph.node[0].domain
    values, updates = (rng.standard_normal(s).astype(np.float32) for s in (shape, picked))
    values.reshape(-1)[::11], updates.reshape(-1)[::7] = np.nan, np.nan
    indices = rng.integers(-shape[axis], shape[axis], picked)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": values, "i": indices, "u": updates})
    np.testing.assert_array_equal(ours, plain)


def test_the_pass_marks_what_scatters_many() -> None:
    def marks(rows: int, reduction: str, index: str = "int64") -> int:
        model = parsed(f"""g (float[90,100] x, {index}[{rows},100] i, float[{rows},100] u)
            => (float[90,100] y) {{ y = ScatterElements<reduction = "{reduction}">(x, i, u) }}""")
        graded = onnxtrain.differentiate(model, wrt=["u"], vjp=True)
        scatters = [node for node in graded.graph.node if node.op_type == "ScatterElements"]
        return sum(node.doc_string == KERNEL for node in scatters)

    assert [marks(90, "add"), marks(90, "none"), marks(9, "add")] == [1, 1, 0]
    assert [marks(90, "max"), marks(90, "min"), marks(90, "mul")] == [2, 2, 1]  # and how many win
    assert marks(90, "add", "int32") == 0


def test_columns_that_were_taken_twice_are_added_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ends of a resized axis: the second is added to the sums of the first."""
    model = parsed("""g (float[900,40] x, int64[30] i, int64[30] j) => (float[900,30] y) {
        a = Gather<axis = 1>(x, i) b = Gather<axis = 1>(x, j) c = Sin(b) y = Mul(a, c) }""")
    graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    content, rng = graded.SerializeToString(), np.random.default_rng(0)
    names = operators_of(content)
    assert [n for n in names if n.endswith("Elements")] == ["AddElements", "ScatterElements"]
    changed = onnx.load_from_string(with_own_kernels(outline_of(content)) or b"")
    assert all(n.domain for n in changed.graph.node if n.op_type == "ScatterElements")
    feeds = {"i": rng.integers(0, 40, 30), "j": rng.integers(-40, 40, 30)}
    for name, shape in (("x", (900, 40)), ("y_grad", (900, 30))):
        feeds[name] = rng.standard_normal(shape).astype(np.float32)
    ours, plain = both_ways(monkeypatch, content, feeds)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "picked", "axis"), PICKED)
def test_elements_that_are_read(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], picked: tuple[int, ...], axis: int
) -> None:
    content, rng = reading(shape, picked, axis), np.random.default_rng(0)
    changed = onnx.load_from_string(with_own_kernels(outline_of(content)) or b"")
    assert changed.graph.node[0].domain
    feeds = {"i": rng.integers(-shape[axis], shape[axis], picked)}
    x = rng.standard_normal(shape).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds | {"x": x})
    np.testing.assert_array_equal(ours, plain)


def reading(shape: tuple[int, ...], picked: tuple[int, ...], axis: int) -> bytes:
    x, i = (", ".join(map(str, sizes)) for sizes in (shape, picked))
    text = f"g (float[{x}] x, int64[{i}] i) => (float[{i}] y) "
    return marked(parsed(f"{text} {{ y = GatherElements<axis = {axis}>(x, i) }}"), "GatherElements")


@pytest.mark.parametrize("picked", [(30, 2), (20, 2)])
@pytest.mark.parametrize("index", [7, -8, 2**62, -(2**63)])
def test_an_element_read_out_of_range_is_an_error(index: int, picked: tuple[int, int]) -> None:
    indices = np.zeros(picked, np.int64)
    indices[5, 1] = index
    with pytest.raises(Exception, match="index is out of range"):
        run(reading((30, 7), picked, 1), {"i": indices, "x": np.zeros((30, 7), np.float32)})


@pytest.mark.parametrize(("axis", "picked"), [(2, (30, 2)), (1, (31, 2)), (1, (2,)), (0, (30, 8))])
def test_places_that_do_not_fit_are_an_error(axis: int, picked: tuple[int, ...]) -> None:
    """As a wrong mark, or a file with other sizes, has them."""
    model = onnx.load_from_string(reading((30, 7), (30, 2), axis))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    feeds = {"i": np.zeros(picked, np.int64), "x": np.zeros((30, 7), np.float32)}
    with pytest.raises(Exception, match=r"shapes that its node was made for|axis"):
        run(model.SerializeToString(), feeds)


def test_the_pass_marks_what_reads_many_elements() -> None:
    def marks(rows: int, index: str = "int64") -> int:
        model = parsed(f"""g (float[90,100] x, {index}[{rows},100] i) => (float[{rows},100] y)
            {{ y = GatherElements(x, i) }}""")
        graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
        return sum(n.doc_string == KERNEL for n in graded.graph.node if n.op_type.startswith("G"))

    assert [marks(90), marks(90, "int32")] == [1, 0]


TAKEN = [
    ((30, 17), (12,), 1), ((500, 40), (60,), -1), ((7, 40, 3), (9,), 1), ((6, 40, 2), (3, 4), -2),
    ((30, 17), (), 1), ((30, 17), (0,), 1), ((5, 30_000), (40_000,), 1),
]  # fmt: skip


def taking(shape: tuple[int, ...], taken: tuple[int, ...], axis: int) -> onnx.ModelProto:
    y = list(shape)
    y[axis : axis % len(shape) + 1] = taken
    sizes = [", ".join(map(str, each)) for each in (shape, taken, y)]
    text = "g (float[{}] x, int64[{}] i) => (float[{}] y) ".format(*sizes).replace("[]", "")
    return parsed(f"{text} {{ y = Gather<axis = {axis}>(x, i) }}")


@pytest.mark.parametrize(("shape", "taken", "axis"), TAKEN)
def test_columns_that_were_taken(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], taken: tuple[int, ...], axis: int
) -> None:
    rng, length = np.random.default_rng(0), shape[axis]
    model = taking(shape, taken, axis)
    indices = np.asarray(rng.integers(-length, length, taken))
    feeds: dict[str, Any] = {"x": rng.standard_normal(shape).astype(np.float32), "i": indices}
    content = marked(model, "Gather")
    changed = onnx.load_from_string(with_own_kernels(outline_of(content)) or b"")
    assert changed.graph.node[0].domain
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds)
    np.testing.assert_array_equal(ours, plain)
    both = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    content = marked(partition(both, ["y_grad"], ["x_grad"]).backward, "ScatterElements")
    dy = rng.standard_normal(ours.shape).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"i": indices, "y_grad": dy})
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    if ours.size and len(shape) * dy.size > 10:  # the list of places is not repeated
        assert "Expand" not in operators_of(content)


def test_columns_of_indices_with_an_unknown_number_of_axes() -> None:
    content = backward(
        "g (float[30,17] x, int64[] i) => (float[30,3,2] y) { y = Gather<axis = 1>(x, i) }",
        "x",
        "ScatterElements",
    )
    indices = np.array([[1, 1], [-1, 3], [0, 1]])
    dy = np.random.default_rng(0).standard_normal((30, 3, 2)).astype(np.float32)
    expected = np.zeros((30, 17), np.float32)
    for i, j in np.ndindex(3, 2):
        expected[:, indices[i, j]] += dy[:, i, j]
    np.testing.assert_allclose(run(content, {"i": indices, "y_grad": dy})[0], expected, rtol=1e-6)


LISTED = [((30, 7), 4, (30, 4)), ((30, 7), 1, (30, 5)), ((9, 8), 3, (4, 3)), ((9, 8), 1, (4, 6))]


@pytest.mark.parametrize(("shape", "listed", "spread"), LISTED)
def test_a_list_of_places_for_less_than_all_of_the_result(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], listed: int, spread: tuple[int, ...]
) -> None:
    """As somebody else may write it: one place for a whole row, or rows of which some have none."""
    text = f"""g (int64[{listed}] i, float[{spread[0]},{spread[1]}] u) => (float[a,b] y)
        <int64[1] lines = {{-1}}, int64[2] shape = {{{shape[0]}, {shape[1]}}}>
        {{ zeros = ConstantOfShape(shape) lined = Reshape(i, lines) sizes = Shape(u)
           places = Expand(lined, sizes)
           y = ScatterElements<axis = -1, reduction = "add">(zeros, places, u) }}"""
    content, rng = marked(parsed(text), "ScatterElements"), np.random.default_rng(0)
    assert "AddElements" in operators_of(content)
    indices = rng.integers(-shape[1], shape[1], listed)
    u = rng.standard_normal(spread).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"i": indices, "u": u})
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", [7, -8, 2**62, -(2**63)])
def test_a_column_out_of_range_is_an_error(index: int) -> None:
    model, indices = taking((30, 7), (5,), 1), np.array([0, 3, index, 1, 2])
    x, dy = np.zeros((30, 7), np.float32), np.zeros((30, 5), np.float32)
    with pytest.raises(Exception, match="index is out of range"):
        run(marked(model, "Gather"), {"x": x, "i": indices})
    both = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    content = marked(partition(both, ["y_grad"], ["x_grad"]).backward, "ScatterElements")
    with pytest.raises(Exception, match="index is out of range"):
        run(content, {"i": indices, "y_grad": dy})


@pytest.mark.parametrize(("shape", "picked", "axis"), PICKED)
def test_elements_that_are_put(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], picked: tuple[int, ...], axis: int
) -> None:
    """Places within a line differ, as where a pool is undone, or the last element stays."""
    sizes, i = (", ".join(map(str, numbers)) for numbers in (shape, picked))
    content = marked(
        parsed(
            f"g (int64[{i}] i, float[{i}] u) => (float[{sizes}] y) "
            f"<int64[{len(shape)}] s = {{{sizes}}}> {{ z = ConstantOfShape(s) "
            f"y = ScatterElements<axis = {axis}>(z, i, u) }}"
        ),
        "ScatterElements",
    )
    assert "PutElements" in operators_of(content)
    rng = np.random.default_rng(0)
    indices = rng.integers(-shape[axis], shape[axis], picked)
    u = rng.standard_normal(picked).astype(np.float32)
    u.reshape(-1)[::7] = np.nan
    (ours,), (plain,) = both_ways(monkeypatch, content, {"i": indices, "u": u})
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("picked", [(30, 2), (20, 2)])
@pytest.mark.parametrize("index", [7, -8, 2**62, -(2**63)])
def test_an_element_out_of_range_is_an_error(index: int, picked: tuple[int, int]) -> None:
    content = picking((30, 7), picked, 1)
    indices = np.zeros(picked, np.int64)
    indices[5, 1] = index
    with pytest.raises(Exception, match="index is out of range"):
        run(content, {"i": indices, "y_grad": np.zeros(picked, np.float32)})


@pytest.mark.parametrize("numbers", ["", "1 2", "8", "-9", "x", "1 0 0"])
def test_a_bad_axis_is_refused(numbers: str) -> None:
    plain = (operators.GATHER, operators.GATHER_ELEMENTS)
    with_more = (operators.ADD_ELEMENTS, operators.SCATTER_ELEMENTS)
    for operator, more in (*((o, "") for o in plain), *((o, " 0") for o in with_more)):
        with pytest.raises(ProgramError):
            operator.parse(numbers + more)
    with pytest.raises(ProgramError):
        operators.ADD_ELEMENTS.parse("1 2")
    with pytest.raises(ProgramError):
        operators.SCATTER_ELEMENTS.parse("1 4")


def test_the_pass_marks_a_gather_of_short_rows() -> None:
    def marks(shape: tuple[int, ...], axis: int) -> int:
        model = onnxtrain.differentiate(taking(shape, (9,), axis), wrt=["x"], vjp=True)
        gathers = [node for node in model.graph.node if node.op_type == "Gather"]
        return sum(node.doc_string == KERNEL for node in gathers)

    assert [marks((100, 100), 1), marks((100, 100), 0), marks((10, 10), 1)] == [1, 0, 0]


# --- padding --------------------------------------------------------------------------------------

PADDED = [
    ((30, 4), (0, 1, 0, 2)), ((5, 6, 7), (0, 2, 3, 0, 1, 2)), ((5, 6, 7), (1, 0, 0, 2, 0, 0)),
    ((2, 3, 4, 5, 6), (0, 0, 1, 2, 3, 0, 0, 3, 2, 1)), ((9,), (4, 4)), ((3, 1), (1, 2, 2, 0)),
    ((40_000, 3), (0, 1, 0, 1)), ((3, 5), (0, 0, 0, 0)), ((0, 5), (0, 1, 0, 1)),
    ((300, 1, 3), (0, 0, 0, 0, 20, 0)), ((300, 1), (0, 3, 0, 20)),
    ((300, 2, 3), (0, 9, 0, 0, 0, 0)),
    ((200_000,), (1, 300_000)),  # its table is memory that a free gives back to the system
]  # fmt: skip


def padded(
    mode: str, pads: tuple[int, ...], axes: str = "", fill: str = "", rank: int = 2
) -> bytes:
    numbers, dims = ", ".join(map(str, pads)), ", ".join("ABCDEFGH"[:rank])
    text = f"""g (float[{dims}] x) => (float[] y)
        <int64[{len(pads)}] pads = {{{numbers}}}, int64[{len(pads) // 2}] axes = {{{axes or 0}}},
         float fill = {{{fill or 0}}}> {{ y = Pad<mode = "{mode}">(x, pads{", fill" * bool(fill)}
         {"," * bool(axes and not fill)}{", axes" * bool(axes)}) }}"""
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return marked(model, "Pad")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(("shape", "pads"), PADDED)
def test_padding(
    monkeypatch: pytest.MonkeyPatch, mode: str, shape: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    if mode == "reflect" and any(p >= d for p, d in zip(pads, (*shape, *shape))):
        pytest.skip("numpy and onnxruntime disagree there")
    if mode == "wrap" and not all(shape):
        pytest.skip("there is nothing to repeat")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    content = padded(mode, pads, rank=len(shape))
    assert operators_of(content) == ["Pad"]
    assert onnx.load_from_string(with_own_kernels(outline_of(content)) or b"").graph.node[0].domain
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)
    each = list(zip(pads[: len(shape)], pads[len(shape) :]))
    np.testing.assert_array_equal(ours, np.pad(x, each, mode=mode))  # type: ignore[call-overload]


def test_padding_that_cuts_fills_and_names_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)
    content = padded("constant", (-1, 2, 3, -2), axes="2, -2", fill="1.5", rank=3)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)
    assert ours.shape == (4, 5, 8)


@pytest.mark.parametrize("cut", [(-3, 0), (0, -2), (-1, -4), (-2, 3), (2, -5), (-5, 0), (-40, 0)])
@pytest.mark.parametrize("shape", [(700, 5), (30, 40), (6, 5, 3), (3, 7, 50)])
def test_padding_that_cuts_off_ends(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], cut: tuple[int, int]
) -> None:
    """Of rows that are short, long, or have others behind."""
    if shape[1] + sum(cut) < 0:
        pytest.skip("there is not so much")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    content = padded("constant", cut, axes="1", fill="2.5", rank=len(shape))
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize(
    "content",
    [
        padded("constant", (1, 2, 3, 4), axes="0, 0"), padded("reflect", (-1, 0, 0, 0)),
        padded("constant", (2**30, 0, 0, 0)), padded("constant", (1, 1), fill="-0.0"),
    ],
    ids=["an axis twice", "cut and reflected", "far too large", "another sign of zero"],
)  # fmt: skip
def test_padding_that_the_kernel_does_not_have(content: bytes) -> None:
    assert with_own_kernels(outline_of(content)) is None


def test_padding_of_another_rank_is_an_error() -> None:
    content = padded("constant", (0, 1, 1, 0))
    model = onnx.load_from_string(content)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"do not have the shapes"):
        run(model.SerializeToString(), {"x": np.zeros(5, np.float32)})


# --- axes in another order ------------------------------------------------------------------------

ORDERED = [
    ((9,), (0,)), ((5, 7), (1, 0)), ((5, 7), (0, 1)), ((40, 3, 50), (2, 1, 0)),
    ((3, 4, 5), (0, 2, 1)), ((3, 4, 5), (1, 2, 0)), ((17, 2, 33), (2, 1, 0)), ((0, 3), (1, 0)),
    ((6, 7, 18, 2, 20, 3), (0, 1, 3, 5, 2, 4)), ((6, 7, 2, 3, 18, 20), (0, 1, 4, 2, 5, 3)),
    ((8, 20, 30, 4), (1, 0, 3, 2)), ((4, 9, 3, 70), (0, 2, 1, 3)), ((1, 4, 1, 5), (3, 2, 1, 0)),
    ((2, 3, 2, 3, 2, 3, 2, 3), (7, 5, 6, 1, 0, 3, 2, 4)), ((1, 1), (1, 0)), ((100, 200), (1, 0)),
]  # fmt: skip


def ordered(order: tuple[int, ...]) -> bytes:
    dims, turned = "ABCDEFGH"[: len(order)], ("ABCDEFGH"[axis] for axis in order)
    return marked(
        parsed(
            f"g (float[{', '.join(dims)}] x) => (float[{', '.join(turned)}] y) "
            f"{{ y = Transpose<perm = [{', '.join(map(str, order))}]>(x) }}"
        ),
        "Transpose",
    )


@pytest.mark.parametrize(("shape", "order"), ORDERED)
def test_axes_in_another_order(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    x, content = np.random.default_rng(0).standard_normal(shape).astype(np.float32), ordered(order)
    assert operators_of(content) == ["Turn"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(ours, x.transpose(order))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(
    ("shape", "block"), [((2, 12, 5, 7), 2), ((3, 18, 1, 20), 3), ((1, 8, 40, 30), 1)]
)
def test_channels_that_become_blocks(
    monkeypatch: pytest.MonkeyPatch, mode: str, shape: tuple[int, ...], block: int
) -> None:
    text = f'{{ y = DepthToSpace<blocksize = {block}, mode = "{mode}">(x) }}'
    content = marked(parsed(f"g (float[N,C,H,W] x) => (float[A,B,D,E] y) {text}"), "DepthToSpace")
    assert operators_of(content) == ["Turn"]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)


def test_another_rank_or_channels_than_a_node_says_are_an_error() -> None:
    for content, shape in (
        (ordered((2, 1, 0)), (4, 5)),
        (
            marked(
                parsed(
                    "g (float[N,C,H,W] x) => (float[A,B,D,E] y) "
                    "{ y = DepthToSpace<blocksize = 2>(x) }"
                ),
                "DepthToSpace",
            ),
            (2, 6, 3, 3),
        ),
    ):
        model = onnx.load_from_string(content)
        model.graph.input[0].type.tensor_type.ClearField("shape")
        with pytest.raises(Exception, match=r"do not have the shapes"):
            run(model.SerializeToString(), {"x": np.zeros(shape, np.float32)})


def test_the_pass_marks_what_onnxruntime_turns_one_by_one() -> None:
    def is_marked(order: tuple[int, ...], shape: str, behind: str = "Exp(z)") -> bool:
        model = parsed(f"""g (float[{shape}] x, float[30,5] w) => (float y) {{ a = Exp(x)
            z = Transpose<perm = [{", ".join(map(str, order))}]>(a) b = {behind}
            y = ReduceSum<keepdims = 0>(b) }}""")
        graded = onnxtrain.differentiate(model, wrt=["x"])
        nodes = {node.output[0]: node for node in graded.graph.node}
        return nodes["z"].doc_string == KERNEL

    assert is_marked((2, 1, 0), "30,20,30")
    assert is_marked((0, 3, 2, 1), "N,20,30,40")
    assert not is_marked((2, 1, 0), "3,20,30")  # few numbers
    assert not is_marked((1, 2, 0), "30,20,30")  # one axis
    assert not is_marked((2, 1, 0), "30,1,300")  # the same
    assert not is_marked((2, 0, 1), "30,20,30")
    assert not is_marked((1, 0, 2), "30,20,30")  # rows stay
    assert not is_marked((2, 1, 0), "30,20,30", "MatMul(z, w)")


@pytest.mark.parametrize(
    "text", ["", "0", "0 2 0", "0 2 0 0", "0 2 1 2", "0 9 0 1 2 3 4 5 6 7 8", "3 2", "1 0", "1 2 0"]
)
def test_orders_that_are_not_sound(text: str) -> None:
    with pytest.raises(ProgramError):
        operators.TURN.parse(text)


# --- axes that are read backwards -----------------------------------------------------------------

TURNED = [
    ((9,), (0,)), ((5, 7), (0,)), ((5, 7), (1,)), ((5, 7), (0, -1)), ((3, 4, 5), (1,)),
    ((3, 4, 5), (2, 0)), ((3, 4, 5), (-2, 0)), ((2, 3, 4, 5), (1, 2)), ((3, 1, 4), (1,)),
    ((100_003,), (0,)), ((300, 2, 70), (0, 2)), ((0, 3), (1,)), ((3, 0), (0,)), ((1, 1), (0, 1)),
]  # fmt: skip


def turned(axes: tuple[int, ...], rank: int, start: int = -1, end: int = -(2**63)) -> bytes:
    count, dims = len(axes), ", ".join("ABCDEFGH"[:rank])

    def vector(name: str, numbers: tuple[int, ...]) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.array(numbers, np.int64), name)

    model = parsed(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Slice(x, s, e, a, t) }}")
    tensors = (("s", (start,) * count), ("e", (end,) * count), ("a", axes), ("t", (-1,) * count))
    model.graph.initializer.extend(vector(name, numbers) for name, numbers in tensors)
    return marked(model, "Slice")


@pytest.mark.parametrize(("shape", "axes"), TURNED)
def test_axes_read_backwards(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x.ravel()[:1] = np.nan
    content = turned(axes, len(shape))
    assert operators_of(content) == ["Flip"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(ours, np.flip(x, axes))


def test_the_pass_marks_what_is_read_backwards() -> None:
    def marks(rows: int, step: int) -> int:
        model = parsed(f"""g (float[{rows},10] x) => (float[A,B] y)
            <int64[1] s = {{{min(step, 0)}}}, int64[1] e = {{{step * 2**61}}},
             int64[1] a = {{1}}, int64[1] t = {{{step}}}>
            {{ z = Exp(x) y = Slice(z, s, e, a, t) }}""")
        graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
        return sum(n.doc_string == KERNEL for n in graded.graph.node if n.op_type == "Slice")

    assert [marks(100, -1), marks(10_000, -1), marks(10_000, 2)] == [0, 2, 0]
    assert marks(10_000, -2) == 1  # its gradient is turned, and spread


@pytest.mark.parametrize(
    "content",
    [
        turned((0,), 2, start=-2), turned((0,), 2, end=-5), turned((0, 0), 2), turned((9,), 2),
    ],
    ids=["not from the end", "not to the beginning", "an axis twice", "no such axis"],
)  # fmt: skip
def test_other_slices_stay(content: bytes) -> None:
    assert with_own_kernels(outline_of(content)) is None


def test_axes_that_a_tensor_does_not_have_are_an_error() -> None:
    content = turned((1, -1), 2)
    with pytest.raises(Exception, match=r"do not have the shapes"):
        run(content, {"x": np.zeros((2, 3), np.float32)})


# --- ends of axes that are left out ---------------------------------------------------------------


def cut(begin: int, end: int, axis: int, step: int | None = None, shape: str = "A, B") -> bytes:
    numbers = {"s": begin, "e": end, "a": axis} | ({} if step is None else {"t": step})
    constants = ", ".join(f"int64[1] {name} = {{{value}}}" for name, value in numbers.items())
    model = parsed(
        f"g (float[{shape}] x) => (float[C, D] y) <{constants}> {{ z = Neg(x) "
        f"y = Slice(z, {', '.join(numbers)}) }}"
    )
    return marked(model, "Slice")


CUT = [(1, 2**63 - 1, 1, 1), (0, -1, -1, None), (2, -2, 0, 1), (1, 2**31 - 1, 0, None)]


@pytest.mark.parametrize("shape", [(600, 3), (5, 4), (7, 600)])
@pytest.mark.parametrize(("begin", "end", "axis", "step"), CUT)
def test_slices_that_leave_out_ends(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int],
    begin: int,
    end: int,
    axis: int,
    step: int | None,
) -> None:
    x, content = np.random.default_rng(0).random(shape, np.float32), cut(begin, end, axis, step)
    assert operators_of(content) == ["Neg", "Pad"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("numbers", [(-1, 2**62, 1), (0, 2, 1), (0, -1, 1, 2), (2**40, -1, 1)])
def test_slices_that_are_no_ends_stay(numbers: tuple[int, ...]) -> None:
    assert with_own_kernels(outline_of(cut(*numbers))) is None


def test_ends_that_a_row_does_not_have_are_an_error() -> None:
    """Somebody else's mark: the pass knows how long a row is."""
    with pytest.raises(Exception, match=r"do not have the shapes"):
        run(cut(2, -2, 1), {"x": np.zeros((5, 3), np.float32)})


def test_the_pass_marks_short_rows_that_are_cut() -> None:
    def marks(begin: int, end: int, columns: int) -> int:
        content = cut(begin, end, 1, shape=f"9000, {columns}")
        model = onnx.load_from_string(content)
        for node in model.graph.node:
            node.ClearField("doc_string")
        graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
        return sum(n.doc_string == KERNEL for n in graded.graph.node if n.op_type == "Slice")

    assert [marks(1, 2**62, 3), marks(0, -1, 8), marks(0, -1, 9)] == [1, 1, 0]
    assert [marks(0, 2, 3), marks(2, -2, 3)] == [0, 0]


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


# --- windows of small images ----------------------------------------------------------------------

SMALL_MAPS = [
    ((3, 256, 4, 4), (256, 3, 3), "pads=[1,1,1,1]"),
    ((2, 256, 8, 7), (256, 3, 2), "strides=[2,1], pads=[1,0,0,1]"),
    ((2, 256, 9, 8), (256, 2, 3), "dilations=[2,1], strides=[2,2]"),
    ((5, 40, 2, 2), (50, 3, 3), "pads=[1,1,1,1]"),
    ((3, 40, 4, 5), (50, 3, 3), "strides=[2,2], pads=[1,1,1,1]"),
    ((2, 40, 5, 5), (30, 2, 2), "dilations=[2,1], strides=[1,2]"),
]


def convolution(shape: tuple[int, ...], weights: tuple[int, ...], geometry: str) -> bytes:
    """With the gradients; the batch is open."""
    filters, *kernel = weights
    image, sizes = (",".join(map(str, s)) for s in (shape[1:], (filters, shape[1], *kernel)))
    text = f"g (float[n,{image}] x, float[{sizes}] w) => (float[n,{filters},h,v] y) "
    model = parsed(text + f"{{ y = Conv<kernel_shape={kernel}, {geometry}>(x, w) }}")
    y = model.graph.output[0].type.tensor_type.shape.dim
    feeds = {"x": np.zeros((1, *shape[1:])), "w": np.zeros((filters, shape[1], *kernel))}
    single = {name: value.astype(np.float32) for name, value in feeds.items()}
    for dim, size in zip(y[2:], run(model.SerializeToString(), single)[0].shape[2:]):
        dim.dim_value = size
    both = onnxtrain.differentiate(model, wrt=["x", "w"], vjp=True)
    return marked(both, "Col2Im", "Conv", "Reshape")


@pytest.mark.parametrize(("shape", "weights", "geometry"), SMALL_MAPS)
def test_windows_of_small_images(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    geometry: str,
) -> None:
    content, rng = convolution(shape, weights, geometry), np.random.default_rng(0)
    assert "CutWindows" in operators_of(content)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((weights[0], shape[1], *weights[1:])).astype(np.float32)
    forward = onnx.load_from_string(content)
    y = next(v for v in forward.graph.output if v.name == "y")
    sizes = [d.dim_value or shape[0] for d in y.type.tensor_type.shape.dim]
    dy = rng.standard_normal(sizes).astype(np.float32)
    feeds = {"x": x, "w": w, "y_grad": dy}
    ours = [run(content, feeds, threads) for threads in (1, 2)]
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    plain = [run(content, feeds, threads) for threads in (1, 2)]
    for threads in (0, 1):  # onnxruntime's products depend on their number
        for a, b in zip(ours[threads], plain[threads], strict=True):
            np.testing.assert_array_equal(a, b)


WINDOW = "3 1 1 1 1 0"


@pytest.mark.parametrize("text", [
    "", "0 1", f"2 {WINDOW} {WINDOW} 4 4", f"0 0 1 1 1 1 0 {WINDOW} 4 4",
    f"0 {WINDOW} {WINDOW} 0 4", f"0 {WINDOW} {WINDOW} 4 -4", f"0 {WINDOW} 3 0 1 1 1 0 4 4",
    f"0 {WINDOW} 9 1 1 0 0 0 4 4",
    f"0 {WINDOW} {WINDOW} 2000 2000",
])  # fmt: skip
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(ProgramError):
        operators.FOLD_WINDOWS.parse(text)


CUT = (
    "t = Transpose<perm=[1,0,2,3]>(x) u = Unsqueeze(t, one) "
    "y = Conv<kernel_shape=[1,1,2], pads=[0,0,0,0,0,1]>(u, w)"
)


@pytest.mark.parametrize(("change", "is_replaced"), [
    (("", ""), True),
    (("perm=[1,0,2,3]", "perm=[1,0,3,2]"), False),
    (("{1, 0, 0, 1}", "{1, 0, 1, 1}"), False),
    (("kernel_shape", "strides=[2,1,1], kernel_shape"), False),
    (("[0,0,0,0,0,1]", "[1,0,0,0,0,1]"), False),
])  # fmt: skip
def test_what_does_not_cut_windows_stays(change: tuple[str, str], is_replaced: bool) -> None:
    text = (
        "g (float[n,3,4,4] x) => (float[3,2,n,4,4] y) "
        "<int64[1] one = {1}, float[2,1,1,1,2] w = {1, 0, 0, 1}> { " + CUT + " }"
    )
    content = marked(parsed(text.replace(*change)), "Conv")
    model = onnx.load_from_string(content)
    weights = model.graph.initializer[1]
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights), "w"))
    changed = operators_of(model.SerializeToString())
    assert ("CutWindows" in changed) == is_replaced


def test_an_image_too_small_for_its_windows_is_an_error() -> None:
    content = convolution((2, 40, 4, 5), (50, 3, 3), "strides=[2,2], pads=[1,1,1,1]")
    model = onnx.load_from_string(content)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "a"
    feeds = {"x": np.zeros((2, 40, 2, 5), np.float32), "w": np.zeros((50, 40, 3, 3), np.float32)}
    feeds["y_grad"] = np.zeros((2, 50, 2, 3), np.float32)
    with pytest.raises(Exception, match="do not have the shapes"):
        run(model.SerializeToString(), feeds)


# --- rows added to what a product has written -----------------------------------------------------

TIED = [(1000, 64, 300), (70, 63, 2000), (50, 8, 4), (33, 1, 40), (3000, 2, 500)]


def tied(rows: int, width: int, *operators: str) -> bytes:
    """Loss and gradient of a table that is looked up and multiplied with."""
    text = f"""g (float[{rows},{width}] x, int64[N] i) => (float[N,{rows}] y) {{
        z = Gather(x, i) t = Transpose<perm=[1,0]>(x) y = MatMul(z, t) }}"""
    model = onnxtrain.differentiate(parsed(text), wrt=["x"], vjp=True)
    return marked(model, *(operators or ("ScatterND", "ScatterElements")))


def in_place(content: bytes) -> list[str]:
    changed = with_rows_in_place(outline_of(content))
    return [n.op_type for n in onnx.load_from_string(changed or content).graph.node]


@pytest.mark.parametrize(("rows", "width", "tokens"), TIED)
def test_tied_table(monkeypatch: pytest.MonkeyPatch, rows: int, width: int, tokens: int) -> None:
    content, rng = tied(rows, width), np.random.default_rng(0)
    assert "AddRowsTo" in in_place(content)
    assert not {"TopK", "GatherND", "ScatterND", "ScatterElements"} & {*in_place(content)}
    feeds = {
        "x": rng.standard_normal((rows, width)).astype(np.float32),
        "i": rng.integers(-rows, rows, tokens),
        "y_grad": rng.standard_normal((tokens, rows)).astype(np.float32),
    }
    ours, plain = both_ways(monkeypatch, content, feeds)
    x, i, dy = feeds["x"].astype(np.float64), feeds["i"], feeds["y_grad"].astype(np.float64)
    expected = dy.T @ x[i]
    np.add.at(expected, i, dy @ x)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(ours[-1], expected, rtol=1e-5, atol=1e-5 * scale)
    for one, other in zip(ours, plain):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * scale)


def test_a_table_that_others_read_stays() -> None:
    """It is written to: nobody may see it before, and the result has to be one of the graph."""
    assert "AddRowsTo" in in_place(tied(1000, 64))
    model = onnx.load_from_string(tied(1000, 64))
    table = next(n.input[0] for n in model.graph.node if n.op_type == "ScatterND")
    product = next(n for n in model.graph.node if table in n.output)
    changes = {
        "read": lambda m: m.graph.node.add(op_type="Neg", input=[table], output=["other"]),
        "an output": lambda m: m.graph.output.add(name=table),
        "the result is read": lambda m: m.graph.node.add(
            op_type="Neg", input=["x_grad"], output=["other"]
        ),
        "no output": lambda m: m.graph.output.pop(),
    }
    assert product.op_type == "Gemm"
    assert model.graph.output[-1].name == "x_grad"
    for what, change in changes.items():
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        change(copied)
        assert "AddRowsTo" not in in_place(copied.SerializeToString()), what


@pytest.mark.parametrize("index", [1000, -1001])
def test_a_row_outside_of_a_tied_table(index: int) -> None:
    feeds = {
        "x": np.ones((1000, 64), np.float32), "i": np.array([1, index]),
        "y_grad": np.ones((2, 1000), np.float32),
    }  # fmt: skip
    with pytest.raises(Exception, match="out of"):
        run(tied(1000, 64), feeds)


def test_the_pass_marks_a_large_tied_table() -> None:
    def marks(rows: int) -> int:
        model = onnxtrain.differentiate(
            parsed(
                f"g (float[{rows},8] x, int64[N] i) => (float[N,{rows}] y) {{ z = Gather(x, i) "
                "t = Transpose<perm=[1,0]>(x) y = MatMul(z, t) }"
            ),
            wrt=["x"], vjp=True,
        )  # fmt: skip
        return sum(node.doc_string == KERNEL for node in model.graph.node)

    assert (marks(100), marks(10_000)) == (0, 1)


# --- pools ----------------------------------------------------------------------------------------

POOLS = [
    ((2, 3, 8, 8), "kernel_shape=[2,2], strides=[2,2]"),
    ((2, 3, 9, 17), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),
    ((1, 2, 7, 40), "kernel_shape=[3,2], strides=[1,1], pads=[2,0,1,1]"),
    ((1, 2, 12, 13), "kernel_shape=[2,3], strides=[3,4], dilations=[2,3], pads=[0,0,1,2]"),
    ((1, 1, 6, 6), "kernel_shape=[2,2], strides=[3,3], ceil_mode=1"),
    ((1, 1, 7, 8), "kernel_shape=[3,3], strides=[2,2], ceil_mode=1, pads=[1,1,1,1]"),
    ((1, 1, 5, 5), "kernel_shape=[1,1], strides=[3,3], ceil_mode=1, pads=[0,0,0,0]"),
    ((1, 1, 5, 5), 'kernel_shape=[3,3], auto_pad="VALID"'),
    ((3, 2, 31), "kernel_shape=[4], strides=[3], pads=[1,2]"),
    ((2, 2, 5, 6, 7), "kernel_shape=[2,3,2], strides=[2,1,2], pads=[1,0,0,0,1,1]"),
    ((0, 2, 5, 5), "kernel_shape=[2,2]"),
    ((1, 2, 2), "kernel_shape=[3], strides=[2]"),  # a window that sticks out is one
    ((1, 2, 2, 7), "kernel_shape=[4,2], strides=[3,2], pads=[1,0,0,0], ceil_mode=1"),
    ((1, 2, 2), "kernel_shape=[4], strides=[2]"),  # and there may be none
    ((16, 64, 32, 32), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),
    ((1, 2, 5, 70), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),  # long rows
    ((1, 2, 5, 100), "kernel_shape=[2,3], strides=[1,3], dilations=[2,2], pads=[0,0,0,2]"),
]


def pool(shape: tuple[int | str, ...], attributes: str, outputs: str = "y, i") -> onnx.ModelProto:
    sizes = ",".join(map(str, shape))
    open_sizes = ",".join("abcde"[: len(shape)])
    described = f"float[{open_sizes}] y" + (f", int64[{open_sizes}] i" if "i" in outputs else "")
    text = f"g (float[{sizes}] x) => ({described}) {{ {outputs} = MaxPool<{attributes}>(x) }}"
    return parsed(text)


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
@pytest.mark.parametrize("kind", ["random", "ties", "odd"])
def test_max_pool(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], attributes: str, kind: str
) -> None:
    """Also equal elements, and windows of nothing but NaN or minus infinity."""
    content = marked(pool(shape, attributes), "MaxPool")
    assert with_own_kernels(outline_of(content)) is not None
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    elif kind == "odd":
        x[x > 0.3] = np.nan
        x[x < -0.5] = -np.inf
        x.reshape(-1)[: x.size // 3] = np.nan
        x.reshape(-1)[-x.size // 4 :] = -np.inf
    ours, plain = both_ways(monkeypatch, content, {"x": x})
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("attributes", [
    "kernel_shape=[2,2], storage_order=1", 'kernel_shape=[2,2], auto_pad="SAME_UPPER"',
    "kernel_shape=[2,2,2,2]", "kernel_shape=[2,2], dilations=[3,3], pads=[1,1,1,1]",
])  # fmt: skip
def test_pools_without_a_kernel_stay(attributes: str) -> None:
    content = marked(pool((1, 1, 4, 4), attributes), "MaxPool")
    assert with_own_kernels(outline_of(content)) is None


@pytest.mark.parametrize("images", [64, "batch"])
def test_a_pool_without_places_is_not_marked(images: int | str) -> None:
    shape: tuple[int | str, ...] = (images, 64, 32, 32)
    model = onnxtrain.differentiate(pool(shape, "kernel_shape=[2,2]", "y"), wrt=["x"], vjp=True)
    marks = [n.op_type for n in model.graph.node if n.doc_string == KERNEL]
    assert marks == ["MaxPool", "ScatterElements"]


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_gradient_of_max_pool(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], attributes: str
) -> None:
    model = onnxtrain.differentiate(pool(shape, attributes, "y"), wrt=["x"], vjp=True)
    names = ("MaxPool", "MaxUnpool", "ScatterElements", "ScatterND")
    content, rng = marked(model, *names), np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    (y, *_) = run(marked(pool(shape, attributes, "y")), {"x": x})
    dy = rng.standard_normal(y.shape).astype(np.float32)
    ours, plain = both_ways(monkeypatch, content, {"x": x, "y_grad": dy})
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def unpool(shape: str, attributes: str) -> bytes:
    text = f"g (float[{shape}] x, int64[{shape}] i) => (float[a,b,c,d] y) "
    return marked(parsed(f"{text}{{ y = MaxUnpool<{attributes}>(x, i) }}"), "MaxUnpool")


@pytest.mark.parametrize("attributes", [
    "kernel_shape=[2,2], strides=[2,2]", "kernel_shape=[3,4], strides=[2,3], pads=[1,0,0,1]",
])  # fmt: skip
def test_places_in_other_planes(monkeypatch: pytest.MonkeyPatch, attributes: str) -> None:
    """Also the same place twice: the last number stays."""
    content, rng = unpool("2,3,4,5", attributes), np.random.default_rng(0)
    assert "MaxUnpool" in operators_of(content)
    feeds = {"x": rng.standard_normal((2, 3, 4, 5)), "i": rng.integers(0, 6 * 7 * 9, (2, 3, 4, 5))}
    feeds["x"] = feeds["x"].astype(np.float32)
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds)
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("place", [-1, 6 * 8 * 10, 2**62, -(2**63)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_place_out_of_range_is_an_error(place: int, threads: int) -> None:
    content = unpool("2,3,4,5", "kernel_shape=[2,2], strides=[2,2]")
    indices = np.zeros((2, 3, 4, 5), np.int64)
    indices[1, 1, 1, 1] = place
    with pytest.raises(Exception, match="out of range"):
        run(content, {"x": np.ones((2, 3, 4, 5), np.float32), "i": indices}, threads)


# --- cumulative sums ------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [
    ((7,), 0), ((5, 9), 1), ((4, 1000), -1), ((6, 5), 0), ((2, 3, 2000), 1), ((0, 4), 1),
    ((3, 0), 1), ((2, 3, 4, 5), -2), ((200, 300), 1), ((200, 300), 0), ((1, 1), 0),
])  # fmt: skip
def test_cumulative_sum(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axis: int, reverse: int, exclusive: int
) -> None:
    sizes = ",".join(map(str, shape))
    text = f"g (float[{sizes}] x) => (float[{sizes}] y) <int64 axis = {{{axis}}}> "
    attributes = f"exclusive={exclusive}, reverse={reverse}"
    content = marked(parsed(f"{text}{{ y = CumSum<{attributes}>(x, axis) }}"), "CumSum")
    assert with_own_kernels(outline_of(content)) is not None
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x.reshape(-1)[::5] = -0.0
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(plain))


def test_cumulative_sums_of_other_types_or_axes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """An axis that is fed is not looked at; a type is onnxruntime's to refuse."""
    text = "g (float[3,4] x, int64 axis) => (float[3,4] y) { y = CumSum(x, axis) }"
    assert with_own_kernels(outline_of(marked(parsed(text), "CumSum"))) is None
    text = "g (double[3,4] x) => (double[3,4] y) <int64 axis = {1}> { y = CumSum(x, axis) }"
    x = np.arange(12.0).reshape(3, 4)
    (ours,), _ = both_ways(monkeypatch, marked(parsed(text), "CumSum"), {"x": x})
    np.testing.assert_array_equal(ours, x.cumsum(1))


# --- images that are read between their pixels ----------------------------------------------------

SAMPLES = [
    (mode, padding, align) for mode in ("linear", "nearest", "cubic")
    for padding in ("zeros", "border", "reflection") for align in (0, 1)
]  # fmt: skip
IMAGES = [(2, 3, 6, 7), (1, 1, 5, 5), (3, 4, 1, 9), (2, 3, 4, 5, 6), (1, 4, 1, 3, 2)]
POSITIONS = {2: (11, 8), 3: (3, 11, 20)}
"""More than a kernel looks at together, in volumes."""


def sampling(shape: tuple[int, ...], mode: str, padding: str, align: int) -> onnx.ModelProto:
    positions = POSITIONS[len(shape) - 2]
    grid, y = (shape[0], *positions, len(positions)), (*shape[:2], *positions)
    sizes = [",".join(map(str, each)) for each in (shape, grid, y)]
    attributes = f'mode="{mode}", padding_mode="{padding}", align_corners={align}'
    text = "g (float[{}] x, float[{}] grid) => (float[{}] y) ".format(*sizes)
    return onnx.parser.parse_model(
        HEAD.replace("18", "20") + f"{text}{{ y = GridSample<{attributes}>(x, grid) }}"
    )


def grid_for(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Also positions half-way between pixels, on corners, and outside."""
    positions = POSITIONS[len(shape) - 2]
    grid = rng.uniform(-1.6, 1.6, (shape[0], *positions, len(positions))).astype(np.float32)
    grid[:, :4] = np.round(grid[:, :4] * shape[-1]) / np.float32(shape[-1])
    grid[:, 4:5] = np.sign(grid[:, 4:5])
    return grid


@pytest.mark.parametrize("mode", ["linear", "bilinear"])
def test_the_pass_marks_volumes_that_are_read_between_voxels(mode: str) -> None:
    """Exporters of before opset 20 say bilinear."""
    model = sampling((2, 3, 20, 30, 40), "linear", "zeros", 1)
    model.opset_import[0].version = 20 if mode == "linear" else 18
    model.graph.node[0].attribute[0].s = mode.encode()
    graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    samples = [node for node in graded.graph.node if node.op_type == "GridSample"]
    assert [node.doc_string for node in samples] == [KERNEL]


@pytest.mark.parametrize(("mode", "padding", "align"), SAMPLES)
@pytest.mark.parametrize("shape", IMAGES)
def test_grid_sample(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    mode: str,
    padding: str,
    align: int,
) -> None:
    axes = len(shape) - 2
    if mode == "cubic" and axes == 3:
        pytest.skip("onnxruntime has it for images only")
    model = onnxtrain.differentiate(
        sampling(shape, mode, padding, align), wrt=["x", "grid"], vjp=True
    )
    mark_taps(model)
    if mode == "nearest" and axes == 3:  # the pass does not mark it: there is no kernel
        next(n for n in model.graph.node if n.op_type == "GridSample").doc_string = ""
    content, rng = model.SerializeToString(), np.random.default_rng(0)
    names, has_border = operators_of(content), padding != "reflection"
    taps = {"linear": 2, "nearest": 1, "cubic": 4}[mode] ** axes
    assert (f"Add{taps}Taps" in names) == (mode != "nearest" or padding == "zeros")
    assert ("Read4Dots" in names) == (mode != "nearest")
    assert ("NearestPixels" in names) == (mode == "nearest" and axes == 2 and has_border)
    assert ("BetweenPixels" in names) == (mode == "linear" and has_border)
    feeds = {
        "x": rng.standard_normal(shape).astype(np.float32), "grid": grid_for(shape, rng),
        "y_grad": rng.standard_normal((*shape[:2], *POSITIONS[axes])).astype(np.float32),
    }  # fmt: skip
    ours, plain = both_ways(monkeypatch, content, feeds)
    if "BetweenPixels" not in names:
        np.testing.assert_array_equal(ours[0], plain[0])
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_pixels_and_positions_that_are_no_numbers(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], padding: str
) -> None:
    """What is outside is not read.

    What lies nowhere gives no number; onnxruntime reads some pixel.
    """
    model, rng = sampling(shape, "linear", padding, 1), np.random.default_rng(0)
    # At the border onnxruntime reads a pixel behind it, too, and multiplies it by zero.
    content = marked(model, "GridSample")
    x = np.full(shape, np.inf if padding == "zeros" else 2, np.float32)
    x[0, 1] = rng.standard_normal(shape[2:])
    grid = grid_for(shape, rng)
    grid[0, 0, 0, ..., 0], grid[0, 0, 2] = 9e4, 1.4
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x, "grid": grid})
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    grid[0, 0, 1, ..., 0] = np.nan
    (without,) = run(content, {"x": x, "grid": grid})
    assert np.isnan(without[0, 1, 0, 1]).all()
    np.testing.assert_array_equal(without[:, :, 1:], ours[:, :, 1:])


def mark_taps(model: onnx.ModelProto) -> None:
    """As the pass does it with large images."""
    read = {name for n in model.graph.node if n.op_type == "ScatterElements" for name in n.input}
    for node in model.graph.node:
        is_last = node.op_type == "ScatterElements" and node.output[0] not in read
        if is_last or node.op_type in ("GridSample", "ReduceSum"):
            node.doc_string = KERNEL


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_the_pass_marks_large_images(mode: str) -> None:
    x = onnx.parser.parse_model(
        HEAD.replace("18", "20") + "g (float[4,3,64,64] x, float[4,64,64,2] grid) => "
        f'(float[4,3,64,64] y) {{ y = GridSample<mode="{mode}">(x, grid) }}'
    )
    model = onnxtrain.differentiate(x, wrt=["x", "grid"], vjp=True)
    names = operators_of(model.SerializeToString())
    assert "ScatterElements" not in names
    assert "GatherElements" not in names
    assert ("GridSample" in names) == (mode == "linear")


def test_the_pass_marks_large_volumes() -> None:
    x = onnx.parser.parse_model(
        HEAD.replace("18", "20") + "g (float[2,3,16,16,16] x, float[2,16,16,16,3] grid) => "
        "(float[2,3,16,16,16] y) { y = GridSample(x, grid) }"
    )
    model = onnxtrain.differentiate(x, wrt=["x", "grid"], vjp=True)
    names = operators_of(model.SerializeToString())
    assert not {"ScatterElements", "GatherElements", "GridSample"} & {*names}


def test_a_grid_of_other_axes_is_an_error() -> None:
    text = "g (float[N,C,H,W] x, float[N,P,Q,K] i) => (float[N,C,P,Q] y) { y = GridSample(x, i) }"
    content = marked(onnx.parser.parse_model(HEAD.replace("18", "20") + text), "GridSample")
    feeds = {"x": np.zeros((2, 1, 3, 3), np.float32), "i": np.zeros((2, 4, 4, 3), np.float32)}
    with pytest.raises(Exception, match="do not have the shapes"):
        run(content, feeds)


def test_the_library_knows_all_operators() -> None:
    """A kernel with more operands than onnxruntime can be told of would leave sessions without."""
    assert register_path()


TAPS = """g (float[2,3,5] dy, int64[2,5] i, float[2,5] w) => (float[2,3,4] dx)
    <int64[4] shape = {2,3,2,2}, int64[3] flat = {0,0,-1}, int64[1] one = {1},
     int64[3] every = {2,3,5}> {
    zeros = ConstantOfShape(shape)
    begin = Reshape(zeros, flat)
    places = Unsqueeze(i, one)
    spread = Expand(places, every)
    weights = Unsqueeze(w, one)
    weighted = Mul(dy, weights)
    dx = ScatterElements<axis=2, reduction="add">(begin, spread, weighted)
}"""
DOTS = """g (float[2,3,5] dy, int64[2,5] i, float[2,3,4] x) => (float[2,5] sums)
    <int64[1] one = {1}, int64[3] every = {2,3,5}> {
    places = Unsqueeze(i, one)
    spread = Expand(places, every)
    read = GatherElements<axis=2>(x, spread)
    products = Mul(read, dy)
    sums = ReduceSum<keepdims=0>(products, one)
}"""


def tap_feeds(text: str, places: np.ndarray[Any, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {"dy": rng.standard_normal((2, 3, 5)).astype(np.float32), "i": places}
    name, shape = ("w", (2, 5)) if text is TAPS else ("x", (2, 3, 4))
    return {**feeds, name: rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize(("text", "operator"), [(TAPS, "Add1Taps"), (DOTS, "Read1Dots")])
def test_negative_places(monkeypatch: pytest.MonkeyPatch, text: str, operator: str) -> None:
    content = marked(parsed(text), "ScatterElements", "ReduceSum")
    assert operators_of(content) == [operator]
    feeds = tap_feeds(text, np.random.default_rng(1).integers(-4, 4, (2, 5)))
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds)
    np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("place", [4, -5, 2**62, -(2**63)])
@pytest.mark.parametrize("text", [TAPS, DOTS])
def test_a_tap_outside_is_an_error(place: int, text: str) -> None:
    places = np.zeros((2, 5), np.int64)
    places[1, 3] = place
    with pytest.raises(Exception, match="An index is out of range"):
        run(marked(parsed(text), "ScatterElements", "ReduceSum"), tap_feeds(text, places))


@pytest.mark.parametrize("text", [TAPS, DOTS])
def test_places_of_another_shape_are_an_error(text: str) -> None:
    """The standard operators refuse them, too."""
    model = parsed(text)
    del model.graph.input[1].type.tensor_type.shape.dim[:]
    places = np.zeros((1, 1, 1), np.int64)
    with pytest.raises(Exception, match=r"do not have the shapes|Invalid|rank"):
        run(marked(model, "ScatterElements", "ReduceSum"), tap_feeds(text, places))


# --- sorted rows ----------------------------------------------------------------------------------

SORTED = [
    (1, 1, 1),
    (1, 3000, 3000),
    (5, 700, 200),
    (40, 257, 257),
    (6, 10, 4),
    (3, 8, 0),
    (0, 9, 5),
]


def top(rows: int | str, length: int | str, taken: int, largest: int = 1) -> onnx.ModelProto:
    return parsed(
        f"g (float[{rows},{length}] x) => (float[{rows},{taken}] y, int64[{rows},{taken}] i) "
        f"<int64[1] k = {{{taken}}}> {{ y, i = TopK<largest={largest}>(x, k) }}"
    )


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", ["numbers", "ties", "infinities"])
@pytest.mark.parametrize(("rows", "length", "taken"), SORTED)
def test_sorted_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int, length: int, taken: int, kind: str, largest: int
) -> None:
    content, rng = marked(top(rows, length, taken, largest), "TopK"), np.random.default_rng(0)
    assert operators_of(content) == ["LongTopK"]
    x = rng.standard_normal((rows, length)).astype(np.float32) * np.float32(1e3)
    if kind == "ties":  # also between zeros of both signs
        x = np.round(x / 1e3) * rng.choice(np.array([1, -1], np.float32), x.shape)
    if kind == "infinities":
        odd = np.array([np.inf, -np.inf, 1e-42, -1e-42, 3.4e38, -3.4e38], np.float32)
        x = np.where(rng.random(x.shape) < 0.5, rng.choice(odd, x.shape), x)
    ours, plain = both_ways(monkeypatch, content, {"x": x})
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(ours[0]), np.signbit(plain[0]))


@pytest.mark.parametrize("largest", [0, 1])
def test_what_is_no_number_is_the_largest(largest: int) -> None:
    x = np.array([[1, np.nan, -np.inf, -np.nan, np.inf, 0]], np.float32)
    _, places = run(marked(top(1, 6, 6, largest), "TopK"), {"x": x})
    assert places[0].tolist() == ([1, 3, 4, 0, 5, 2] if largest else [2, 5, 0, 4, 1, 3])


def test_sorted_rows_of_which_one_half_is_read() -> None:
    model = top(2, 6, 6)
    (node,) = model.graph.node
    for number, name in ((1, "y"), (0, "i")):
        half = onnx.ModelProto()
        half.CopyFrom(model)
        half.graph.node[0].output[number] = ""
        del half.graph.output[number]
        x = np.array([[3, 1, 2, 6, 5, 4]] * 2, np.float32)
        (got,) = run(marked(half, "TopK"), {"x": x})
        expected = [6, 5, 4, 3, 2, 1] if name == "y" else [3, 4, 5, 0, 2, 1]
        assert got.tolist() == [expected] * 2
    assert len(node.output) == 2


def test_more_than_there_is_is_an_error() -> None:
    with pytest.raises(Exception, match="index is out of range"):
        run(marked(top(2, "N", 6), "TopK"), {"x": np.ones((2, 5), np.float32)})


@pytest.mark.parametrize(
    ("rows", "length", "taken", "expected"),
    [(40, 300, 300, "LongTopK"), ("N", 300, 30, "LongTopK"), (40, 300, 29, "TopK"),
     (100, 255, 255, "TopK"), (1, 300, 300, "TopK")],
)  # fmt: skip
def test_which_rows_are_sorted(rows: int | str, length: int, taken: int, expected: str) -> None:
    """Much of long rows, if there are many numbers."""
    model = onnxtrain.differentiate(top(rows, length, taken), wrt=["x"], vjp=True)
    assert expected in operators_of(model.SerializeToString())


# --- softmax across rows --------------------------------------------------------------------------

ACROSS_SHAPES = [
    ((5, 3, 4), 1), ((3000, 3, 6), -2), ((40, 2, 3, 1, 5), 1), ((2, 12, 700), 1), ((7, 5), 0),
    ((9, 8), 1), ((0, 3, 4), 1), ((4, 3, 0), 1), ((6, 1, 5), 1),
]  # fmt: skip


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("shape", "axis"), ACROSS_SHAPES)
def test_softmax_across(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axis: int, operator: str
) -> None:
    sizes = ",".join(map(str, shape))
    text = f"g (float[{sizes}] x) => (float[{sizes}] y) {{ y = {operator}<axis={axis}>(x) }}"
    model, rng = parsed(text), np.random.default_rng(0)
    model.graph.node[0].doc_string = ACROSS
    content = model.SerializeToString()
    assert operators_of(content) == ["SoftmaxAcross"]
    x = rng.standard_normal(shape).astype(np.float32) * 30
    flat = x.reshape(-1)
    flat[:5] = [np.nan, np.inf, -np.inf, 3e38, -3e38][: flat.size]
    flat[10 : flat.size // 3] = -np.inf
    (ours,), (plain,) = both_ways(monkeypatch, content, {"x": x})
    np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "axis", "expected"),
    [("N,12,40", 1, ACROSS), ("500,2,3,1,5", 1, ACROSS), ("500,13,6", 1, ""), ("N,N,3", 2, ""),
     ("500,3,L", 1, ""), ("500,3,1,6", 1, ACROSS), ("4,3,6", 1, "")],
)  # fmt: skip
def test_which_softmax_is_across(sizes: str, axis: int, expected: str) -> None:
    """Of a short axis in front of few numbers, if there are many in all."""
    text = f"g (float[{sizes}] x) => (float[{sizes}] y) {{ y = LogSoftmax<axis={axis}>(x) }}"
    model = onnxtrain.differentiate(parsed(text), wrt=["x"], vjp=True)
    (node,) = [n for n in model.graph.node if n.op_type == "LogSoftmax"]
    assert node.doc_string == expected


# --- determinants ---------------------------------------------------------------------------------

MATRICES = [(3, 3), (70, 1, 1), (200, 2, 2), (7, 9, 5, 5), (65, 6, 6), (3, 8, 8), (0, 4, 4)]


def determinant(shape: tuple[int, ...]) -> bytes:
    sizes, kept = (", ".join(map(str, dims)) for dims in (shape, shape[:-2]))
    text = f"g (float[{sizes}] x) => (float[{kept}] y) {{ y = Det(x) }}"
    model = parsed(text)
    if not kept:
        model.graph.output[0].type.tensor_type.shape.Clear()
    return marked(onnxtrain.differentiate(model, wrt=["x"], vjp=True), "Det")


@pytest.mark.parametrize("shape", MATRICES)
def test_determinants(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    content, rng = determinant(shape), np.random.default_rng(0)
    assert {*operators_of(content)} & {"Det", "Where"} == set()
    x, dy = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[:-2]))
    if x.shape[0] > 3:
        x[0, ..., -1, :] = x[0, ..., 0, :]  # singular, of one rank less; then of rank 1
        x[1] = np.ones(shape[1:])
    ours, plain = both_ways(monkeypatch, content, {"x": x, "y_grad": dy})
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)
    if x.size:
        exact = np.linalg.det(x.astype(np.float64))
        np.testing.assert_allclose(ours[0], exact, rtol=1e-6, atol=1e-12)


def test_cofactors_without_what_is_no_number() -> None:
    """A cofactor does not know its own row and column; the operator's gradient did, in part."""
    x = np.random.default_rng(0).standard_normal((1, 4, 4)).astype(np.float32)
    x[0, 1, 2] = np.nan
    _, dx = run(determinant((1, 4, 4)), {"x": x, "y_grad": np.ones(1, np.float32)})
    expected = np.ones((4, 4), bool)
    expected[1], expected[:, 2] = False, False
    np.testing.assert_array_equal(np.isnan(dx[0]), expected)


def test_larger_matrices_are_left_to_the_operator() -> None:
    """Of more rows than the kernel has, and of as many as nobody knows."""
    for rows in (9, "N"):
        model = parsed(f"g (float[50,{rows},{rows}] x) => (float[50] y) {{ y = Det(x) }}")
        content = onnxtrain.differentiate(model, wrt=["x"], vjp=True).SerializeToString()
        assert operators_of(content).count("Det") == 2
    for rows, expected in ((3, ["Determinants", "Cofactors"]), (8, ["Det", "Cofactors"])):
        model = parsed(f"g (float[5000,{rows},{rows}] x) => (float[5000] y) {{ y = Det(x) }}")
        content = onnxtrain.differentiate(model, wrt=["x"], vjp=True).SerializeToString()
        known = {"Det", "Determinants", "Cofactors"}
        assert sorted(known & {*operators_of(content)}) == sorted(expected)


def test_matrices_of_other_sizes_are_an_error() -> None:
    model = parsed("g (float[A,B,C] x) => (float[A] y) { y = Det(x) }")
    content = marked(model, "Det")
    for shape in ((2, 9, 9), (2, 3, 4)):
        with pytest.raises(Exception, match="do not have the shapes"):
            run(content, {"x": np.ones(shape, np.float32)})


# --- attributes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["99", "a", "1 0 0 1 1 0 0", "1 0 2 1 1 2 0", "1 0 2 1 2 1 0", "4 7", f"{2**40}", "8 0 0"],
)
def test_attributes_that_are_not_sound(text: str) -> None:
    for operator in operators.OPERATORS:
        with pytest.raises(ProgramError):
            operator.parse(text)


# --- cross entropy --------------------------------------------------------------------------------

CROSS_ENTROPIES = [
    (5, 40, "ignore_index = -1"), (300, 1000, "ignore_index = -1"), (600, 33, ""),
    (20, 65, 'reduction = "sum"'), (20, 65, 'reduction = "none", ignore_index = -1'),
    (20, 65, 'reduction = "none"'), (2, 50_257, ""), (0, 40, ""),
]  # fmt: skip


def cross_entropy(rows: int, classes: int, attributes: str, weight: str = "") -> bytes:
    loss = "SoftmaxCrossEntropyLoss" + f"<{attributes}>" * bool(attributes)
    text = f"""g (float[{rows}, {classes}] x, int64[{rows}] t) => (float[] y) {weight}
        {{ y = {loss}(x, t{", w" * bool(weight)}) }}"""
    model = parsed(text)
    if "none" not in attributes:
        model.graph.output[0].type.tensor_type.shape.Clear()
    else:
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = rows
    return marked(onnxtrain.differentiate(model, wrt=["x"], vjp=True), "LogSoftmax")


def scores_and_labels(rows: int, classes: int, attributes: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, classes)).astype(np.float32) * 5 + 100
    t = rng.integers(0, classes, rows)
    if "ignore" in attributes:
        t[::3] = -1
    dy = rng.standard_normal(rows if "none" in attributes else ()).astype(np.float32)
    return {"x": x, "t": t, "y_grad": dy}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize(("rows", "classes", "attributes"), CROSS_ENTROPIES)
def test_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, rows: int, classes: int, attributes: str, is_weighted: bool
) -> None:
    numbers = ", ".join(str(0.5 + i % 7) for i in range(classes))
    weight = f"<float[{classes}] w = {{{numbers}}}>" if is_weighted else ""
    content = cross_entropy(rows, classes, attributes, weight)
    operators = operators_of(content)
    assert {"RowStats", "PickLogSoftmax", "CrossEntropyGradient"} <= {*operators}
    assert not {"LogSoftmax", "Exp", "ScatterElements"} & {*operators}
    feeds = scores_and_labels(rows, classes, attributes)
    ours, plain = both_ways(monkeypatch, content, feeds)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(2, 5), (2, slice(None))])
def test_cross_entropy_of_what_is_no_number(
    monkeypatch: pytest.MonkeyPatch, odd: float, place: Any
) -> None:
    content = cross_entropy(6, 40, "ignore_index = -1")
    feeds = scores_and_labels(6, 40, "")
    feeds["x"][place] = odd
    ours, plain = both_ways(monkeypatch, content, feeds)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [40, -41, 2**62])
def test_a_label_that_is_no_class_is_an_error(label: int) -> None:
    feeds = scores_and_labels(6, 40, "")
    feeds["t"][3] = label
    with pytest.raises(Exception, match="index is out of range"):
        run(cross_entropy(6, 40, ""), feeds)


def test_log_probabilities_that_are_read_stay() -> None:
    model = onnx.load_from_string(cross_entropy(6, 40, ""))
    (softmax,) = (n for n in model.graph.node if n.op_type == "LogSoftmax")
    model.graph.output.add().name = softmax.output[0]
    assert "LogSoftmax" in operators_of(model.SerializeToString())


@pytest.mark.parametrize("numbers", ["", "1", "1 2", "9 0", "x 0", "1 0 0"])
def test_a_bad_gradient_of_cross_entropy_is_refused(numbers: str) -> None:
    with pytest.raises(ProgramError):
        operators.CROSS_ENTROPY_GRADIENT.parse(numbers)
