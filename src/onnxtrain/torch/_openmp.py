"""Let torch's idle threads sleep while onnxruntime computes.

Behind each of its parallel operators, torch's OpenMP threads go on spinning for milliseconds, in
the hope of more work. Where onnxruntime takes over, they hold the cores it needs. So for the time
of a run they are given work: a parallel region, in which each of them waits for a semaphore. The
thread that runs the session does not wait; when the run is over it posts the semaphore and closes
the region. torch's next operator then finds its threads awake, as if nothing had been in between.

On two cores of EPYC under KVM the region takes 4 µs to open, and 30 µs to close. Two other ways
were slower. Where there are more OpenMP threads than cores, GNU's OpenMP lets idle ones sleep; but
a thread that has a team of its own for that takes 0.2 to 9 ms to start and to end on a busy
machine, and each of torch's parallel operators has to wake its threads up. To end torch's threads
before every run (`omp_pause_resource`) is ten times slower after pauses: new threads start on the
core of the one that waits for them, and both spin (see `runtime.session.cores`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from ..runtime.session.sharing import note

SEMAPHORE_BYTES = 64
"""More than a semaphore of the C library has, on any system with GNU's OpenMP."""


class OpenMP(NamedTuple):
    """GNU's OpenMP and the C library's semaphores, as far as they are needed.

    Attributes:
        init: sets the semaphore at an address to a number of posts.
        post: lets one thread pass it.
        start: opens a parallel region in which all other threads wait for it.
        size: how many threads the region has, the caller among them.
        end: closes the region, when all its threads have passed.
    """

    init: Callable[[int, int, int], object]
    post: Callable[[int], object]
    start: Callable[[int], object]
    size: Callable[[], int]
    end: Callable[[], object]


class _OfThread(threading.local):
    """What each thread has for itself: a team of torch's threads, and a semaphore for them."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        self.semaphore = ctypes.addressof(self.memory)
        self.is_open = False


class TorchThreads:
    """Those that compute with the thread that calls torch."""

    def __init__(self) -> None:
        self._own = _OfThread()
        self._is_forked = False
        note(self)

    def sleep(self) -> None:
        """Let them sleep until `wake`, if there are any, and if torch has GNU's OpenMP."""
        own = self._own
        if own.is_open or self._is_forked or torch.get_num_threads() < 2:
            return
        openmp = gnu_openmp()
        if openmp is not None:
            openmp.init(own.semaphore, 0, 0)
            own.is_open = True
            openmp.start(own.semaphore)

    def wake(self) -> None:
        """Have them back; nothing if they do not sleep."""
        own = self._own
        openmp = gnu_openmp() if own.is_open else None
        if openmp is not None:
            own.is_open = False
            for _ in range(openmp.size() - 1):
                openmp.post(own.semaphore)
            openmp.end()

    def after_fork(self) -> None:
        """Let them be: they have stayed behind, and OpenMP would wait for them."""
        self._is_forked = True


TORCH_THREADS = TorchThreads()


@functools.cache
def gnu_openmp() -> OpenMP | None:
    """The OpenMP that torch uses; None if it is not GNU's."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    loaded = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    inside = [path for path in loaded if "torch" in path] or sorted(loaded)
    if not inside:
        return None
    # PyDLL keeps the interpreter's lock: these calls take less time than giving it away. The end
    # of a region waits for threads, so others may have the interpreter until then
    library, system = ctypes.PyDLL(inside[0]), ctypes.PyDLL(None)
    try:
        init, wait, post = system.sem_init, system.sem_wait, system.sem_post
        start, size = library.GOMP_parallel_start, library.omp_get_num_threads
        end = ctypes.CDLL(inside[0]).GOMP_parallel_end
    except AttributeError:
        return None
    init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    post.argtypes = (ctypes.c_void_p,)
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
    end.argtypes, start.restype, end.restype = (), None, None
    waiting = ctypes.cast(wait, ctypes.c_void_p)
    return OpenMP(init, post, lambda semaphore: start(waiting, semaphore, 0), size, end)
