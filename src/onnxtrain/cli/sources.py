"""Data from files: npz, npy, csv, parquet, folders of images, or a function of the user's."""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .output import UserError

Array = npt.NDArray[Any]
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Named:
    """Arrays by name."""

    arrays: dict[str, Array]
    where: str


@dataclass(frozen=True)
class Ordered:
    """Arrays in the order of the model's inputs, targets last."""

    arrays: list[Array]
    where: str


@dataclass(frozen=True)
class Columns:
    """A table: one array per column."""

    columns: dict[str, Array]
    where: str


@dataclass(frozen=True)
class Pictures:
    """A folder with one folder of pictures per class."""

    files: list[Path]
    labels: Array
    classes: list[str]
    where: str


@dataclass(frozen=True)
class Batches:
    """Anything else that gives batches when it is iterated."""

    source: Any
    where: str


Source = Named | Ordered | Columns | Pictures | Batches

FORMATS = (
    "an .npz file, two .npy files separated by a comma, a .csv or .parquet file, a folder with one "
    "folder of images per class, or module:function"
)


def read(where: str) -> Source:
    """Read data; raises `UserError` when that is not possible."""
    parts = [p.strip() for p in where.split(",")]
    if len(parts) > 1 and all(p.endswith(".npy") for p in parts):
        return Ordered([_npy(p) for p in parts], where)
    path = Path(where)
    if not path.exists():
        module, colon, function = where.partition(":")
        if colon and module.replace(".", "").isidentifier() and function.isidentifier():
            return _from_function(module, function, where)
        raise UserError(f"There is no data file {where!r}. Data are {FORMATS}.")
    if path.is_dir():
        return _pictures(path)
    if path.suffix.lower() == ".npy":
        raise UserError(
            f"{where!r} is one array: give inputs and targets together, as --data x.npy,y.npy."
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"Data of type {path.suffix or where!r} are not known. Data are {FORMATS}.")
    return reader(path)


def _npy(name: str) -> Array:
    try:
        return np.asarray(np.load(name, allow_pickle=False))
    except FileNotFoundError:
        raise UserError(f"There is no data file {name!r}.") from None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(
            f"{name!r} cannot be read as a numpy array ({error}). Write it with numpy.save, as "
            "numbers and not as Python objects."
        ) from error


def _npz(path: Path) -> Named:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as file:
            return Named({name: file[name] for name in file.files}, str(path))
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise UserError(
            f"{str(path)!r} cannot be read as an npz file ({error}). Write it with "
            "numpy.savez(file, x=..., labels=...), as numbers and not as Python objects."
        ) from error


def _csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8-sig") as file:
        sample = file.read(65536)
        file.seek(0)
        first = sample.split("\n", 1)[0]
        separator = max(",;\t", key=first.count)
        rows = [row for row in csv.reader(file, delimiter=separator) if row]
    if not rows:
        raise UserError(f"{str(path)!r} is empty. It needs a line of column names and rows.")
    names, rows = [n.strip() for n in rows[0]], rows[1:]
    if all(_is_number(n) for n in names):
        raise UserError(
            f"The first line of {str(path)!r} holds numbers: {', '.join(names[:5])}. A csv file "
            "needs a first line with the names of its columns."
        )
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise UserError(
                f"Line {number} of {str(path)!r} has {len(row)} cells, and there are {len(names)} "
                "columns: complete the line or remove it."
            )
    cells = list(zip(*rows)) or [()] * len(names)
    return Columns({n: _column(c) for n, c in zip(names, cells)}, str(path))


def _is_number(text: str) -> bool:
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


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f'{str(path)!r} needs pyarrow: pip install "onnxtrain[parquet]".') from None
    try:
        table = parquet.read_table(path)
    except Exception as error:  # pyarrow has its own kinds
        raise UserError(f"{str(path)!r} cannot be read as parquet: {error}") from error
    return Columns({n: _arrow(table.column(n)) for n in table.column_names}, str(path))


def _arrow(column: Any) -> Array:
    array = np.asarray(column.to_pylist() if _nested(column) else column.to_numpy())
    return array.astype(np.str_) if array.dtype == object else array


def _nested(column: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_list(column.type) or kinds.is_fixed_size_list(column.type))


def _pictures(folder: Path) -> Pictures:
    classes = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = sorted(f for f in (folder / name).rglob("*") if f.suffix.lower() in PICTURES)
        files += found
        labels += [number] * len(found)
    if not files:
        raise UserError(
            f"The folder {str(folder)!r} holds no images. It needs one folder per class with "
            f"images in it, for example {folder / 'cat' / '1.png'}."
        )
    return Pictures(files, np.array(labels, np.int64), classes, str(folder))


READERS: dict[str, Callable[[Path], Source]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".pq": _parquet,
}


def _from_function(module: str, function: str, where: str) -> Source:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--data {where}: {error}. It is neither a file nor a module that can be imported from "
            "here."
        ) from error
    except AttributeError:
        raise UserError(f"--data {where}: the module {module} has no {function!r}.") from None
    data = found() if callable(found) else found
    if isinstance(data, Mapping):
        return Named({str(k): np.asarray(v) for k, v in data.items()}, where)
    if isinstance(data, tuple):
        return Ordered([np.asarray(v) for v in data], where)
    if not hasattr(data, "__iter__"):
        raise UserError(
            f"--data {where} gave {type(data).__name__}. The function must return a tuple of "
            "arrays (inputs, then targets), a dict of arrays, or something that gives batches."
        )
    return Batches(data, where)
