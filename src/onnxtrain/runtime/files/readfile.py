"""Open files that a user names: regular ones only, and no larger than what they can be."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ...errors import InputError, OnnxTrainError

PROTOBUF_LIMIT = 2**31 - 1
GROWTH, ALLOWED_BYTES = 200, 2**28
"""A compressed file may grow this many times when it is unpacked, or to this many bytes. Data that
people train with grow two to fifty times; a bomb grows a thousand times."""
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for a writer
)


def file_name(path: str | os.PathLike[str], error: type[OnnxTrainError] = InputError) -> str:
    """`path` as the system takes it; an `error` if no file or folder can have such a name."""
    name = os.fspath(path)
    try:
        zero = b"\0" in os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair
        raise error(
            f"{name!r} is not the name of a file or folder: it has half a character."
        ) from None
    if zero:
        raise error(f"{name!r} is not the name of a file or folder: it has a zero byte.")
    return name


def open_regular(path: str | os.PathLike[str], error: type[OnnxTrainError]) -> BinaryIO:
    """Open a file for reading; a pipe or a device, which may never end, is an `error`.

    A link is followed: it is the user who named the path. That there is no such file, or that it is
    a folder, stays Python's own error for the caller to put into words.
    """
    shown = file_name(path, error)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{shown!r} is a directory.")
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise error(
            f"{shown!r} cannot be opened ({problem.strerror}). Check its permissions."
        ) from problem
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise error(
            f"{shown!r} is a pipe or a device, not a regular file. Write its content to a file "
            "first, and name that."
        )
    return file


def read_regular(
    path: str | os.PathLike[str], error: type[OnnxTrainError], limit: int = PROTOBUF_LIMIT
) -> bytes:
    """The content of a file that has at most `limit` bytes."""
    with open_regular(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise error(
                f"{os.fspath(path)!r} has {size} bytes, and {limit} are the most that can be read. "
                f"Is {Path(path).name!r} the right file?"
            )
        return file.read(size)


def refuse_growth(
    path: str | os.PathLike[str], unpacked: int, remedy: str, error: type[OnnxTrainError]
) -> None:
    """Refuse a file that grows beyond all proportion when it is unpacked."""
    size = os.path.getsize(path)
    if unpacked > max(GROWTH * size, ALLOWED_BYTES):
        raise error(
            f"{os.fspath(path)!r} has {size} bytes and says that it holds {unpacked}, "
            f"{unpacked // max(size, 1)} times as many: that is how bombs are made. If you trust "
            f"it: {remedy}"
        )
