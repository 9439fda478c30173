"""Started by torchrun: streams data, saves, and lets one rank be killed at its first start.

    torchrun … elastic.py ARTIFACTS PATTERN FOLDER

The last checkpoint and a line for every start are left in FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from onnxtrain.api import Callback, SaveCheckpoint, Trainer
from onnxtrain.data import Stream

EPOCHS, BATCH, SAVED, KILLED = 3, 10, 4, 14


class KillOnce(Callback):
    """End this process as the kernel does when there is no memory left, the first time only."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_step_end(self, trainer, logs):
        if trainer.group.rank == 1 and trainer.step == KILLED and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), 9)


def fit(trainer: Trainer, pattern: str, callbacks=()) -> Trainer:
    data = Stream(pattern, ["x", "target"], buffer_rows=24, interleave=4)
    trainer.fit(data, EPOCHS, BATCH, seed=1, progress=False, resume="auto", callbacks=callbacks)
    return trainer


def main() -> None:
    artifacts, pattern, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    trainer = Trainer.from_directory(
        artifacts, latest=folder / "latest", distributed="auto", overlap=False, step_model=None
    )
    if trainer.group.is_main:
        with (folder / "starts.txt").open("a") as file:
            print(trainer.step, trainer.group.size, file=file)
    fit(trainer, pattern, [SaveCheckpoint(folder / "latest", SAVED), KillOnce(folder / "killed")])
    trainer.save(folder / "last")


if __name__ == "__main__":
    main()
