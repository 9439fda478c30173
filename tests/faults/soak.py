"""Train for long and make many of everything: memory must not grow.

    python -m tests.faults.soak --steps 200000 --modules 2000 --trainers 500
    python -m tests.faults.soak --only trainers         one part, where time is short

Each part runs in a process of its own; memory that is in use is measured by step, Module and
Trainer: what C and C++ have allocated and not freed (glibc's ``mallinfo2``), and Python's blocks.
Resident memory also has holes between them, which come and go by some kilobytes per Trainer; where
there is no glibc, it is what is measured. ``sessions`` are those of onnxruntime alone, a control.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.runtime.loop.trainer import Trainer
from tests.runtime import handmade

PYTHON_BLOCK = 64
"""Bytes of an object of Python's, about; those of more than 512 are allocated by C."""


class Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` answers."""

    _fields_ = (
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),  # in pages of their own
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),  # in the heap
        ("after", ctypes.c_size_t * 2),
    )


def in_use() -> int:
    """Bytes that this process has allocated; those in memory, where nobody counts."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = Allocated
        answer = libc.mallinfo2()
        return int(answer.uordblks + answer.hblkhd) + PYTHON_BLOCK * sys.getallocatedblocks()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(work: Callable[[], object], count: int) -> float:
    """Bytes per call: the median of the last five of ten blocks.

    What leaks, leaks in every block; tables that double do so now and then, mostly in the first.
    """
    size, ends = max(count // 10, 1), []
    for _ in range(10):
        for _ in range(size):
            work()
        ends.append(in_use())
    return statistics.median((b - a) / size for a, b in itertools.pairwise(ends[4:]))


def parts(folder: Path) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def steps(folder: Path, count: int) -> float:
    _, module, optimizer = parts(folder)
    batch = handmade.batch(0, 8)

    def work() -> None:
        module(*batch)
        optimizer.step()
        module.lazy_reset_grad()

    return growth(work, count)


def modules(folder: Path, count: int) -> float:
    batch = handmade.batch(0, 8)

    def work() -> None:
        _, module, optimizer = parts(folder)
        module(*batch)
        optimizer.step()

    return growth(work, count)


def trainers(folder: Path, count: int) -> float:
    data = handmade.batch(0, 16)

    def work() -> None:
        Trainer.from_directory(folder).fit(data, 1, 8, progress=False)

    return growth(work, count)


def sessions(folder: Path, count: int) -> float:
    path = str(folder / "training_model.onnx")
    return growth(lambda: onnxruntime.InferenceSession(path), count)


PARTS = {
    "steps": (steps, 200_000, 8.0),
    "modules": (modules, 2_000, 1024.0),
    "trainers": (trainers, 500, 1024.0),
    "sessions": (sessions, 1_000, 1024.0),
}
"""What is done, how often by default, and bytes each that are thought to be noise."""


def measure(name: str, count: int) -> float:
    """Bytes per call of one part, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        handmade.write(Path(folder), optimizer=optim.adamw())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(PARTS[name][0], (Path(folder), count))


def main(arguments: list[str] | None = None) -> int:
    """Run as a command; 1 if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, (_, count, _) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--only", choices=PARTS, help="this part and no other")
    chosen = vars(parser.parse_args(arguments))
    only, grown = chosen.pop("only"), False
    for name in [only] if only else PARTS:
        limit = PARTS[name][2]
        each = measure(name, chosen[name])
        grown |= each > limit
        print(
            f"{chosen[name]} {name}: {each:.1f} bytes each (up to {limit:g} is noise)", flush=True
        )
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
