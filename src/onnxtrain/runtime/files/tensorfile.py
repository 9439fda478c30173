"""The container of a checkpoint: a safetensors file, written whole and read with suspicion.

Layout: eight bytes with the length of the header (little endian), the header in JSON, the data. The
header maps each name to ``{"dtype", "shape", "data_offsets"}`` and ``__metadata__`` to
strings. Tensors follow each other without gaps or overlap.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from ..state.buffers import TensorSpec
from .atomic import write_atomically
from .dtypes import BY_CODE, ElementType, is_shape, of_array
from .readfile import open_regular

Array = npt.NDArray[Any]
MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Entry:
    """A tensor in the file: what it is, and where its bytes begin after the header."""

    spec: TensorSpec
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """All that a file says about itself."""

    metadata: dict[str, str]
    entries: dict[str, Entry]
    data_start: int


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
    types: Mapping[str, ElementType] | None = None,
) -> None:
    """Write tensors and metadata atomically: the old or the new file is always complete.

    Args:
        path: the file.
        tensors: arrays by name; wide element types are put first, so that all stay aligned.
        metadata: strings.
        types: element types that numpy cannot express (bfloat16 kept as uint16), by name.
    """
    write_atomically(path, encode(tensors, metadata, types), follow_links=True)


def encode(
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
    types: Mapping[str, ElementType] | None = None,
) -> Iterator[bytes | memoryview]:
    """The file in pieces, without copying the tensors; they may be made when they are asked for."""
    specs = dict[str, TensorSpec]()
    for name, array in tensors.items():
        kind = (types or {}).get(name) or of_array(array, f"Tensor {name!r}")
        specs[name] = TensorSpec(name, kind, array.shape)
    order = sorted(specs, key=lambda n: -specs[n].type.numpy.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        spec, end = specs[name], at + specs[name].nbytes
        place = [at, end]
        header[name] = {"dtype": spec.type.code, "shape": [*spec.shape], "data_offsets": place}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise CheckpointError(f"The header would have {len(text)} bytes; {MAX_HEADER} are allowed.")
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        flat = np.ascontiguousarray(tensors[name]).reshape(-1)
        if flat.size:
            yield flat.view(np.uint8).data
        del flat  # before the next one is made


def read_header(file: BinaryIO, where: str) -> Header:
    """Read and check a header; every offset is checked against the size of the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    first = file.read(8)
    if len(first) < 8:
        raise CheckpointError(f"{where} is not a checkpoint: it has only {len(first)} bytes.")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER or length < 2:
        raise CheckpointError(
            f"{where} is not a checkpoint: its header would have {length} bytes "
            f"(2 to {MAX_HEADER} are possible)."
        )
    if length > size - 8:
        raise CheckpointError(
            f"{where} is truncated: the header has {length} bytes, the file {size}."
        )
    return _parse(file.read(length), size - 8 - length, 8 + length, where)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Read a whole file into new arrays (bfloat16 as uint16)."""
    arrays: dict[str, Array] = {}
    where = repr(os.fspath(path))
    with open_checkpoint(path) as file:
        header = read_header(file, where)
        for name, entry in header.entries.items():
            arrays[name] = np.empty(entry.spec.shape, entry.spec.type.numpy)
        fill(file, header, arrays.__getitem__, where)
    return arrays, header.metadata


def fill(file: BinaryIO, header: Header, target: Callable[[str], Array], where: str) -> None:
    """Read every tensor straight into the array that `target` gives for its name."""
    for name, entry in sorted(header.entries.items(), key=lambda item: item[1].begin):
        array = target(name)
        if not array.size:
            continue
        file.seek(header.data_start + entry.begin)
        raw = array.reshape(-1).view(np.uint8)
        if file.readinto(raw.data) != raw.size:  # type: ignore[attr-defined]
            raise CheckpointError(f"{where} is truncated: tensor {name!r} is not complete.")
        if entry.spec.type.code == "BOOL" and raw.max() > 1:
            raise CheckpointError(f"{where} is damaged: {name!r} is boolean and has other bytes.")


def open_checkpoint(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a checkpoint for reading, with errors that name it."""
    try:
        return open_regular(path, CheckpointError)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint {os.fspath(path)!r}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{os.fspath(path)!r} is a directory.") from None


def _parse(text: bytes, data_size: int, data_start: int, where: str) -> Header:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries_by_name = dict(pairs)
        if len(entries_by_name) != len(pairs):
            raise CheckpointError(f"{where} is damaged: a name occurs twice in the header.")
        return entries_by_name

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=_refuse)
    except CheckpointError:
        raise
    except (ValueError, RecursionError):
        raise CheckpointError(f"{where} is not a checkpoint: its header is not JSON.") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{where} is damaged: the header is not a JSON object.")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{where} is damaged: the metadata are not strings.")
    entries = {name: _entry(name, value, where) for name, value in header.items()}
    at = 0
    for entry in sorted(entries.values(), key=lambda e: (e.begin, e.end)):
        if entry.begin != at:
            problem = "overlap" if entry.begin < at else "have a gap between them"
            raise CheckpointError(f"{where} is damaged: tensors {problem} at {entry.spec.name!r}.")
        at = entry.end
    if at != data_size:
        state = "truncated" if at > data_size else "damaged"
        raise CheckpointError(
            f"{where} is {state}: the header describes {at} bytes of data, there are {data_size}."
        )
    return Header(metadata, entries, data_start)


def _entry(name: str, value: Any, where: str) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} is damaged: the description of {name!r} is not complete.")
    kind = BY_CODE.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if kind is None:
        raise CheckpointError(f"{where}: tensor {name!r} has the unknown type {value['dtype']!r}.")
    shape, offsets = value["shape"], value["data_offsets"]
    if not _naturals(shape) or not is_shape(shape):
        raise CheckpointError(f"{where} is damaged: the shape of {name!r} is {shape!r}.")
    if not _naturals(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where} is damaged: the offsets of {name!r} are {offsets!r}.")
    spec = TensorSpec(name, kind, tuple(shape))
    begin, end = offsets
    if end - begin != math.prod(shape) * kind.numpy.itemsize:
        raise CheckpointError(
            f"{where} is damaged: {name!r} has {end - begin} bytes for {kind.code}{shape}."
        )
    return Entry(spec, begin, end)


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in values
    )


def _refuse(constant: str) -> None:
    raise ValueError(constant)
