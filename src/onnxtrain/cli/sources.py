"""Data from files: npz, npy, csv, parquet, folders of images, or a function of the user's."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import read_csv, read_npy, read_npz, read_parquet
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
    "an .npz file, two .npy files separated by a comma, a .csv, .csv.gz or .parquet file, a folder "
    "with one folder of images per class, or module:function"
)


def read(where: str) -> Source:
    """Read data; raises `UserError` when that is not possible."""
    parts = [p.strip() for p in where.split(",")]
    if len(parts) > 1 and all(p.endswith(".npy") for p in parts):
        return Ordered([read_npy(p) for p in parts], where)
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
    suffix = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
    reader = READERS.get(suffix.lower())
    if reader is None:
        raise UserError(f"Data of type {path.suffix or where!r} are not known. Data are {FORMATS}.")
    return reader(path)


def _npz(path: Path) -> Named:
    return Named(read_npz(path), str(path))


def _csv(path: Path) -> Columns:
    return Columns(read_csv(path), str(path))


def _parquet(path: Path) -> Columns:
    return Columns(read_parquet(path), str(path))


def _pictures(folder: Path) -> Pictures:
    classes = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        images = sorted(f for f in (folder / name).rglob("*") if f.suffix.lower() in PICTURES)
        files += images
        labels += [number] * len(images)
    if not files and any(f.suffix.lower() in PICTURES for f in folder.iterdir()):
        parent = folder.resolve().parent
        raise UserError(
            f"The folder {str(folder)!r} holds images of one class: give its parent, "
            f"{parent.name!r}, which has a folder for each."
        )
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
    ".csv.gz": _csv,
    ".tsv.gz": _csv,
    ".parquet": _parquet,
    ".pq": _parquet,
}


def _from_function(module: str, function: str, where: str) -> Source:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        source = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--data {where}: {error}. It is neither a file nor a module that can be imported from "
            "here."
        ) from error
    except AttributeError:
        raise UserError(f"--data {where}: the module {module} has no {function!r}.") from None
    except Exception as error:
        raise _of_the_user(where, error) from error
    try:
        data = source() if callable(source) else source
    except Exception as error:
        raise _of_the_user(where, error) from error
    if isinstance(data, Mapping):
        return Named({str(k): np.asarray(v) for k, v in data.items()}, where)
    if isinstance(data, tuple):
        return Ordered([np.asarray(v) for v in data], where)
    if not hasattr(data, "__iter__"):
        raise UserError(
            f"--data {where} gave {type(data).__name__}. The function must return a tuple of "
            "arrays (inputs, then targets), a dict of arrays, or something that gives batches."
        )
    kind = SizedUserBatches if hasattr(data, "__len__") else UserBatches
    return Batches(kind(data, where), where)


class UserBatches:
    """Batches that the user's own code makes; what goes wrong there is said to be there.

    Args:
        source: gives batches when it is iterated.
        where: the name of it on the command line.
    """

    def __init__(self, source: Any, where: str) -> None:
        self.source, self.where = source, where
        self._passes = 0

    def __iter__(self) -> Iterator[Any]:
        iterator, end = self._ask(iter, self.source), object()
        if self._passes and iterator is self.source:
            raise UserError(
                f"--data {self.where} gave a generator, which can be iterated once. Return a list, "
                "a DataLoader or an object with __iter__ for more than one epoch."
            )
        self._passes += 1
        while (batch := self._ask(next, iterator, end)) is not end:
            yield batch

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise _of_the_user(self.where, error) from error


class SizedUserBatches(UserBatches):
    """The same, with a known number of them."""

    def __len__(self) -> int:
        return len(self.source)


def _of_the_user(where: str, error: Exception) -> UserError:
    """An error that the user's own code raised, with the last place in it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    own = [p for p in frames if not p.filename.startswith(("<frozen", ours))] or list(frames)
    line = f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    return UserError(
        f"--data {where} raised {type(error).__name__}{line}: {error}. That is your own code; "
        "--debug shows the traceback."
    )
