"""Write a file so that at every moment the old or the new one is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from .readfile import file_name

try:
    import fcntl
except ImportError:  # not on Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment, unused-ignore]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
Chunks = Iterable[bytes | memoryview]


def write_atomically(
    path: str | os.PathLike[str],
    chunks: Chunks,
    *,
    durable: bool = True,
    follow_links: bool = False,
) -> None:
    """Write `chunks` to a temporary file beside `path`, then rename it over `path`.

    The data reach the disk before the rename and the rename before the return (`durable`), so a
    process killed or a machine losing power at any moment leaves a complete file. When
    writing fails the temporary file is removed and `path` is as it was; what killed processes
    left is removed by the next one that writes the same file.

    A link is replaced, because somebody else may have put it there (ADR 15); with `follow_links` it
    stays, and the file it leads to is replaced. Into a device such as ``/dev/null``, and into a
    named pipe that somebody reads, the data are written as they come.
    """
    file_name(path)
    target = Path(os.path.realpath(path) if follow_links else path)
    mode = 0 if target.is_symlink() and not target.is_dir() else _mode(target)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{str(path)!r} is a directory; give the path of a file.")
    if mode and not stat.S_ISREG(mode):
        _write_through(target, mode, chunks)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = _create(temporary, os.fspath(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            _lock(file.fileno())
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
        sync_directory(target.parent)
    _remove_abandoned(target)


def _mode(target: Path) -> int:
    """Of which kind the file is; 0 where there is none."""
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return 0


def _create(temporary: Path, shown: str) -> int:
    try:
        return os.open(temporary, _FLAGS, 0o666)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Cannot write {shown!r}: the directory {os.path.dirname(shown)!r} does not exist."
        ) from None
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        raise PermissionError(
            error.errno, f"Cannot write {shown!r}: its directory is not writable"
        ) from error


def _write_through(target: Path, mode: int, chunks: Chunks) -> None:
    """Into a device or a pipe, which a rename would replace by a file."""
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        kind = "a block device" if stat.S_ISBLK(mode) else "a socket"
        raise OSError(errno.EINVAL, f"{str(target)!r} is {kind}; give the path of a file")
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(
            error.errno,
            f"{str(target)!r} is a named pipe that nobody reads; start its reader first",
        ) from None
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


# --- what killed processes leave -----------------------------------------------------------------


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of `target` whose writers are gone."""
    name = re.compile(rf"\.{re.escape(target.name)}\.([0-9]+)\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            match = name.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False) and _gone(entry.path, match[1]):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def is_alive(process: int) -> bool:
    """Whether a process of this machine goes on; where that cannot be asked, it is thought so."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no number of a process
        return True
    return True


def _gone(path: str, process: str) -> bool:
    """Whether nobody writes the file: its process has ended here and nobody elsewhere locks it."""
    if fcntl is None:
        return True
    if is_alive(int(process)):
        return False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Show other machines that share the folder that this file is being written."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_directory(directory: Path) -> None:
    """Make the rename itself durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
