"""A fused node gives what numpy gives, whatever is broadcast, reduced, or cut into chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from onnxtrain.runtime.fusion import library
from onnxtrain.runtime.fusion.opcodes import FLAGS, PER_ROW, SINGLE
from onnxtrain.runtime.fusion.operators import ELEMENTWISE

from .support import Array, needs_kernel, program_of, run, session_of

pytestmark = needs_kernel


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SHAPES = {
    "equal": ((3, 5, 7), (3, 5, 7)),
    "a number": ((40, 50), ()),
    "one element": ((40, 50), (1, 1)),
    "a row": ((6, 128), (128,)),
    "a matrix for all": ((3, 4, 8, 16), (8, 16)),
    "a matrix for all, many chunks": ((30, 4, 64, 16), (1, 1, 64, 16)),
    "a short row": ((600, 3), (3,)),
    "a short row, many chunks": ((13_001, 3), (3,)),
    "a short row for maps": ((300, 5, 7), (5, 7)),
    "a short column, many chunks": ((13_001, 3), (13_001, 1)),
    "short columns on two axes": ((700, 9, 5), (700, 9, 1)),
    "short columns, some for all": ((700, 9, 5), (9, 1)),
    "short rows that are repeated by rows": ((700, 9, 5), (700, 1, 5)),
    "a column": ((40, 70), (40, 1)),
    "channels": ((4, 6, 5, 9), (6, 1, 1)),
    "an axis in the middle": ((4, 6, 9), (4, 1, 9)),
    "both ways": ((4, 1, 9), (1, 6, 1)),
    "of higher rank": ((9,), (2, 3, 9)),
    "many chunks": ((70, 1000), (70, 1000)),
    "many chunks and a row": ((90, 512), (512,)),
    "an odd number": ((33333,), (33333,)),
    "eight axes": ((2, 1, 2, 1, 2, 1, 2, 3), (1, 2, 1, 2, 1, 2, 1, 3)),
    "nothing": ((0, 4), (4,)),
    "a scalar": ((), ()),
    "short rows for all, in rows": ((5, 7, 10), (5, 1, 10)),
    "rows for all": ((3, 40, 30), (40, 30)),
    "rows of another axis": ((3, 4, 5, 33), (3, 1, 5, 33)),
}


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_operands_are_broadcast(case: str, threads: int) -> None:
    a, b = (numbers(*shape, seed=i) for i, shape in enumerate(SHAPES[case]))
    nodes = [("Mul", "t", ["a", "b"]), ("Add", "y", ["t", "a"])]
    (y,) = run(nodes, {"a": a, "b": b}, threads=threads)
    np.testing.assert_array_equal(y, a * b + a)
    assert y.shape == (a * b).shape


@pytest.mark.parametrize("case", ["a short row, many chunks", "short columns on two axes"])
def test_truth_values_are_broadcast(case: str) -> None:
    a, b = (numbers(*shape, seed=i) for i, shape in enumerate(SHAPES[case]))
    (y,) = run([("Where", "y", ["c", "a", "b"])], {"c": b > 0, "a": a, "b": b})
    np.testing.assert_array_equal(y, np.where(b > 0, a, b))


@pytest.mark.parametrize("width", [1, 3, 16, 100, 256, 1000, 5000])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_rows_are_reduced(width: int, rows: int) -> None:
    x, y = numbers(rows, width), numbers(rows, width, seed=1)
    nodes = [
        ("Mul", "p", ["x", "y"]), ("ReduceSum", "s", ["p"]), ("Sub", "d", ["x", "s"]),
        ("Mul", "e", ["y", "d"]), ("ReduceMean", "m", ["e"]), ("ReduceMax", "top", ["e"]),
        ("Add", "z", ["e", "m"]),
    ]  # fmt: skip
    z, m, top = run(nodes, {"x": x, "y": y}, ["z", "m", "top"])
    a, b = x.astype(float), y.astype(float)
    e = b * (a - (a * b).sum(1, keepdims=True))
    scale = abs(e).max()
    np.testing.assert_allclose(z, e + e.mean(1, keepdims=True), rtol=0, atol=2e-6 * scale)
    np.testing.assert_allclose(m, e.mean(1, keepdims=True), rtol=0, atol=2e-6 * scale)
    np.testing.assert_allclose(top, e.max(1, keepdims=True), rtol=0, atol=2e-6 * scale)


MAPS = {
    "maps that fill vectors": ((3, 5, 8, 16), 2),
    "maps that do not": ((3, 5, 7, 7), 2),
    "many maps": ((40, 9, 6, 11), 2),
    "a pixel": ((4, 6, 1, 1), 2),
    "a row and one pixel": ((4, 6, 1, 33), 2),
    "volumes": ((2, 3, 3, 5, 7), 3),
}


@pytest.mark.parametrize("case", MAPS)
@pytest.mark.parametrize("threads", [1, 2])
def test_maps_are_reduced(case: str, threads: int) -> None:
    shape, axes = MAPS[case]
    channels = (shape[1], *[1] * axes)
    feeds = {"x": numbers(*shape), "c": numbers(*channels, seed=1), "g": numbers(*shape, seed=2)}
    nodes = [
        ("Sub", "d", ["x", "c"]), ("Mul", "p", ["d", "g"]), ("ReduceSum", "s", ["p"]),
        ("ReduceMean", "m", ["g"]), ("Mul", "t", ["d", "s"]), ("Add", "y", ["t", "m"]),
    ]  # fmt: skip
    outputs, hints = ["y", "s", "m"], {"c": PER_ROW}
    y, s, m = run(nodes, feeds, outputs, hints=hints, threads=threads, row_axes=axes)
    x, c, g = (feeds[name].astype(float) for name in "xcg")
    last = tuple(range(2, 2 + axes))
    sums, means = ((x - c) * g).sum(last, keepdims=True), g.mean(last, keepdims=True)
    scale = abs(sums).max()
    np.testing.assert_allclose(s, sums, rtol=0, atol=2e-6 * scale)
    np.testing.assert_allclose(m, means, rtol=0, atol=2e-6)
    np.testing.assert_allclose(y, (x - c) * sums + means, rtol=0, atol=1e-5 * scale)


def test_a_sum_over_maps_of_nothing_is_zero() -> None:
    nodes = [("Neg", "n", ["x"]), ("ReduceSum", "y", ["n"])]
    (y,) = run(nodes, {"x": numbers(3, 2, 0, 4)}, row_axes=2)
    np.testing.assert_array_equal(y, np.zeros((3, 2, 1, 1), np.float32))


@pytest.mark.parametrize("width", [1, 37, 64, 640])
def test_what_is_known_of_shapes_changes_no_number(width: int) -> None:
    feeds = {"x": numbers(50, width), "r": numbers(50, 1, seed=1), "n": numbers(1, seed=2)}
    nodes = [("Mul", "t", ["x", "r"]), ("Add", "y", ["t", "n"])]
    (plain,) = run(nodes, feeds)
    (hinted,) = run(nodes, feeds, hints={"r": PER_ROW, "n": SINGLE})
    np.testing.assert_array_equal(plain, hinted)


CONSTANT_ALONG_ROWS = {
    "channels": ((5, 8, 6, 6), (8, 1, 1), 2),
    "channels of images that fill vectors": ((5, 8, 8, 16), (8, 1, 1), 2),
    "each image's channels": ((5, 8, 8, 16), (5, 8, 1, 1), 2),
    "images": ((5, 8, 8, 16), (5, 1, 1, 1), 2),
    "a repeated row": ((5, 8, 64), (8, 1), 1),
    "the other axis": ((5, 8, 64), (5, 1, 1), 1),
    "many chunks": ((9, 16, 40, 40), (16, 1, 1), 2),
}


@pytest.mark.parametrize("case", CONSTANT_ALONG_ROWS)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_the_same_along_a_row(case: str, threads: int) -> None:
    shape, smaller, row_axes = CONSTANT_ALONG_ROWS[case]
    feeds = {"x": numbers(*shape), "c": numbers(*smaller, seed=1)}
    nodes = [("Sub", "d", ["x", "c"]), ("Mul", "y", ["d", "c"])]
    (y,) = run(nodes, feeds, hints={"c": PER_ROW}, threads=threads, row_axes=row_axes)
    np.testing.assert_array_equal(y, (feeds["x"] - feeds["c"]) * feeds["c"])


def test_numbers_do_not_depend_on_threads() -> None:
    x = numbers(300, 777)
    nodes = [("Exp", "e", ["x"]), ("ReduceSum", "s", ["e"]), ("Div", "y", ["e", "s"])]
    one, two = (run(nodes, {"x": x}, threads=t)[0] for t in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("width", [7, 33, 4096])
@pytest.mark.parametrize("hints", [{}, {"keep": FLAGS}], ids=["unknown", "known"])
def test_truth_values_are_read(width: int, hints: dict[str, int]) -> None:
    x, keep = numbers(9, width), numbers(9, width, seed=1) > 0
    nodes = [
        ("Greater", "p", ["x", "zero"]), ("And", "q", ["p", "keep"]),
        ("Not", "no", ["q"]), ("Where", "y", ["no", "zero", "x"]),
    ]  # fmt: skip
    (y,) = run(nodes, {"x": x, "keep": keep, "zero": np.zeros((), np.float32)}, hints=hints)
    np.testing.assert_array_equal(y, np.where((x > 0) & keep, x, 0))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("Clip", "y", ["x", "low", "high"])], lambda x: np.clip(x, -0.5, 1)),
        ([("Clip", "y", ["x", "low"])], lambda x: np.maximum(x, -0.5)),
        ([("Clip", "y", ["x", "", "high"])], lambda x: np.minimum(x, 1)),
        ([("Sum", "y", ["x", "x", "high"])], lambda x: x + x + 1),
        ([("Max", "y", ["x", "low", "high"])], lambda x: np.maximum(x, 1)),
        ([("Pow", "y", ["x"], {"exponent": 3.0})], lambda x: x * x * x),
        ([("Less", "b", ["x", "low"]), ("Cast", "y", ["b"], {"to": 1})], lambda x: x < -0.5),
        ([("LessOrEqual", "b", ["x", "x"]), ("Cast", "y", ["b"], {"to": 1})], lambda x: x == x),
        ([("Cast", "b", ["x"], {"to": 9}), ("Xor", "y", ["b", "b"])], lambda x: x != x),
        ([("Identity", "y", ["x"])], lambda x: x),
    ],
)
def test_forms_of_operators(nodes: Any, expected: Any) -> None:
    x = numbers(5, 21)
    feeds = {"x": x, "low": np.array(-0.5, np.float32), "high": np.array(1, np.float32)}
    (y,) = run(nodes, feeds)
    np.testing.assert_array_equal(y, expected(x).astype(np.float32))


@pytest.mark.parametrize(
    ("shapes", "hints"),
    [
        (((3, 4), (5, 4)), {}),
        (((3, 64), (3, 64)), {"b": PER_ROW}),
        (((3, 64), (64,)), {"b": SINGLE}),
        (((3, 64), (3, 64)), {"b": FLAGS}),
        (((2,) * 9, (1,)), {}),
    ],
    ids=["sizes that do not fit", "not per row", "not a number", "no flags", "nine axes"],
)
def test_shapes_that_do_not_fit_are_an_error(shapes: Any, hints: dict[str, int]) -> None:
    a, b = (numbers(*shape) for shape in shapes)
    with pytest.raises(Exception, match="fused node do not have the shapes"):
        run([("Mul", "t", ["a", "b"]), ("Neg", "y", ["t"])], {"a": a, "b": b}, hints=hints)


def test_another_type_is_an_error() -> None:
    program, inputs = program_of([("Neg", "y", ["x"])], ["y"])
    session = session_of(program, inputs, ["y"], {"x": 7})
    with pytest.raises(Exception, match="fused node do not have the shapes and types"):
        session.run(None, {"x": np.zeros(4, np.int64)})


def test_a_sum_over_nothing_is_zero() -> None:
    program, inputs = program_of([("Neg", "n", ["x"]), ("ReduceSum", "y", ["n"])], ["y"])
    (y,) = session_of(program, inputs, ["y"]).run(None, {"x": numbers(3, 0)})
    np.testing.assert_array_equal(y, np.zeros((3, 1), np.float32))


@pytest.mark.parametrize("room", [(), (7,), (2, 300), (1000, 1000)])
def test_memory_of_another_size_is_not_written_to(room: tuple[int, ...]) -> None:
    """What a caller binds as the output may be too small; onnxruntime has no memory for it then."""
    program, inputs = program_of([("Neg", "y", ["x"])], ["y"])
    session = session_of(program, inputs, ["y"])
    x, place = numbers(30, 20), np.full(room, 5.0, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, room, place.ctypes.data)
    with pytest.raises(RuntimeError, match="shape"):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place, 5.0)


@pytest.mark.parametrize("count", [1, 9, 40], ids=["short", "of two bytes", "long"])
def test_code_is_loaded_before_a_session_is_made(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a large model's nodes will ask for is read from its bytes."""
    nodes = [("Neg", f"x{number + 1}", [f"x{number}"]) for number in range(count)]
    program, _ = program_of(nodes, [f"x{count}"])
    node = helper.make_node("Elementwise", ["x0"], ["y"], domain="d", program=program.text())
    content = helper.make_graph([node, node], "g", [], []).SerializeToString()
    asked = list[str]()
    monkeypatch.setattr(library._library(), "_state_of", asked.append)
    library.prepare(content, [ELEMENTWISE])
    assert asked == [program.text()] * 2
    library.prepare(content, [])
    assert len(asked) == 2
