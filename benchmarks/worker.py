"""One contestant in a process of its own: `python worker.py PEER DIRECTORY`.

Reads the model, the weights and the batches that `benchmarks.prepare` wrote into the directory,
gets ready, makes the first steps and prints what that took and which losses came out. Then each
line on standard input is a number of steps to make; the answer is a line of JSON with their time
(and that of the processor), their number and the last loss. `profile:PEER` makes some steps under
onnxruntime's profiler, prints the time per operator type and ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.contestants.base import THREADS, Clock, Loop, peak  # noqa: E402

PEERS = {
    "ours": "ours:trainer",
    "ours_parts": "ours:parts",
    "eager": "pytorch:eager",
    "compiled": "pytorch:compiled",
    "old": "predecessor:start",
    "jax": "xla:start",
    "onnxsim": "onnx_simplifier:start",
    "sklearn": "scikit_learn:start",
}
CHECKED = 5
"""How many losses are compared."""


def main() -> None:
    peer, folder = sys.argv[1], Path(sys.argv[2])
    spec = json.loads((folder / "spec.json").read_text())
    import numpy as np

    data = np.load(folder / "batches.npz")
    batches = [(data[f"x{i}"], data[f"y{i}"]) for i in range(spec["batches"])]
    if peer.startswith("profile:"):
        profile(peer.removeprefix("profile:"), folder, spec, batches)
        return
    clock = Clock()
    loop = start(peer, folder, spec, clock)
    losses = loop.losses(batches, 1)
    clock.lap("first run")
    losses += loop.losses(batches, CHECKED - 1)
    answer(parts=clock.parts, losses=losses, remark=loop.remark, rss=peak())
    for line in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        steps, loss = loop.many(batches, int(line))
        used = time.process_time() - used
        seconds = time.perf_counter() - began
        answer(seconds=seconds, processor=used, steps=steps, loss=loss, rss=peak())


def start(peer: str, folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    module, _, function = PEERS[peer].partition(":")
    found = importlib.import_module(f"benchmarks.contestants.{module}")
    loop: Loop = getattr(found, function)(folder, spec, clock)
    return loop


def profile(peer: str, folder: Path, spec: dict[str, Any], batches: Any) -> None:
    from benchmarks.contestants.profiling import Profiler

    profiler = Profiler(folder)
    loop = start(peer, folder, spec, Clock())
    before, steps = 3, min(spec["steps"], 20)
    loop.losses(batches, before)
    began = time.perf_counter()
    loop.losses(batches, steps)
    answer(operators=profiler.operators(time.perf_counter() - began, steps, before))


def answer(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    main()
