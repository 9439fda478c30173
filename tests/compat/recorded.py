"""What 1.19.2 recorded for one model family, and how to run the same steps here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from onnxtrain.api import CheckpointState, Module, Optimizer

DATA = Path(__file__).parent / "data"
FAMILIES = sorted(p.parent.name for p in DATA.glob("*/data.npz"))


class Recorded:
    """Inputs, losses, first gradients and last parameters of a run."""

    def __init__(self, name: str) -> None:
        self.folder = DATA / name
        with np.load(self.folder / "data.npz") as stored:
            arrays = dict(stored)
        self.losses = arrays.pop("losses")
        settings = json.loads(bytes(arrays.pop("settings")))
        self.rate, self.accumulate = settings["rate"], settings["accumulate"]
        self.names: list[str] = settings["names"]
        self.gradients = {k[5:]: v for k, v in arrays.items() if k.startswith("grad/")}
        self.last = {k[5:]: v for k, v in arrays.items() if k.startswith("last/")}
        self.batches = [
            [arrays[f"batch/{i}/{j}"] for j in range(len(self.names))] for i in range(3)
        ]

    def open(self, folder: Path | None = None) -> tuple[CheckpointState, Module, Optimizer]:
        """State, module and optimizer of a folder, by default the original one."""
        folder = folder or self.folder
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(self.rate)
        return state, module, optimizer

    def train(
        self, state: CheckpointState, module: Module, optimizer: Optimizer
    ) -> tuple[list[float], dict[str, Any]]:
        """The recorded steps again: their losses, and the gradients of the first."""
        losses, first = [], {}
        for step in range(len(self.losses)):
            result = module(*self.batches[step % 3])
            losses.append(float(result[0] if isinstance(result, tuple) else result))
            if step == 0:
                first = {n: np.array(state.parameters[n].grad) for n in self.gradients}
            if (step + 1) % self.accumulate == 0:
                optimizer.step()
                module.lazy_reset_grad()
        return losses, first
