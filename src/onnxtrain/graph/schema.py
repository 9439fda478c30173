"""What the ONNX schemas say about operand types, in a form the builder can ask quickly."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)
MIN_OPSET, MAX_OPSET, MAX_IR = 18, 21, 10
"""What is emitted: the range that every onnxruntime from 1.22 on runs, in browsers too."""


@dataclass(frozen=True)
class Signature:
    """Type variables of an operator's operands, and the types each variable may take."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    allowed: Mapping[str, tuple[str, ...]]

    def input(self, index: int) -> str:
        """Type variable of an input; a variadic last input repeats."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def output(self, index: int) -> str:
        """Type variable of an output; a variadic last output repeats."""
        return self.outputs[min(index, len(self.outputs) - 1)]

    def types(self, variable: str) -> tuple[str, ...]:
        """Types that a type variable may take (a concrete type stands for itself)."""
        return self.allowed.get(variable, (variable,))


@functools.cache
def signature(op_type: str, opset: int, domain: str = "") -> Signature:
    """The signature of an operator; of one without a schema, all operands share one type."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        if domain in ("", "ai.onnx"):
            raise
        return Signature(("T",), ("T",), {"T": ("tensor(float)",)})
    return Signature(
        tuple(p.type_str for p in schema.inputs),
        tuple(p.type_str for p in schema.outputs),
        {c.type_param_str: tuple(c.allowed_type_strs) for c in schema.type_constraints},
    )


def constant_dtype(
    sig: Signature, index: int, dtypes: Sequence[ir.DataType | None], is_float: bool
) -> ir.DataType:
    """Type of a Python constant at an operand position: like its siblings, else by the schema."""
    variable = sig.input(index)
    for other, dtype in enumerate(dtypes):
        if dtype is not None and sig.input(other) == variable:
            return dtype
    allowed = sig.types(variable)
    for candidate in ("int64", "bool", "float"):
        if f"tensor({candidate})" in allowed and not (is_float and candidate != "float"):
            return ir.DataType.from_short_name(_SHORT[candidate])
    return ir.DataType.FLOAT


_SHORT = {"int64": "i64", "bool": "b8", "float": "f32"}


def output_dtype(
    sig: Signature,
    index: int,
    dtypes: Sequence[ir.DataType | None],
    attributes: Mapping[str, Any],
) -> ir.DataType | None:
    """Type of an output: as the attributes say, like an input, or the only one allowed."""
    variable = sig.output(index)
    for other, dtype in enumerate(dtypes):
        if dtype is not None and sig.input(other) == variable:
            return dtype
    for key in ("to", "dtype"):
        if key in attributes:
            return ir.DataType(int(attributes[key]))
    allowed = sig.types(variable)
    if len(allowed) > 1 and "value" in attributes:
        return ir.tensor(attributes["value"]).dtype
    for name, dtype in (("int64", ir.DataType.INT64), ("bool", ir.DataType.BOOL)):
        if f"tensor({name})" in allowed and "tensor(float)" not in allowed:
            return dtype
    return next((d for d in dtypes if d is not None), ir.DataType.FLOAT)
