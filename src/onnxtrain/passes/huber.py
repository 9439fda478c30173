"""The Huber and the smooth L1 loss, recognized in the operators that exporters write them with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ..graph.nodes import producer_of, scalar


@dataclass(frozen=True)
class HuberParts:
    """``f·d²`` where the absolute value of d is less than β, and ``2fβ·(|d| - β/2)`` beyond.

    Attributes:
        d: the difference.
        size: its absolute value.
        limit: β.
        curvature: 2f, the second derivative within the limit.
        inner: values in between.
    """

    d: ir.Value
    size: ir.Value
    limit: float
    curvature: float
    inner: tuple[ir.Value, ...]


def huber_parts(node: ir.Node) -> HuberParts | None:
    """What a Where chooses between, if it is a parabola and its tangents."""
    condition, near, far = node.inputs
    less = producer_of(condition, "Less", "LessOrEqual")
    size = less.inputs[0] if less is not None else None
    limit = scalar(less.inputs[1]) if less is not None else None
    absolute = producer_of(size, "Abs")
    d = absolute.inputs[0] if absolute is not None else None
    if size is None or d is None or limit is None or limit <= 0 or near is None or far is None:
        return None
    factor, degree = _monomial(near, (size, d)) or (0.0, 0)
    slope, middle = _line(far, size) or (0.0, 0.0)
    tangent = math.isclose(middle, limit / 2, rel_tol=1e-6)
    if degree != 2 or not tangent or not math.isclose(2 * factor * limit, slope, rel_tol=1e-6):
        return None
    return HuberParts(d, size, limit, 2 * factor, (size, near, far))


def _monomial(value: ir.Value | None, bases: tuple[ir.Value, ...]) -> tuple[float, int] | None:
    """(c, n) of a value that is computed as c·xⁿ from one of the bases."""
    if any(value is base for base in bases):
        return 1.0, 1
    node = producer_of(value, "Mul", "Div", "Pow")
    if node is None:
        number = scalar(value)
        return None if number is None else (number, 0)
    left, right = (_monomial(v, bases) for v in node.inputs)
    if left is None or right is None:
        return None
    if node.op_type == "Mul":
        return left[0] * right[0], left[1] + right[1]
    if right[1] or not right[0]:
        return None
    if node.op_type == "Div":
        return left[0] / right[0], left[1]
    return (left[0] ** 2, 2 * left[1]) if right[0] == 2 else None


def _line(value: ir.Value | None, size: ir.Value) -> tuple[float, float] | None:
    """(k, m) of a value that is computed as k·(size - m)."""
    node = producer_of(value, "Mul", "Div", "Sub")
    if node is None:
        return None
    if node.op_type == "Sub":
        middle = scalar(node.inputs[1])
        return (1.0, middle) if node.inputs[0] is size and middle is not None else None
    for inner, number in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        factor, line = scalar(number), _line(inner, size)
        if factor and line is not None:
            divides = node.op_type == "Div"
            if divides and inner is not node.inputs[0]:
                return None
            return (line[0] / factor if divides else line[0] * factor), line[1]
    return None
