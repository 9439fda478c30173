"""The tables of an ``.onnx_adapter`` file, read here: FlatBuffers, identifier ``TORT``.

onnxruntime up to 1.23 believes the shapes in such a file and reads beyond its end. The file has
three numbers (versions of the format, the adapter, the model) and a list of tensors: name,
dimensions, element type, bytes. Every offset and size in it is checked against the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import AdapterError
from .values import Array

IDENTIFIER = b"TORT"
MODEL_VERSION, PARAMETERS = 2, 3
"""Fields of the file."""
NAME, DIMS, TYPE, DATA = range(4)
"""Fields of a tensor."""
TYPES = {1: np.float32, 10: np.float16, 11: np.float64}
MOST_DIMS = 8


@dataclass(frozen=True)
class Tables:
    """What a file holds: the number that says which base it is for, and tensors by name."""

    model_version: int
    values: dict[str, Array]


def read_tables(content: bytes, where: str) -> Tables:
    """Read a file of onnxruntime's.

    Raises:
        AdapterError: it is none, is damaged, or has other tensors than floats.
    """
    if content[4:8] != IDENTIFIER:
        raise AdapterError(f"{where} is no .onnx_adapter of onnxruntime.")
    try:
        root = _Table(content, *struct.unpack_from("<I", content))
        version = root.number(MODEL_VERSION)
        values, left = {}, len(content)
        for table in root.tables(PARAMETERS):
            name, array = _tensor(table, where)
            left -= array.nbytes  # several may lie in one place, and the file would grow
            if left < 0 or name in values:
                raise AdapterError(f"{where} is damaged: its tensors are more than the file holds.")
            values[name] = array
    except (struct.error, UnicodeDecodeError) as error:
        raise AdapterError(f"{where} is damaged or cut: {error}.") from None
    return Tables(version, values)


def _tensor(table: _Table, where: str) -> tuple[str, Array]:
    name = table.bytes(NAME).decode("utf-8")
    raw, kind = table.bytes(DIMS, 8), table.number(TYPE)
    dims = struct.unpack(f"<{len(raw) // 8}q", raw)
    dtype, data = TYPES.get(kind), table.bytes(DATA)
    if dtype is None:
        raise AdapterError(f"{where}: {name!r} is no tensor of floats (type {kind}).")
    if len(dims) > MOST_DIMS or any(d < 0 for d in dims):
        raise AdapterError(f"{where} is damaged: {name!r} has dimensions {list(dims)[:MOST_DIMS]}.")
    if math.prod(dims) * np.dtype(dtype).itemsize != len(data):
        raise AdapterError(
            f"{where} is damaged: {name!r} has dimensions {list(dims)} and {len(data)} bytes."
        )
    return name, np.frombuffer(data, dtype).reshape(dims).copy()


class _Table:
    """One table; a `struct.error` where it does not fit into the file."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._unpack("<i", at)

    def _unpack(self, form: str, at: int) -> int:
        if at < 0:
            raise struct.error(f"an offset of {at}")
        (value,) = struct.unpack_from(form, self._data, at)
        return int(value)

    def _field(self, number: int) -> int:
        """Where a field is; 0 if it is not there."""
        entry = 4 + 2 * number
        if entry >= self._unpack("<H", self._fields):
            return 0
        offset = self._unpack("<H", self._fields + entry)
        return self._at + offset if offset else 0

    def number(self, field: int) -> int:
        """A number of 32 bits; 0 if it is not there."""
        at = self._field(field)
        return self._unpack("<i", at) if at else 0

    def _vector(self, field: int) -> tuple[int, int]:
        """Where a list begins, and how many entries it has."""
        at = self._field(field)
        if not at:
            return 0, 0
        at += self._unpack("<I", at)
        return at + 4, self._unpack("<I", at)

    def bytes(self, field: int, each: int = 1) -> bytes:
        """The bytes of a list whose entries have so many each."""
        begin, count = self._vector(field)
        data = self._data[begin : begin + count * each]
        if len(data) != count * each:
            raise struct.error("a list goes beyond the end")
        return data

    def tables(self, field: int) -> Iterator[_Table]:
        """A list of tables."""
        begin, count = self._vector(field)
        for at in range(begin, begin + 4 * count, 4):
            yield _Table(self._data, at + self._unpack("<I", at))
