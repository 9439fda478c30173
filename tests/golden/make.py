"""Write the golden files of a release: ``python -m tests.golden.make`` before it is tagged.

They are never written again: what a release wrote, every later one has to read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

import onnxtrain
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts
from onnxtrain.schedulers import LinearLRScheduler

FOLDER = Path(__file__).parent
STEPS = 3


def network() -> onnx.ModelProto:
    """A classifier with BatchNormalization and Dropout, so that there is every kind of state."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,4] x) => (float[N,3] y) <float ratio = {0.25}, bool on = {1}> {
        h = Gemm<transB = 1>(x, w1, b1)
        n, m, v = BatchNormalization<training_mode = 1>(h, scale, bias, mean, variance)
        r = Relu(n)  d = Dropout<seed = 5>(r, ratio, on)
        y = Gemm<transB = 1>(d, w2, b2)
    }""")
    rng = np.random.default_rng(7)
    shapes = {"w1": (6, 4), "b1": (6,), "scale": (6,), "bias": (6,), "w2": (3, 6), "b2": (3,)}
    values = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    values |= {"mean": np.zeros(6, np.float32), "variance": np.ones(6, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def batch(number: int) -> tuple[Any, Any]:
    """The data of one step."""
    rng = np.random.default_rng(number)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)


def opened(folder: Path, checkpoint: str) -> tuple[CheckpointState, Module, Optimizer]:
    """What is in a folder, ready to go on."""
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def steps(module: Module, optimizer: Optimizer, first: int) -> list[float]:
    """Some losses."""
    scheduler = LinearLRScheduler(optimizer, 1, 20, 0.01)
    losses = []
    for number in range(first, first + STEPS):
        losses.append(float(module(*batch(number))))
        optimizer.step()
        module.lazy_reset_grad()
        scheduler.step()
    return losses


def main() -> None:
    """Artifacts, a checkpoint in the middle of a training, and what came after it."""
    folder = FOLDER / onnxtrain.__version__
    if folder.exists():
        raise SystemExit(f"{folder} is there already. What a release wrote is not written again.")
    folder.mkdir()
    try:
        generate_artifacts(
            network(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
            artifact_directory=folder, requires_grad=["w1", "b1", "scale", "bias", "w2", "b2"],
        )  # fmt: skip
        state, module, optimizer = opened(folder, "checkpoint")
        before = steps(module, optimizer, 0)
        CheckpointState.save_checkpoint(state, folder / "half", include_optimizer_state=True)
        after = steps(module, optimizer, STEPS)
        module.eval()
        evaluated = float(module(*batch(100)))
    except BaseException:
        shutil.rmtree(folder)
        raise
    expected = {"before": before, "after": after, "evaluated": evaluated}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
