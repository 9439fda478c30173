"""The gradient of a Pad that reflects, repeats or wraps around, by a kernel of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.operators import INSIDE, KERNEL
from onnxtrain.passes import folds
from onnxtrain.passes.partition import partition
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.library import is_available
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session.kernels import with_own_kernels

from .test_kernels import both_ways, operators_of, outline_of, parsed, run

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no numba, or no Linux")

CASES = [
    ((30, 4), (0, 1, 0, 2)), ((5, 6, 7), (0, 2, 3, 0, 1, 2)), ((5, 6, 7), (1, 0, 0, 2, 0, 0)),
    ((2, 3, 4, 5, 6), (0, 0, 1, 2, 3, 0, 0, 3, 2, 1)), ((9,), (4, 4)),
    ((5, 6, 7), (2, 0, 0, 2, 0, 0)),
    ((4001, 3), (0, 1, 0, 1)), ((0, 5), (0, 1, 0, 1)), ((3, 0, 5), (0, 0, 1, 0, 0, 1)),
    ((7, 4, 3, 1), (0, 2, 1, 0, 0, 3, 2, 0)), ((2, 2, 40, 33), (0, 0, 5, 6, 0, 0, 7, 30)),
    ((3, 5, 40), (0, 4, 0, 0, 3, 0)), ((4, 8, 300), (0, 0, 7, 0, 0, 0)), ((513, 20), (0, 0, 0, 9)),
]  # fmt: skip
"""Shapes and pads: one axis and several, the first and the last, floats behind them, no element."""


def gradient(mode: str, dims: str, pads: tuple[int, ...]) -> bytes:
    """The backward half of a Pad, of a file as it is."""
    numbers, open_dims = ", ".join(map(str, pads)), ",".join("?" * (len(pads) // 2))
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[{dims}] x) => (float[{open_dims}] y)
        <int64[{len(pads)}] pads = {{{numbers}}}> {{ y = Pad<mode = "{mode}">(x, pads) }}"""
    both = onnxtrain.differentiate(onnx.parser.parse_model(text), wrt=["x"], vjp=True)
    return partition(both, ["y_grad"], ["x_grad"]).backward.SerializeToString()


def exact(mode: Any, shape: tuple[int, ...], pads: tuple[int, ...], dy: Any) -> Any:
    """The gradient in double precision, element by element."""
    places = np.arange(np.prod(shape)).reshape(shape)
    each = list(zip(pads[: len(shape)], pads[len(shape) :]))
    result = np.zeros(places.size)
    np.add.at(result, np.pad(places, each, mode=mode).ravel(), dy.astype(np.float64).ravel())
    return result.reshape(shape)


def padded(shape: tuple[int, ...], pads: tuple[int, ...]) -> tuple[int, ...]:
    half = len(shape)
    return tuple(d + b + a for d, b, a in zip(shape, pads[:half], pads[half:]))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(("shape", "pads"), CASES)
