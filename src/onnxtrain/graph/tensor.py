"""A value of the graph with the arithmetic that lets a gradient rule read like its formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..errors import UnknownRankError
from .schema import FLOATS

if TYPE_CHECKING:
    from .builder import OpBuilder

Dim: TypeAlias = int | str | None
Operand: TypeAlias = "Tensor | int | float | bool | list[int] | np.ndarray[Any, Any] | None"


def dims_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """Dimensions of a value: integers, symbol names, or None; None for an unknown rank."""
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape.dims)


class Tensor:
    """An `ir.Value` together with the builder that extends its graph.

    Arithmetic appends nodes: ``y * (dy - 1)`` emits a Sub and a Mul. Comparisons with ``<``,
    ``<=``, ``>`` and ``>=`` give boolean tensors; equality stays Python's identity (use
    ``op.Equal``).
    """

    __slots__ = ("op", "value")

    def __init__(self, op: OpBuilder, value: ir.Value) -> None:
        self.op, self.value = op, value

    @property
    def name(self) -> str:
        """Name of the value in the graph."""
        return self.value.name or ""

    @property
    def dtype(self) -> ir.DataType:
        """Element type (FLOAT when nothing is known, the type nearly all values have)."""
        return self.value.dtype if self.value.dtype is not None else ir.DataType.FLOAT

    @property
    def is_float(self) -> bool:
        """Whether the element type is one that gradients exist for."""
        return self.dtype in FLOATS

    @property
    def shape(self) -> tuple[Dim, ...] | None:
        """Dimensions as integers, symbol names or None; None when the rank is unknown."""
        return dims_of(self.value)

    @property
    def rank(self) -> int:
        """Number of dimensions; raises `UnknownRankError` when shape inference did not find it."""
        shape = self.shape
        if shape is None:
            raise UnknownRankError(
                f"The number of dimensions of {self.name!r} is not known. Give the model's inputs "
                "full shapes (symbolic dimensions are fine), so that shape inference can tell."
            )
        return len(shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when every dimension is a known number, else None."""
        shape = self.shape
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return tuple(d for d in shape if isinstance(d, int))

    @property
    def const(self) -> np.ndarray[Any, Any] | None:
        """The array behind a constant, None for everything computed, fed or trained."""
        tensor = self.value.const_value
        if tensor is None or self.value.is_graph_input():
            return None
        return tensor.numpy()

    def dim(self, axis: int) -> Dim:
        """One dimension; None when unknown."""
        shape = self.shape
        return None if shape is None else shape[axis]

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype.name}{list(self.shape or ['…'])})"

    def __add__(self, other: Operand) -> Tensor:
        return self.op.Add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.op.Add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.op.Sub(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.op.Sub(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.op.Mul(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.op.Mul(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.op.Div(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.op.Div(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return self.op.Pow(self, other)

    def __matmul__(self, other: Operand) -> Tensor:
        return self.op.MatMul(self, other)

    def __neg__(self) -> Tensor:
        return self.op.Neg(self)

    def __lt__(self, other: Operand) -> Tensor:
        return self.op.Less(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return self.op.LessOrEqual(self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return self.op.Greater(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return self.op.GreaterOrEqual(self, other)
