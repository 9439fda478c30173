"""Which files are meant, and how they are opened."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, TypeAlias

from ..errors import DataError, OnnxTrainError
from ..runtime.files.readfile import open_regular

PathLike: TypeAlias = "str | os.PathLike[str]"
BRACES = re.compile(r"\{(?P<first>[0-9]{1,9})\.\.(?P<last>[0-9]{1,9})\}")
MOST_FILES = 1_000_000


def is_pattern(text: str) -> bool:
    """Whether a name stands for several files: ``*``, ``?``, ``[…]`` or ``{0000..0099}``."""
    return bool(glob.has_magic(text) or BRACES.search(text))


def expand(files: PathLike | Sequence[PathLike]) -> list[str]:
    """The files that are meant, in a fixed order.

    Args:
        files: a path, a pattern (``shards/*.tar``, ``train-{0000..0099}.tar``), or several.

    Example:
        >>> expand(["a-{8..10}.tar", "b.tar"])
        ['a-8.tar', 'a-9.tar', 'a-10.tar', 'b.tar']
    """
    patterns = [files] if isinstance(files, str | os.PathLike) else list(files)
    names: list[str] = []
    for path in patterns:
        for name in _braces(os.fspath(path)):
            if not glob.has_magic(name) or os.path.exists(name):
                names.append(name)
                continue
            matches = sorted(n for n in glob.iglob(name, recursive=True) if not os.path.isdir(n))
            if not matches:
                raise DataError(f"There is no data file {name!r}: nothing has such a name.")
            names += matches
    if not names:
        raise DataError("The list of data files is empty: name at least one.")
    return names


def _braces(text: str) -> Iterator[str]:
    """``a{08..10}`` is a08, a09 and a10: as many digits as the first number has."""
    match = BRACES.search(text)
    if match is None:
        yield text
        return
    first, last = int(match["first"]), int(match["last"])
    if last < first or last - first >= MOST_FILES:
        raise DataError(
            f"{match[0]} in {text[:200]!r} counts from {first} to {last}: the first number is the "
            f"smaller one, and there are at most {MOST_FILES} files."
        )
    for number in range(first, last + 1):
        digits = str(number).zfill(len(match["first"]))
        yield from _braces(text[: match.start()] + digits + text[match.end() :])


@contextlib.contextmanager
def reading(
    path: PathLike, kind: str, remedy: str, raises: type[OnnxTrainError] = DataError
) -> Iterator[BinaryIO]:
    """An open file; whatever goes wrong with its content becomes one error of the kind `raises`.

    The libraries that read these formats raise many kinds of errors, and not all are documented.
    """
    try:
        with open_regular(path, raises) as file:
            yield file
    except OnnxTrainError:
        raise
    except FileNotFoundError:
        raise raises(f"There is no data file {os.fspath(path)!r}.") from None
    except IsADirectoryError:
        raise raises(f"{os.fspath(path)!r} is a folder, not a data file.") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise raises(
            f"{os.fspath(path)!r} cannot be read as {kind} ({reason}). {remedy}"
        ) from error