def test_gradients(
    monkeypatch: pytest.MonkeyPatch, mode: str, shape: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    limit = {"reflect": 1, "edge": 0, "wrap": 0}[mode]
    used = [(p, d - limit) for p, d in zip(pads, (*shape, *shape)) if p]
    if mode != "edge" and any(p > most for p, most in used):
        pytest.skip("it goes around more than once")
    monkeypatch.setattr(folds, "ELEMENTS", 0)
    dy = np.random.default_rng(0).standard_normal(padded(shape, pads)).astype(np.float32)
    content = gradient(mode, ",".join(map(str, shape)), pads)
    assert operators_of(content) == ["PadGradient"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"y_grad": dy})
    np.testing.assert_allclose(ours, exact(mode, shape, pads, dy), rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(ours, plain, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("batch", [0, 1, 700])
def test_open_sizes(monkeypatch: pytest.MonkeyPatch, mode: str, batch: int) -> None:
    """Of axes that are not padded."""
    pads = (0, 0, 2, 1, 0, 0, 1, 3)
    content = gradient(mode, "N,C,5,6", pads)
    assert operators_of(content) == ["PadGradient"]
    shape = (batch, 3, 5, 6)
    dy = np.random.default_rng(0).standard_normal(padded(shape, pads)).astype(np.float32)
    (ours,), _ = both_ways(monkeypatch, content, {"y_grad": dy})
    np.testing.assert_allclose(ours, exact(mode, shape, pads, dy), rtol=3e-6, atol=3e-6)


def test_open_sizes_of_a_padded_axis_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    content = gradient("edge", "N,500", (1, 0, 2, 0))
    assert "PadGradient" not in operators_of(content)
    feeds = {"x": np.ones((4, 500), np.float32), "y_grad": np.ones((7, 500), np.float32)}
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds)
    np.testing.assert_array_equal(ours, plain)


def test_no_number_and_infinities(monkeypatch: pytest.MonkeyPatch) -> None:
    content = gradient("reflect", "3000,4", (0, 1, 0, 2))
    dy = np.ones((3000, 7), np.float32)
    dy[0, 0], dy[1, 6], dy[2, 3], dy[3, 1], dy[3, 3] = np.nan, np.inf, -np.inf, np.inf, -np.inf
    (ours,), (plain,) = both_ways(monkeypatch, content, {"y_grad": dy})
    np.testing.assert_array_equal(ours, plain)


def test_axes_that_are_apart_and_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold for each axis, as there is one between them; none where it is not worth it."""
    assert "PadGradient" not in operators_of(gradient("edge", "30,20", (1, 1, 1, 1)))
    pads = (2, 0, 3, 1, 0, 4)
    content, dy = gradient("reflect", "50,30,20", pads), np.ones((53, 30, 27), np.float32)
    assert operators_of(content) == ["PadGradient", "PadGradient"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"y_grad": dy})
    np.testing.assert_array_equal(ours, plain)


SUM = """g (float[A,B] dy) => (float[C,D] dx) <int64[1] axis = {{1}}, int64[1] back = {{-1}},
    int64[1] b = {{{begin}}}, int64[1] e = {{{end}}}, int64[1] p = {{{left}}},
    int64[1] q = {{{right}}}, int64[2] pads = {{{before}, {behind}}}> {{
    middle = Slice(dy, b, e, axis) end = Slice(dy, p, q, axis{step}) part = Pad(end, pads, , axis)
    dx = Add(middle, part) }}"""


def by_hand(mark_of: str = KERNEL, **changes: Any) -> bytes:
    said = {"begin": 2, "end": 2**62, "left": 1, "right": -(2**62), "before": 1, "behind": 97}
    model = parsed(SUM.format(**{**said, "step": ", back", **changes}))
    for node in model.graph.node:
        node.doc_string = mark_of if node.op_type == "Add" else INSIDE
    return model.SerializeToString()


def test_marks_of_another_sum_change_nothing() -> None:
    """What a mark says is not believed."""
    assert operators_of(by_hand()) == ["PadGradient"]
    for wrong in (
        {"before": 2}, {"step": ""}, {"begin": 3},
        {"begin": -2}, {"end": 90}, {"behind": 2**40},
        {"before": -1}, {"left": 2**62}, {"left": 2}, {"right": 2**62},
    ):  # fmt: skip
        assert "PadGradient" not in operators_of(by_hand(**wrong)), wrong


def test_sums_of_themselves_end() -> None:
    """Sums that double sixty times are not followed to their ends."""
    lines = " ".join(f"x{i + 1} = Add(x{i}, x{i})" for i in range(60))
    model = parsed(f"g (float[A,B] x0) => (float[A,B] x60) {{ {lines} }}")
    for node in model.graph.node:
        node.doc_string = KERNEL
    assert with_own_kernels(outline_of(model.SerializeToString())) is None


def test_a_gradient_of_another_size_is_refused() -> None:
    content = by_hand()
    assert run(content, {"dy": np.ones((2, 102), np.float32)})[0].shape == (2, 100)
    for shape in ((2, 101), (2, 4), (2, 0)):
        with pytest.raises(Exception, match="do not have the shapes"):
            run(content, {"dy": np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    "numbers",
    ["", "1", "1 0", "0 1 0 1 1 4", "4 1 0 1 1 4", "1 1 -1 1 1 4", "1 1 0 -1 1 4", "1 1 0 1 1 0",
     "1 2 0 1 1 4", "1 2 0 1 1 4 2 1 1 4", "1 1 8 1 1 4", "1 1 0 1 1 9999999", "1 1 0 1 a 4"],
)  # fmt: skip
def test_bad_attributes_are_refused(numbers: str) -> None:
    with pytest.raises(ProgramError):
        operators.PAD_GRADIENT.parse(numbers)
