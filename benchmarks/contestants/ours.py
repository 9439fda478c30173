"""onnxtrain: `Trainer.fit`, and Module + Optimizer.

The artifacts are written by a process of its own (`python -m benchmarks.contestants.ours FOLDER
TARGET STEP_MODEL`), because that half needs neither to be fast nor to be on the device: its time
and its memory are reported by themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .base import Batches, Clock, Loop, limit_threads, peak

ROOT = Path(__file__).resolve().parents[2]


class FitLoop(Loop):
    """`Trainer.fit` as a user calls it; a turn is one epoch."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(lambda x, y: self._fit([(x, y)]))
        self._trainer = trainer

    def many(self, batches: Batches, count: int) -> int:
        self._fit([batches[i % len(batches)] for i in range(count)])
        return count

    def _fit(self, batches: Batches) -> float:
        return float(self._trainer.fit(batches, progress=False)["loss"][0])


def trainer(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    """The loop that comes with onnxtrain."""
    directory = _artifacts(folder, "one", clock)
    from onnxtrain.api import Trainer

    clock.lap("import")
    loop = FitLoop(Trainer.from_directory(directory, learning_rate=_rate(spec)))
    clock.lap("session")
    return loop


def parts(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    """Module and Optimizer, two calls a step."""
    directory = _artifacts(folder, "parts", clock)
    from onnxtrain.api import CheckpointState, Module, Optimizer

    clock.lap("import")
    state = CheckpointState.load_checkpoint(f"{directory}/checkpoint")
    model = Module(f"{directory}/training_model.onnx", state, f"{directory}/eval_model.onnx")
    optimizer = Optimizer(f"{directory}/optimizer_model.onnx", model)
    optimizer.set_learning_rate(_rate(spec))
    clock.lap("session")

    def step(x: Any, y: Any) -> float:
        loss = float(model(x, y))
        optimizer.step()
        model.lazy_reset_grad()
        return loss

    return Loop(step)


def _rate(spec: dict[str, Any]) -> float:
    return float(spec["optimizer"]["lr"])


def _artifacts(folder: Path, kind: str, clock: Clock) -> str:
    """Have them written; the folder. Their time is added to the clock."""
    target = folder / f"artifacts_{kind}"
    if not target.exists():  # a profiling run uses those of the timed one
        command = [sys.executable, "-m", __name__, str(folder), str(target), kind]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        (target / "cost.json").write_text(done.stdout)
    limit_threads()
    clock.lap("other process")
    del clock.parts["other process"]  # instead of starting it, what it took itself
    clock.parts.update(json.loads((target / "cost.json").read_text())["parts"])
    return str(target)


def write_artifacts(folder: Path, target: Path, kind: str) -> None:
    """The other process."""
    clock = Clock()
    from onnxtrain import artifacts, optim

    clock.lap("import")
    spec = json.loads((folder / "spec.json").read_text())
    options = dict(spec["optimizer"])
    name, _, clip = options.pop("name"), options.pop("lr"), options.pop("clip", None)
    if name == "adamw":
        options.update(form="torch", weight_decay=0.01)
    if clip:
        options["clip"] = optim.ClipNorm(clip)
    losses = artifacts.LossType
    target.mkdir()
    artifacts.generate_artifacts(
        str(folder / "model.onnx"),
        requires_grad=spec["trainable"],
        frozen_params=[],
        loss=losses.CrossEntropyLoss if spec["loss"] == "ce" else losses.MSELoss,
        optimizer=getattr(optim, name)(**options),
        artifact_directory=str(target),
        step_model=kind == "one",
    )
    clock.lap("artifacts")
    print(json.dumps({"parts": clock.parts, "rss": peak()}))


if __name__ == "__main__":
    write_artifacts(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
