"""Element-wise operators: arithmetic, powers, exponentials, trigonometry, comparisons."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import elementwise, gradient, zero_gradient

# --- arithmetic --------------------------------------------------------------------------------


@elementwise("Add")
def add(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    return dy, dy


@elementwise("Sub")
def sub(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    return dy, -dy


@elementwise("Mul")
def mul(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    return dy * b, dy * a


@elementwise("Div")
def div(op: OpBuilder, dy: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
    da = dy / b
    return da, -(da * y)


@elementwise("Sum")
def sum_(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return (dy,) * len(inputs)


@gradient("Neg")
def neg(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return -dy


@gradient("Identity")
def identity(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy


@gradient("Exp")
def exp(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * y


@gradient("Tanh")
def tanh(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (1.0 - y * y)


@gradient("Sigmoid")
def sigmoid(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy * (y * (1.0 - y))


@gradient("Relu")
def relu(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return op.Where(y > 0, dy, 0)


zero_gradient("Floor", "Ceil", "Round", "Sign")
