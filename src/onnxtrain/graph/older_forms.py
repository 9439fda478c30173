"""Operators in the forms that they had before opset 18.

Formulas are written with today's operators. `OLDER` says since which opset an operator has the form
in which they use it, and what stands for it in a model that is older.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from .schema import FLOATS
from .tensor import Operand, Tensor

if TYPE_CHECKING:
    from .builder import OpBuilder

Older = Callable[["OpBuilder", str, list[Any], dict[str, Any]], "Tensor | None"]
"""(builder, operator, operands, attributes) → the result; None where the form is the same."""


def axes_attribute(
    op: OpBuilder, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> Tensor | None:
    """Axes were an attribute, and before opset 11 not negative."""
    if len(inputs) < 2 or inputs[1] is None:
        return None
    axes = [int(a) for a in inputs[1]]
    if not axes and attributes.get("noop_with_empty_axes"):
        return op.Identity(inputs[0])
    attributes = {k: v for k, v in attributes.items() if k != "noop_with_empty_axes"}
    if not axes:
        return op.exactly(op_type, inputs[0], **attributes)
    if op.opset < 11 and op_type != "Unsqueeze" and min(axes) < 0:
        axes = [a % inputs[0].rank for a in axes]
    return op.exactly(op_type, inputs[0], axes=axes, **attributes)


def part_of_shape(
    op: OpBuilder, _: str, inputs: list[Any], attributes: dict[str, Any]
) -> Tensor | None:
    """There was the whole shape only."""
    if not attributes:
        return None
    start, end = attributes.get("start", 0), attributes.get("end", np.iinfo(np.int64).max)
    return op.Slice(op.exactly("Shape", inputs[0]), [start], [end], [0])


def clip(op: OpBuilder, _: str, inputs: list[Any], attributes: dict[str, Any]) -> Tensor:
    """Limits were attributes."""
    low, high = [*inputs[1:], None, None][:2]
    return op.exactly("Clip", inputs[0], min=low, max=high)


def limit(
    op: OpBuilder, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> Tensor | None:
    """Max and Min did not broadcast; against a number, Clip does what they do."""
    x, number = inputs
    if isinstance(number, Tensor):
        return None
    return op.exactly("Clip", x, **{"min" if op_type == "Max" else "max": float(number)})


def softmax(
    op: OpBuilder, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> Tensor | None:
    """All axes from the given one on were taken together."""
    (x,) = inputs
    rank, axis = x.rank, attributes.get("axis", -1) % x.rank
    if axis == rank - 1:
        return op.exactly(op_type, x, axis=axis)
    order = [*range(axis), *range(axis + 1, rank), axis]
    back = [order.index(i) for i in range(rank)]
    turned = op.exactly(op_type, op.Transpose(x, perm=order), axis=rank - 1)
    return op.Transpose(turned, perm=back)


def equal(op: OpBuilder, _: str, inputs: list[Any], attributes: dict[str, Any]) -> Tensor | None:
    """Floats could not be compared; these are whole numbers."""
    x, y = inputs
    if x.dtype not in FLOATS:
        return None
    whole = [_cast(op, v, ir.DataType.INT64) for v in (x, y)]
    return op.exactly("Equal", *whole)


def less(op: OpBuilder, op_type: str, inputs: list[Any], _: dict[str, Any]) -> Tensor | None:
    """Only floats could be compared."""
    if inputs[0].dtype in FLOATS:
        return None
    return op.exactly(op_type, *(_cast(op, v, ir.DataType.FLOAT) for v in inputs))


def where(op: OpBuilder, _: str, inputs: list[Any], attributes: dict[str, Any]) -> Tensor:
    """There was no Where: of whole numbers, this is a sum of two products."""
    condition: Tensor
    condition, yes, no = inputs
    dtype = next(v.dtype for v in (yes, no) if isinstance(v, Tensor))
    mask, inverse = (op.Cast(c, to=dtype) for c in (condition, op.Not(condition)))
    return op.Add(mask * yes, inverse * no)


def _cast(op: OpBuilder, value: Operand, dtype: ir.DataType) -> Tensor:
    if isinstance(value, Tensor):
        return op.Cast(value, to=dtype)
    return op.const(np.asarray(value), dtype)


OLDER: dict[str, tuple[int, Older]] = {
    **dict.fromkeys(
        (
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSumSquare",
        ),
        (18, axes_attribute),
    ),
    "ReduceSum": (13, axes_attribute),
    "Squeeze": (13, axes_attribute),
    "Unsqueeze": (13, axes_attribute),
    "Softmax": (13, softmax),
    "LogSoftmax": (13, softmax),
    "Shape": (15, part_of_shape),
    "Clip": (11, clip),
    "Equal": (11, equal),
    "Less": (9, less),
    "Where": (9, where),
    "Max": (8, limit),
    "Min": (8, limit),
}
"""Operator → the opset since which it has today's form, and how to write it before."""
