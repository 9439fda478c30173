"""What a contestant has: a step, and clocks for what comes before it.

Needs nothing but numpy: the environment of onnxruntime-training 1.19.2 runs it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
Batches = Sequence[tuple[Any, Any]]


class Cannot(SystemExit):
    """The contestant cannot do this workload; the message says why."""


class Loop:
    """Training steps.

    Args:
        step: one step on a batch; the loss.
        remark: what differs from the others, "" for nothing.
    """

    def __init__(self, step: Callable[[Any, Any], float], remark: str = "") -> None:
        self.step, self.remark = step, remark
        self._position = 0

    def losses(self, batches: Batches, count: int) -> list[float]:
        """The first steps: what the contestants are compared by."""
        return [self._next(batches) for _ in range(count)]

    def many(self, batches: Batches, count: int) -> int:
        """About `count` steps on the batches in turn: how many."""
        for _ in range(count):
            self._next(batches)
        return count

    def _next(self, batches: Batches) -> float:
        batch = batches[self._position % len(batches)]
        self._position += 1
        return self.step(*batch)


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """What has been spent since the last call belongs to this part."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now


def peak() -> float:
    """Most memory that this process has had, in MB.

    Linux lets a new process inherit `ru_maxrss` from the one that started it; VmHWM is its own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    scale = 1024**2 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def limit_threads() -> None:
    """On a larger machine, that many threads per onnxruntime session, whoever creates it."""
    if (os.cpu_count() or 1) <= THREADS:
        return
    import onnxruntime

    class Limited(onnxruntime.SessionOptions):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = THREADS

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "intra_op_num_threads" and not 0 < value <= THREADS:
                value = THREADS  # 0 would be all cores
            super().__setattr__(name, value)

    onnxruntime.SessionOptions = Limited
