"""Norms that are written as powers: the same values, and gradients that are numbers at zero."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain

from .compare import assert_same, normalized, run_ort

ORDERS = [-3.5, -1.0, 0.5, 1.5, 3.0, 4.5]
MODEL = """
<ir_version: 8, opset_import: ["": 18]>
norm (float[N, 4] x) => (float[N] y) {{
    one_axis = Constant <value_ints = [1]> ()
    order = Constant <value = float {{{order}}}> ()
    size = Abs (x)
    powers = Pow (size, order)
    total = ReduceSum <keepdims = 0> (powers, one_axis)
    inverse = Constant <value = float {{{inverse}}}> ()
    root = CastLike (inverse, x)
    y = Pow (total, root)
}}
"""
ROWS = np.array([[1, -2, 0.5, 3], [0, 0, 0, 0], [0, 2, -1, 0]], np.float32)


def model_of(order: float, inverse: float | None = None) -> onnx.ModelProto:
    root = 1 / order if inverse is None else inverse
    return onnx.parser.parse_model(MODEL.format(order=order, inverse=root))


@pytest.mark.parametrize("order", ORDERS)
def test_values_stay(order: float) -> None:
    model = model_of(order)
    assert_same(model, normalized(model), {"x": ROWS}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_gradients(order: float) -> None:
    torch = pytest.importorskip("torch")
    gradient = onnxtrain.differentiate(model_of(order), wrt=["x"], vjp=True)
    seed = np.array([1.0, -2.0, 0.5], np.float32)
    got = run_ort(gradient, {"x": ROWS, "y_grad": seed})[-1]
    x = torch.tensor(ROWS, requires_grad=True)
    torch.linalg.vector_norm(x, order, dim=1).backward(torch.tensor(seed))
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-5, atol=1e-6)
    onnxtrain.check_gradient(model_of(order), {"x": ROWS[:1]}, wrt=["x"]).raise_if_wrong()


def test_other_roots_are_no_norms() -> None:
    after = normalized(model_of(3.0, 0.5))
    assert [n.op_type for n in after.graph.node].count("Where") == 0
