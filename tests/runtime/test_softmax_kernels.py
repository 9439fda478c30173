"""A softmax that is written out, its logarithm and their gradients, as nodes of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxtrain
from onnxtrain.operators import KERNEL
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.program import ProgramError

from .test_kernels import both_ways, operators_of, parsed, run

SHAPES = [
    ((300, 3, 50), 1), ((2500, 2, 20), 1), ((400, 4, 5, 10), -3), ((70, 12, 33), 1),
]  # fmt: skip


def written(operator: str, shape: Any, axis: int) -> bytes:
    """The gradient of a softmax; fast forms write it out."""
    sizes = ",".join(map(str, shape))
    text = f"g (float[{sizes}] x) => (float[{sizes}] y) {{ y = {operator}<axis={axis}>(x) }}"
    return onnxtrain.differentiate(parsed(text), wrt=["x"], vjp=True).SerializeToString()


def exact(operator: str, x: Any, dy: Any, axis: int) -> tuple[Any, Any]:
    """Result and gradient in double precision."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    log = x - x.max(axis, keepdims=True)
    log = log - np.log(np.exp(log).sum(axis, keepdims=True))
    p = np.exp(log)
    if operator == "Softmax":
        return p, p * (dy - (dy * p).sum(axis, keepdims=True))
    return log, dy - p * dy.sum(axis, keepdims=True)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_written_softmax(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axis: int, operator: str
) -> None:
    content, rng = written(operator, shape, axis), np.random.default_rng(0)
    assert operators_of(content) == ["SoftmaxAcross", "SoftmaxGradientAcross"]
    x, dy = (rng.standard_normal(shape).astype(np.float32) * n for n in (5, 1))
    ours, plain = both_ways(monkeypatch, content, {"x": x, "y_grad": dy})
    for result, other, right in zip(ours, plain, exact(operator, x, dy, axis), strict=True):
        np.testing.assert_allclose(result, right, rtol=5e-6, atol=5e-6)
        np.testing.assert_allclose(result, other, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_what_is_no_number(monkeypatch: pytest.MonkeyPatch, operator: str) -> None:
    content = written(operator, (300, 3, 50), 1)
    x, dy = np.ones((2, 300, 3, 50), np.float32)
    special = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0]
    x[0, 0, :7] = x[1, 1, :7] = x[2, 2, 3:10] = dy[3, 0, :7] = special
    x[4, :, 0], x[5, :2, 0] = -np.inf, np.inf
    ours, plain = both_ways(monkeypatch, content, {"x": x, "y_grad": dy})
    for result, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(result, other, rtol=5e-6, atol=5e-6)


def test_open_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    content, rng = written("Softmax", ("N", 3, 50), 1), np.random.default_rng(0)
    assert operators_of(content) == ["SoftmaxAcross", "SoftmaxGradientAcross"]
    for rows in (0, 1, 200):
        feeds = {n: rng.random((rows, 3, 50), np.float32) for n in ("x", "y_grad")}
        ours, plain = both_ways(monkeypatch, content, feeds)
        for result, other in zip(ours, plain, strict=True):
            np.testing.assert_allclose(result, other, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((300, 3, 80), 1), ((300, 13, 60), 1), ((300, "C", 50), 1), ((300, 3, 50), 2),
     ((9, 3, 50), 1)],
)  # fmt: skip
def test_what_onnxruntime_is_left(shape: Any, axis: int) -> None:
    """Long axes, many numbers behind them, the last axis, few numbers in all."""
    assert not {*operators_of(written("Softmax", shape, axis))} & {
        "SoftmaxAcross",
        "SoftmaxGradientAcross",
    }


def test_marks_of_another_formula_change_nothing() -> None:
    """What a mark says is not believed."""
    text = (
        "g (float[300,3,50] x) => (float[300,3,50] y) <int64[1] axes = {1}, int64[1] other = {2}>"
        "{ m = ReduceMax(x, other) b = Sub(x, m) e = Exp(b) s = ReduceSum(e, axes) y = Div(e, s) }"
    )
    model = parsed(text)
    for node in model.graph.node:
        node.doc_string = KERNEL
    assert "SoftmaxAcross" not in operators_of(model.SerializeToString())


def test_a_gradient_of_another_size_is_refused() -> None:
    text = (
        "g (float[A,3,50] dy, float[B,3,50] y) => (float[A,3,50] dx) <int64[1] axes = {1}>"
        "{ p = Mul(dy, y) s = ReduceSum(p, axes) d = Sub(dy, s) dx = Mul(y, d) }"
    )
    model = parsed(text)
    for node in model.graph.node:
        node.doc_string = KERNEL
    content = model.SerializeToString()
    assert operators_of(content) == ["SoftmaxGradientAcross"]
    feeds = {"dy": np.ones((4, 3, 50), np.float32), "y": np.ones((1, 3, 50), np.float32)}
    with pytest.raises(Exception, match="do not have the shapes"):
        run(content, feeds)


@pytest.mark.parametrize("numbers", ["", "1", "1 2", "9 0", "1 0 0", "a 0"])
def test_bad_attributes_are_refused(numbers: str) -> None:
    with pytest.raises(ProgramError):
        operators.SOFTMAX_GRADIENT_ACROSS.parse(numbers)


def test_shared_parts_are_left() -> None:
    """Where somebody else reads the exponentials they are computed."""
    model: onnx.ModelProto = parsed(
        "g (float[300,3,50] x) => (float[300,3,50] y, float[300,3,50] e) <int64[1] axes = {1}>"
        "{ m = ReduceMax(x, axes) b = Sub(x, m) e = Exp(b) s = ReduceSum(e, axes) y = Div(e, s) }"
    )
    result = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert "SoftmaxAcross" not in operators_of(result.SerializeToString())
