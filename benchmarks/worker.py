"""Contestants in a process: `python worker.py NAME DIRECTORY`.

Reads what `benchmarks.prepare` wrote into the directory, and then a line at a time from standard
input; every answer is a line of JSON. `ready PEER STEPS` gets a contestant ready and makes so many
steps: what that took, and which losses came out. `PEER BEFORE STEPS` makes steps that are not timed
and steps that are: the time of the latter (and that of the processor) and their number. The name is
for whoever looks at the processes. `profile:PEER` in its place makes some steps under onnxruntime's
profiler, prints the time per operator type and ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.contestants.base import THREADS, Batches, Cannot, Clock, Loop, peak  # noqa: E402

PEERS = {
    "ours": "ours:trainer",
    "ours_parts": "ours:parts",
    "ortmodule": "pytorch:ortmodule",
    "orttrainer": "pytorch:orttrainer",
    "eager": "pytorch:eager",
    "compiled": "pytorch:compiled",
    "old": "predecessor:start",
    "jax": "xla:start",
    "onnxsim": "onnx_simplifier:start",
    "sklearn": "scikit_learn:start",
}
READY = "ready"

PROFILED = 10
"""How many steps are profiled, after three others."""


def main() -> None:
    peers, folder = sys.argv[1], Path(sys.argv[2])
    spec = json.loads((folder / "spec.json").read_text())
    import numpy as np

    data = np.load(folder / "batches.npz")
    batches = [(data[f"x{i}"], data[f"y{i}"]) for i in range(spec["batches"])]
    if peers.startswith("profile:"):
        profile(peers.removeprefix("profile:"), folder, spec, batches)
        return
    loops: dict[str, Loop] = {}
    for line in sys.stdin:
        first, second, third = line.split()
        if first == READY:
            loops[second] = get_ready(second, folder, spec, batches, int(third))
        else:
            turn(loops[first], batches, int(second), int(third))


def turn(loop: Loop, batches: Batches, before: int, steps: int) -> None:
    """Steps that are not timed, steps that are, and the answer."""
    if before:
        loop.many(batches, before)
    began, used = time.perf_counter(), time.process_time()
    count = loop.many(batches, steps)
    used = time.process_time() - used
    seconds = time.perf_counter() - began
    answer(seconds=seconds, processor=used, steps=count, rss=peak())


def get_ready(peer: str, folder: Path, spec: dict[str, Any], batches: Batches, steps: int) -> Loop:
    """The contestant after its first steps, or one that cannot go on; it has answered which."""
    clock = Clock()
    try:
        loop = start(peer, folder, spec, clock)
        losses = loop.losses(batches, 1)
        clock.lap("first run")
        losses += loop.losses(batches, steps - 2)
        began = time.perf_counter()
        losses += loop.losses(batches, 1)
        seconds = time.perf_counter() - began
    except (Exception, Cannot) as error:
        traceback.print_exc()
        answer(error=reason(error))
        return Loop(lambda x, y: float("nan"))
    answer(parts=clock.parts, losses=losses, step=seconds, remark=loop.remark, rss=peak())
    return loop


def start(peer: str, folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    if peer in spec["left_out"]:
        raise Cannot(spec["left_out"][peer])
    module, _, function = PEERS[peer].partition(":")
    contestant = importlib.import_module(f"benchmarks.contestants.{module}")
    loop: Loop = getattr(contestant, function)(folder, spec, clock)
    return loop


def reason(error: BaseException) -> str:
    """The first line of what was said, short enough for a table."""
    name = "" if isinstance(error, Cannot) else f"{type(error).__name__}: "
    lines = str(error).strip().splitlines() or [""]
    return f"{name}{lines[0].partition(';')[0]}"[:160]


def profile(peer: str, folder: Path, spec: dict[str, Any], batches: Batches) -> None:
    from benchmarks.contestants.profiling import Profiler

    profiler = Profiler(folder)
    loop = start(peer, folder, spec, Clock())
    before = 3
    loop.losses(batches, before)
    began = time.perf_counter()
    loop.losses(batches, PROFILED)
    answer(operators=profiler.operators(time.perf_counter() - began, PROFILED, before))


def answer(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    main()
