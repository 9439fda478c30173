"""Let torch's idle threads sleep while onnxruntime computes.

Behind each of its parallel operators, torch's OpenMP threads go on spinning for milliseconds, in
the hope of more work. Where onnxruntime takes over, they hold the cores it needs. GNU's OpenMP lets
idle threads sleep at once while it has more threads than cores. So a thread of ours has an OpenMP
team of its own, which does nothing, as long as the runs of an ORTModule follow one another.

To end torch's threads before every run (`omp_pause_resource`) is a little faster where nothing else
runs, and ten times slower after pauses and on busy machines: new threads start on the core of the
one that waits for them, and both spin (see `runtime.session.cores`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..runtime.session.sharing import note

LINGER = 0.05
"""Seconds after the last run from which on torch's threads wait busily again: whatever else torch
does in the process is as fast as without us."""

LONG_SECONDS = 0.005
"""Seconds between the steps' runs from which on torch has its busy threads there: an update of 150
tensors wakes them 150 times, 3 of 20 ms. To have the team again takes 0.1 ms."""


class IdleTeam:
    """An OpenMP team that makes torch's idle threads sleep.

    Attributes:
        thread: who has it; None without one.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._end = threading.Event()
        self._used = self._done = 0.0
        self._between_is_long = False
        note(self)

    def need(self) -> None:
        """Have it for the run that comes, and for a while after it."""
        self._used = now = time.monotonic()
        if self._done:
            self._between_is_long = now > self._done + LONG_SECONDS
            self._done = 0.0
        if self.thread is None and torch.get_num_threads() > 1:
            start = team_starter()
            if start is not None:
                self._end = threading.Event()
                self.thread = threading.Thread(
                    target=self._keep, args=(start, self._end), daemon=True
                )
                self.thread.start()

    def done(self) -> None:
        """After the last run of a step: it is torch's turn, for as long as it was last time."""
        self._done = time.monotonic()
        if self._between_is_long:
            self._end.set()
            self.thread = None

    def _keep(self, start: Callable[[int], object], end: threading.Event) -> None:
        """Own the team until it is told to end, or has not been needed for a while."""
        start(max(2, _cores() - torch.get_num_threads() + 2))
        while not end.wait(LINGER):
            if time.monotonic() > self._used + LINGER:
                self.thread = None
                break  # a thread that ends takes its team with it

    def after_fork(self) -> None:
        """Have none: the thread has stayed behind."""
        self.thread = None


IDLE_TEAM = IdleTeam()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def team_starter() -> Callable[[int], object] | None:
    """Starts a team of so many threads that do nothing; None without GNU's OpenMP."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    loaded = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    inside = [path for path in loaded if "torch" in path] or sorted(loaded)
    if not inside:
        return None
    parallel = getattr(ctypes.CDLL(inside[0]), "GOMP_parallel", None)
    if parallel is None:
        return None
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL)
    return lambda count: parallel(nothing, None, ctypes.c_uint(count), ctypes.c_uint(0))
