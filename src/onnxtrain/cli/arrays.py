"""Arrays from files of numpy, csv and parquet; what they claim is checked before it is believed."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from ..data import files as data_files
from ..runtime.files.readfile import ALLOWED_BYTES, GROWTH, refuse_growth
from .output import UserError

Array = npt.NDArray[Any]
PathLike: TypeAlias = "str | os.PathLike[str]"


reading = partial(data_files.reading, raises=UserError)


def read_npy(path: PathLike) -> Array:
    """One array; mapped first, so that a shape larger than the file costs nothing."""
    remedy = "Write it with numpy.save, as numbers and not as Python objects."
    with reading(path, "a numpy array", remedy) as file:
        # Typed since numpy 2.3, which Python 3.10 has not.
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call, unused-ignore]
        if version[0] not in {1, 2, 3}:
            raise UserError(f"{os.fspath(path)!r} has version {version} of the npy format.")
        mapped = np.lib.format.open_memmap(os.fspath(path), mode="r")  # type: ignore[no-untyped-call, unused-ignore]
        return np.array(mapped)


def read_npz(path: PathLike) -> dict[str, Array]:
    """Arrays by name."""
    remedy = (
        "Write it with numpy.savez(file, x=..., labels=...), as numbers and not as Python objects."
    )
    with reading(path, "an npz file", remedy) as file:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        refuse_growth(
            path, unpacked, "Write it with numpy.savez, not numpy.savez_compressed.", UserError
        )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def read_csv(path: PathLike) -> dict[str, Array]:
    """A table by columns."""
    remedy = "It must be text in UTF-8 with one line per row."
    with (
        reading(path, "a csv file", remedy) as file,
        io.TextIOWrapper(unpacked(path, file), encoding="utf-8-sig", newline="") as text,
    ):
        rows = _rows(text)
    shown = os.fspath(path)
    if not rows:
        raise UserError(f"{shown!r} is empty. It needs a line of column names and rows.")
    names, rows = [n.strip() for n in rows[0][1]], rows[1:]
    if all(is_number(n) for n in names):
        raise UserError(
            f"The first line of {shown!r} holds numbers: {', '.join(names[:5])}. A csv file "
            "needs a first line with the names of its columns."
        )
    for number, row in rows:
        if len(row) != len(names):
            raise UserError(
                f"Line {number} of {shown!r} has {len(row)} cells, and there are {len(names)} "
                "columns: complete the line or remove it."
            )
    cells = list(zip(*(row for _, row in rows))) or [()] * len(names)
    return {n: _column(c) for n, c in zip(names, cells)}


def unpacked(path: PathLike, file: BinaryIO) -> BinaryIO:
    """The content of a file that may be compressed with gzip, which is told by its name."""
    if not os.fspath(path).lower().endswith(".gz"):
        return file
    most = max(GROWTH * os.path.getsize(path), ALLOWED_BYTES)
    with gzip.GzipFile(fileobj=file) as archive:
        content = archive.read(most + 1)
    refuse_growth(path, len(content), "unpack it, and give the file that is in it.", UserError)
    return io.BytesIO(content)


def _rows(text: io.TextIOWrapper) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, each with the number of its last line."""
    first = text.read(65536).split("\n", 1)[0]
    text.seek(0)
    separator = max(",;\t", key=first.count)
    reader = csv.reader(text, delimiter=separator)
    return [(reader.line_num, row) for row in reader if row]


def is_number(text: str) -> bool:
    """Whether a cell of a table is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(cells: tuple[str, ...]) -> Array:
    """Integers if all are, floats if all are (an empty cell is NaN), otherwise text."""
    filled = ["nan" if not c.strip() else c for c in cells]
    with contextlib.suppress(ValueError, OverflowError):
        return np.array([int(c) for c in cells], np.int64)
    with contextlib.suppress(ValueError):
        return np.array([float(c) for c in filled], np.float64)
    return np.array([c.strip() for c in cells], np.str_)


def read_parquet(path: Path) -> dict[str, Array]:
    """A table by columns."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f'{str(path)!r} needs pyarrow: pip install "onnxtrain[parquet]".') from None
    with reading(path, "parquet", "Write it again, for example with pandas.") as file:
        about = parquet.read_metadata(file)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        unpacked = max(
            about.num_rows * about.num_columns,  # at least a byte each, however they are packed
            sum(group.total_byte_size for group in groups),
        )
        refuse_growth(path, unpacked, "write them without compression.", UserError)
        file.seek(0)
        table = parquet.read_table(file)
        return {n: _arrow(table.column(n)) for n in table.column_names}


def _arrow(column: Any) -> Array:
    array = np.asarray(column.to_pylist() if _nested(column) else column.to_numpy())
    return array.astype(np.str_) if array.dtype == object else array


def _nested(column: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_list(column.type) or kinds.is_fixed_size_list(column.type))
