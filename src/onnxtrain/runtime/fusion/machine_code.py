"""Machine code of programs, kept between processes: LLVM takes some ten milliseconds for each.

It lies where numba keeps what it has compiled: in the folder that ``NUMBA_CACHE_DIR`` names, beside
these sources, or in the user's folder for such things. Code is read from a folder and a file only
that nobody but this user can write, as Python's own compiled files are trusted. A file that is
damaged, or of another processor, version or state of the sources, is not read. Where nothing can be
written, every process compiles for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from pathlib import Path

from ..files.atomic import write_atomically

SUFFIX = ".onnxtrain-code"
DIGEST = hashlib.sha256().digest_size
MOST_FILES = 4096
"""More are not written: a program of a few kilobytes is compiled sooner than a disk is tidied."""
LONGEST = 2**20
"""Bytes of a file that is read."""
SOURCES = "onnxtrain-sources"
"""The file that says of which sources numba has kept code beside it."""
WRITERS = (
    "codegen", "functions", "gemm_tiles", "machine", "opcodes", "phases", "program",
    "tangent", "tiles", "vectors",
)  # fmt: skip
"""Modules that say what programs and tiles become."""


class Store:
    """Machine code by program.

    Args:
        folder: where it lies; None if nowhere.
        target: what it depends on besides the program: a processor, a version of LLVM.
    """

    def __init__(self, folder: Path | None, target: str) -> None:
        self._folder, self._target = folder, f"{target}\n{_state_of_sources()}"

    def read(self, program: str) -> bytes | None:
        """The code of a program, if it is there and sound."""
        path = self._path(program)
        if path is None or not _is_ours(path.parent):
            return None
        try:
            with path.open("rb") as file:
                if not _is_private(os.fstat(file.fileno())):
                    return None
                content = file.read(LONGEST + 1)
        except OSError:
            return None
        digest, code = content[:DIGEST], content[DIGEST:]
        is_sound = len(content) <= LONGEST and hashlib.sha256(code).digest() == digest
        return code if code and is_sound else None

    def write(self, program: str, code: bytes) -> None:
        """Keep the code of a program, if that is possible."""
        path = self._path(program)
        if path is None:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(path.parent) and len(list(path.parent.glob(f"*{SUFFIX}"))) < MOST_FILES:
                content = (hashlib.sha256(code).digest(), code)
                write_atomically(path, content, durable=False)

    def _path(self, program: str) -> Path | None:
        name = hashlib.sha256(f"{self._target}\n{program}".encode()).hexdigest()
        return None if self._folder is None else self._folder / f"{name}{SUFFIX}"


def folder() -> Path | None:
    """Where code is kept; None if there is no such place."""
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    if named:
        return Path(named) / "onnxtrain"
    beside = Path(__file__).parent / "__pycache__"
    if _is_ours(beside) and os.access(beside, os.W_OK):
        return beside
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home
        return None
    return home / "onnxtrain"


def forget_stale(package: Path) -> None:
    """Remove what numba has kept of a package beside its sources if these are others now.

    numba looks at the file of a function and not at the numbers that this imports from other files:
    after a change of those it would run the old code, on memory that is laid out in another way.
    """
    folder, digest = package / "__pycache__", hashlib.sha256()
    with contextlib.suppress(OSError):
        for source in sorted(package.glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
        folder.mkdir(exist_ok=True)
        stamp, now = folder / SOURCES, digest.hexdigest().encode()
        if not _is_ours(folder) or (stamp.is_file() and stamp.read_bytes() == now):
            return
        for file in folder.glob("*.nb[ci]"):
            file.unlink(missing_ok=True)
        write_atomically(stamp, (now,), durable=False)


@functools.cache
def _state_of_sources() -> str:
    digest = hashlib.sha256()
    for name in WRITERS:
        with contextlib.suppress(OSError):  # out of an archive: the version has to do
            digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


def _is_ours(path: Path) -> bool:
    """Whether a folder can be written by this user alone."""
    try:
        return _is_private(path.stat())
    except OSError:
        return False


def _is_private(status: os.stat_result) -> bool:
    owner = getattr(os, "getuid", lambda: -1)()
    return status.st_uid == owner and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
