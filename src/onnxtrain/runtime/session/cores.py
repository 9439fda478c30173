"""Worker threads of a session on other cores than the thread that runs it.

A session's workers sleep between runs, and the system chooses a core for them when a run wakes
them up. After a pause Linux often chose the core of the very thread that waits for them, busily,
until the next tick: a step of 1.8 ms took 10 to 50 ms, for up to a second and a half (two cores of
EPYC under KVM, traced in the scheduler; why it chose that core is not known). Workers that may not
run on the caller's core do not get there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from .sharing import GlobalLock

T = TypeVar("T")
TASKS = Path("/proc/self/task")
_lock = GlobalLock()


def threads_of(make: Callable[[], T]) -> tuple[T, frozenset[int]]:
    """What `make` returns, and the system's numbers of the threads that it started (Linux)."""
    with _lock:  # sessions that are made at the same time have different threads
        before = _threads()
        result = make()
        return result, _threads() - before


def _threads() -> frozenset[int]:
    try:
        return frozenset(int(path.name) for path in TASKS.iterdir())
    except OSError:
        return frozenset()


def _core_of_caller() -> Callable[[], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # PyDLL keeps the interpreter's lock: the call takes less time than giving it away
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)


_core = _core_of_caller()


class OtherCores:
    """Keeps threads off the core that the caller runs on.

    Args:
        threads: their numbers; they may run where they could before, but for that core.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self._allowed = {thread: _allowed(thread) for thread in threads} if _core else {}
        self._last = -1

    def use(self) -> None:
        """To be called before a run; does something only if the caller is on another core."""
        if not self._allowed or _core is None:
            return
        core = _core()
        if core == self._last:
            return
        self._last = core
        for thread, allowed in self._allowed.items():
            rest = allowed - {core}
            if rest:
                _allow(thread, rest)


def _allowed(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except OSError:  # it has ended already
        return set()


def _allow(thread: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:  # it has ended, or it is not allowed here
        return
