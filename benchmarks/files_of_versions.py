"""Training files of two trees, run by this tree in one process, step by step in turns.

`python -m benchmarks.files_of_versions FOLDER SECONDS`, where `benchmarks.versions --files` has put
the workload and the artifacts of both trees, `before` and `now`. Both are Module + Optimizer on one
thread, and the time is the processor's. As both meet the same moments of a busy machine, a few
hundred steps tell a hundredth.
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

from onnxtrain.api import CheckpointState, Module, Optimizer

TREES = ("before", "now")
FIRST = 2
"""Steps that do not count: sessions get their memory."""


def step_of(folder: Path) -> Callable[[Any, Any], None]:
    """A training step with the artifacts in a folder."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    model = Module(folder / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(1e-5)

    def step(x: Any, y: Any) -> None:
        model(x, y)
        optimizer.step()
        model.lazy_reset_grad()

    return step


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    data = np.load(folder / "batches.npz")
    count = json.loads((folder / "spec.json").read_text())["batches"]
    batches = [(data[f"x{i}"], data[f"y{i}"]) for i in range(count)]
    steps = {tree: step_of(folder / tree) for tree in TREES}
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
