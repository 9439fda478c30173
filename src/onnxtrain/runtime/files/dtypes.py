"""Element types under their three names: checkpoint code, ONNX number, numpy storage.

bfloat16 and the 8-bit floats have no numpy type of their own; they are carried as unsigned
integers of the same width and handed to onnxruntime by their ONNX number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError


@dataclass(frozen=True)
class ElementType:
    """One element type."""

    code: str
    """Name in a safetensors header."""
    onnx: int
    """Number in `TensorProto.DataType`."""
    numpy: np.dtype[Any]
    """How the values are stored."""
    opaque: bool = False
    """Whether numpy has no such type and `numpy` only has its width."""

    @property
    def binding(self) -> Any:
        """What onnxruntime's binding calls take as the element type."""
        return self.onnx if self.opaque else self.numpy.type


_TABLE = [
    ElementType("F64", 11, np.dtype("<f8")),
    ElementType("F32", 1, np.dtype("<f4")),
    ElementType("F16", 10, np.dtype("<f2")),
    ElementType("BF16", 16, np.dtype("<u2"), opaque=True),
    ElementType("F8_E4M3", 17, np.dtype("u1"), opaque=True),
    ElementType("F8_E5M2", 19, np.dtype("u1"), opaque=True),
    ElementType("I64", 7, np.dtype("<i8")),
    ElementType("I32", 6, np.dtype("<i4")),
    ElementType("I16", 5, np.dtype("<i2")),
    ElementType("I8", 3, np.dtype("i1")),
    ElementType("U64", 13, np.dtype("<u8")),
    ElementType("U32", 12, np.dtype("<u4")),
    ElementType("U16", 4, np.dtype("<u2")),
    ElementType("U8", 2, np.dtype("u1")),
    ElementType("BOOL", 9, np.dtype("?")),
]
BY_CODE = {t.code: t for t in _TABLE}
BY_ONNX = {t.onnx: t for t in _TABLE}
BY_NUMPY = {t.numpy: t for t in reversed(_TABLE) if not t.opaque}
F32 = BY_CODE["F32"]
MAX_RANK = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
"""Dimensions of a tensor: numpy has no more."""
STRING = 8
"""ONNX's number for text, which has no buffer."""


def is_shape(dims: Sequence[int]) -> bool:
    """Whether an array can have this shape.

    numpy refuses what cannot be addressed, even when one side is 0 and there are no elements.
    """
    natural = all(d >= 0 for d in dims)
    return natural and len(dims) <= MAX_RANK and math.prod(filter(None, dims)) < 2**60


_FOREIGN = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def of_array(array: npt.NDArray[Any], name: str = "the array") -> ElementType:
    """Element type of a numpy array; an error names what cannot be held."""
    kind = BY_NUMPY.get(array.dtype)
    if kind is None and array.dtype.name in _FOREIGN:
        return BY_CODE[_FOREIGN[array.dtype.name]]
    if kind is None:
        raise InputError(f"{name} has the type {array.dtype}, which no tensor of a model can have.")
    return kind


def stored(array: npt.NDArray[Any], kind: ElementType) -> npt.NDArray[Any]:
    """The array as it is stored: the bits of a type that numpy itself does not have."""
    if kind.opaque and array.dtype != kind.numpy:
        return np.ascontiguousarray(array).view(kind.numpy).reshape(array.shape)
    return array


def type_name(onnx: int | None) -> str:
    """A readable name of an ONNX element type."""
    if onnx is None:
        return "not a tensor"
    if onnx == STRING:
        return "string"
    known = BY_ONNX.get(onnx)
    if known is None:
        return f"ONNX element type {onnx}"
    return known.code.lower() if known.opaque else str(known.numpy)
