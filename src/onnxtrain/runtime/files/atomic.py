"""Write a file so that at every moment the old or the new one is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def write_atomically(
    path: str | os.PathLike[str], chunks: Iterable[bytes | memoryview], *, durable: bool = True
) -> None:
    """Write `chunks` to a temporary file beside `path`, then rename it over `path`.

    The data reach the disk before the rename and the rename before the return (`durable`), so a
    process killed or a machine losing power at any moment leaves a complete file. When
    writing fails the temporary file is removed and `path` is as it was.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a directory; give the path of a file.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, _FLAGS, 0o666)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Cannot write {str(target)!r}: the directory {str(target.parent)!r} does not exist."
        ) from None
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        raise PermissionError(
            error.errno, f"Cannot write {str(target)!r}: its directory is not writable"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
