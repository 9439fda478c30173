"""Training files of two trees, run by this tree in one process, step by step in turns.

`python -m benchmarks.files_of_versions FOLDER WAY SECONDS`, where `benchmarks.versions --files` has
put the workload and the artifacts of both trees, `before` and `now`. The way is `ours` (Trainer) or
`ours_parts` (Module + Optimizer), both on one thread, and the time is the processor's. As both meet
the same moments of a busy machine, a few hundred steps tell a hundredth.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer

TREES = ("before", "now")
FIRST = 2
"""Steps that do not count: sessions get their memory."""

LEARNING_RATE = 1e-5


def one_thread() -> onnxruntime.SessionOptions:
    """Options of a session whose work is the processor time of its caller."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def trainer_step(folder: Path) -> Callable[[Any, Any], object]:
    """A step of `Trainer` with the artifacts in a folder."""
    trainer = Trainer.from_directory(
        folder, learning_rate=LEARNING_RATE, session_options=one_thread()
    )
    engine = trainer._engine  # `fit` without its bookkeeping
    return lambda x, y: engine.run((x, y))


def parts_step(folder: Path) -> Callable[[Any, Any], object]:
    """A step of Module and Optimizer with the artifacts in a folder."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    model = Module(folder / "training_model.onnx", state, session_options=one_thread())
    optimizer = Optimizer(folder / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(LEARNING_RATE)

    def step(x: Any, y: Any) -> None:
        model(x, y)
        optimizer.step()
        model.lazy_reset_grad()

    return step


WAYS = {"ours": trainer_step, "ours_parts": parts_step}


def main() -> None:
    folder, way, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    data = np.load(folder / "batches.npz")
    count = json.loads((folder / "spec.json").read_text())["batches"]
    batches = [(data[f"x{i}"], data[f"y{i}"]) for i in range(count)]
    steps = {tree: WAYS[way](folder / tree) for tree in TREES}
    times: dict[str, list[float]] = {tree: [] for tree in TREES}
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or number < 2 * FIRST:
        for tree in TREES[:: 1 if number % 2 == 0 else -1]:
            used = time.process_time()
            steps[tree](*batches[number % count])
            times[tree].append(time.process_time() - used)
        number += 1
    print(json.dumps({tree: values[FIRST:] for tree, values in times.items()}))


if __name__ == "__main__":
    main()
