"""How long two cores take to hand work to each other: `python3 -m benchmarks.handover`.

A virtual machine's two cores seem to be neighbours in the host at some times and far apart at
others, and steps of a millisecond on two threads depend on it: an MLP's took 1.35 ms when a
handover took 0.08 microseconds, and 2.65 ms when it took 0.15 (one machine, few samples). So every
workload is stored with the figure of its time.

Two processes, each bound to one core, wait for a byte of shared memory to be theirs and give it
away. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time

TURNS = 500
"""Of each process in one measurement, some milliseconds."""

MEASUREMENTS = 9
LIMIT = 2.0
"""Seconds after which it is given up: somebody else has one of the cores."""


def handover() -> float | None:
    """Microseconds from one core to another, the median; None where it cannot be measured."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    cores = sorted(os.sched_getaffinity(0))[:2]
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        child = os.fork()
        if child == 0:
            _, in_time = _play(shared, 1, cores[1])
            os._exit(0 if in_time else 1)
        try:
            seconds, in_time = _play(shared, 0, cores[0])
        finally:
            os.sched_setaffinity(0, cores)
            os.waitpid(child, 0)
    return round(statistics.median(seconds) * 1e6, 2) if in_time else None


def _play(shared: mmap.mmap, me: int, core: int) -> tuple[list[float], bool]:
    """Take turns with the other process: seconds of one handover, and whether it got to its end."""
    os.sched_setaffinity(0, {core})
    other, end = 1 - me, time.monotonic() + LIMIT
    seconds: list[float] = []
    for _ in range(MEASUREMENTS):
        began = time.perf_counter()
        for _ in range(TURNS):
            spins = 0
            while shared[0] != me:
                spins += 1
                if spins % 1000 == 0 and time.monotonic() > end:
                    return seconds, False
            shared[0] = other
        seconds.append((time.perf_counter() - began) / (2 * TURNS))
    return seconds, True


if __name__ == "__main__":
    microseconds = handover()
    print("cannot be measured here" if microseconds is None else f"{microseconds} µs")
    sys.exit(microseconds is None)
