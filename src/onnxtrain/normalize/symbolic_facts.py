"""What is known of the values of a graph: dimensions as polynomials, contents of small tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..graph.tensor import dims_of
from .polynomial import Poly

Array: TypeAlias = "np.ndarray[Any, Any]"
SymDim: TypeAlias = "int | Poly | None"

MAX_ELEMENTS = 64
"""Contents are followed only for tensors this small: shapes, axes, scalars."""


class Facts:
    """Dimensions and contents found so far."""

    def __init__(self) -> None:
        self.symbols: dict[str, Poly] = {}
        self.contents: dict[ir.Value, Array] = {}

    def dims(self, value: ir.Value | None) -> list[SymDim] | None:
        """Dimensions as integers and polynomials."""
        shape = None if value is None else dims_of(value)
        if shape is None:
            return None
        return [self._poly(d) if isinstance(d, str) else d for d in shape]

    def _poly(self, name: str) -> Poly:
        return self.symbols.setdefault(name, Poly.symbol(name))

    def content(self, value: ir.Value | None) -> Array | None:
        """The elements of a small constant or followed tensor."""
        if value is None:
            return None
        if value in self.contents:
            return self.contents[value]
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or tensor.size > MAX_ELEMENTS:
            return None
        if tensor.dtype == ir.DataType.BOOL:
            return tensor.numpy()
        if not tensor.dtype.is_integer():  # a float may be a parameter
            return None
        return tensor.numpy().astype(object)

    def set_dims(self, value: ir.Value, dims: list[SymDim] | None) -> None:
        """Fill in dimensions that are unknown so far, or known only by a made-up symbol."""
        if dims is None:
            return
        old = dims_of(value)
        if old is not None and len(old) != len(dims):
            return
        merged: list[int | str | None] = []
        for i, new in enumerate(dims):
            before = None if old is None else old[i]
            if isinstance(before, int) or new is None:
                merged.append(before)
            else:
                merged.append(new if isinstance(new, int) else self._symbol(new))
        if tuple(merged) != old:
            value.shape = ir.Shape(merged)

    def _symbol(self, poly: Poly) -> str:
        name = str(poly)
        self.symbols.setdefault(name, poly)
        return name


def product(dims: list[SymDim]) -> Poly | int:
    """The number of elements of a shape."""
    total: Poly | int = 1
    for d in dims:
        total = Poly.of(total) * d
    return total
