"""The compiler's code leaves memory when its work is done.

LLVM compiles kernels, or loads those that are compiled, while a training gets ready; no step runs
anything of it. Its library is a file of 150 MB, of which some 70 MB are resident then, 50 of them
code. They are given back to the system before a large training needs most memory, and before a
session of large weights is made. The pages are those of the file, unchanged: whoever needs them
again has them from the system's cache, 16 at a time.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LIBRARY = "libllvmlite.so"
LARGE_TRAINING = 2**22
"""Parameters from which on it pays: weights, gradients and Adam's moments take 64 MB then. The call
took 1 ms, and as long again who needed the code once more: the session of a small network is made
in less."""
DONTNEED = 4
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)")
SMAPS = Path("/proc/self/smaps")


def release_compiler(parameters: int = LARGE_TRAINING) -> None:
    """Give back what is resident of the compiler's code, if the training is large."""
    if parameters < LARGE_TRAINING or sys.platform != "linux" or "llvmlite" not in sys.modules:
        return
    try:
        places = list(code_of(LIBRARY, SMAPS.read_text().splitlines()))
    except OSError:  # a system without it
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in places:
        advise(begin, end - begin, DONTNEED)


def code_of(library: str, smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of the code and constants of a library, as ``/proc/self/smaps`` has it.

    Only what nobody can write to, and of which no page has been changed for this process before: a
    page that differs from the file could not be had again.
    """
    place: tuple[int, int] | None = None
    for line in smaps:
        mapping = MAPPING.fullmatch(line.rstrip())
        if mapping:
            begin, end, rights, path = mapping.groups()
            is_code = rights in ("r-xp", "r--p") and path.rpartition("/")[2] == library
            place = (int(begin, 16), int(end, 16)) if is_code else None
        elif place is not None and line.split() == ["Anonymous:", "0", "kB"]:
            yield place
            place = None


def release_free_memory() -> None:
    """Give back what the C library keeps of memory that is free, where it can be asked to."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
