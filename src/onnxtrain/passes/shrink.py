"""Softshrink and Hardshrink, recognized in the operators that exporters write them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ..graph.nodes import producer_of, scalar

SMALLEST = 1e-30
"""The least limit: what is beyond a smaller one by a rounding error is lost in a mask."""


@dataclass(frozen=True)
class ShrinkParts:
    """x beyond ±limit, less the limit if it is the soft one, and 0 between; the values between."""

    x: ir.Value
    limit: float
    is_soft: bool
    inner: tuple[ir.Value, ...]


def shrink_parts(where: ir.Node) -> ShrinkParts | None:
    """What a Where chooses between, if it is x beyond a limit and zero up to it."""
    condition, yes, no = where.inputs
    compared = producer_of(condition, "Greater", "LessOrEqual")
    if compared is None or condition is None or yes is None or no is None:
        return None
    beyond, within = (yes, no) if compared.op_type == "Greater" else (no, yes)
    size, limit = producer_of(compared.inputs[0], "Abs"), scalar(compared.inputs[1])
    x = size.inputs[0] if size is not None else None
    if size is None or x is None or limit is None or limit < SMALLEST or not _is_zero(within, x):
        return None
    is_soft = _is_moved(beyond, x, limit)
    if not is_soft and beyond is not x:
        return None
    inner = tuple(v for v in (size.outputs[0], beyond, within) if v is not x)
    return ShrinkParts(x, limit, is_soft, inner)


def _is_zero(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is 0, or x times 0, which keeps what is no number."""
    product, cast = producer_of(value, "Mul"), producer_of(value, "Cast")
    if product is None:
        return scalar(value if cast is None else cast.inputs[0]) == 0
    return _is_pair(product, lambda v: v is x, lambda v: scalar(v) == 0)


def _is_moved(value: ir.Value, x: ir.Value, limit: float) -> bool:
    """Whether a value is x less the limit with the sign of x."""
    difference = producer_of(value, "Sub")
    if difference is None or difference.inputs[0] is not x:
        return False
    product = producer_of(difference.inputs[1], "Mul")

    def is_sign(value: ir.Value | None) -> bool:
        sign = producer_of(value, "Sign")
        return sign is not None and sign.inputs[0] is x

    return product is not None and _is_pair(product, is_sign, lambda v: scalar(v) == limit)


def _is_pair(
    node: ir.Node,
    first: Callable[[ir.Value | None], bool],
    second: Callable[[ir.Value | None], bool],
) -> bool:
    a, b = node.inputs
    return (first(a) and second(b)) or (first(b) and second(a))
