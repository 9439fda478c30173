"""Run by several processes at once: trains as told on the command line and writes the result.

    python worker.py FOLDER RESULT '{"backend": "mpi", "runs": [{...}, ...]}'

Every run gives one set of arrays in RESULT.<rank>.npz, named ``<run>/<what>``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from onnxtrain.api import Callback, SaveCheckpoint, Trainer

HERE = Path(__file__).parent


class Die(Callback):
    """Let one process end without a word (as if out of memory), hang, or fail."""

    def __init__(self, rank: int, step: int, how: str) -> None:
        self.rank, self.step, self.how = rank, step, how

    def on_step_end(self, trainer, logs):
        if trainer.group.rank == self.rank and trainer.step == self.step:
            if self.how == "kill":
                os.kill(os.getpid(), 9)
            if self.how == "hang":
                time.sleep(60)
            raise OSError("the disk of this rank is gone")


class StopOnOneRank(Callback):
    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def on_step_end(self, trainer, logs):
        if trainer.group.rank == self.rank and trainer.step == self.step:
            trainer.stop = True


def own_rank() -> int:
    """As the launcher tells it."""
    return int(os.environ.get("PMI_RANK", os.environ.get("RANK", "0")))


def data_of(folder: Path) -> dict[str, np.ndarray]:
    """The arrays that are trained on; the file is closed."""
    with np.load(folder / "data.npz") as file:
        return dict(file)


def train(folder: Path, backend: str, run: dict) -> dict[str, np.ndarray]:
    data = data_of(folder)
    state = run.get("state", folder / "checkpoint")
    if run.get("file_on_rank_0_only") and own_rank():
        state = folder / "there is no such file"
    trainer = Trainer(
        folder / "training_model.onnx",
        folder / run.get("optimizer", "optimizer_model.onnx"),
        state,
        folder / "eval_model.onnx",
        metrics=["mse", "r2"],
        distributed=backend,
        **run.get("options", {}),
    )
    if run.get("no_statistics"):  # the model reads them while it trains: micro-batches would differ
        trainer._engine.module.gradient_step.artifact.states.clear()
        trainer._engine.module.gradient_step.next_states.specs.clear()
    callbacks = [SaveCheckpoint(*run["save"])] if "save" in run else []
    callbacks += [Die(*run["die"])] if "die" in run else []
    callbacks += [StopOnOneRank(*run["stop"])] if "stop" in run else []
    history = trainer.fit(
        (data["x"], data["y"]),
        callbacks=callbacks,
        validation_data=(data["vx"], data["vy"]),
        progress=False,
        **run["fit"],
    )
    found = {f"param/{n}": p.data.copy() for n, p in trainer.state.parameters}
    found |= {f"history/{n}": np.array(v) for n, v in history.items()}
    found["steps"] = np.array(trainer.step)
    overlap = trainer._engine.overlap
    found["overlapped"] = np.array([overlap.decided, overlap.on])
    optimizer = trainer._engine.optimizer
    if run.get("options", {}).get("shard_optimizer"):
        found["state_bytes"] = np.array(optimizer.nbytes)
    if "save_last" in run:
        trainer.save(run["save_last"])
    return found


def main() -> None:
    folder, result, task = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    found = {}
    for index, run in enumerate(task["runs"]):
        for name, value in train(folder, task["backend"], run).items():
            found[f"{index}/{name}"] = value
    np.savez(f"{result}.{own_rank()}.npz", **found)


if __name__ == "__main__":
    main()
