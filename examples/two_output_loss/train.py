"""A model with two outputs and a loss of our own: a weighted sum of one loss per output."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from onnxtrain import artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module, Optimizer

GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
two_heads (float[batch, 6] x) => (float[batch, 1] output1, float[batch, 2] output2) {
    h = Gemm (x, weight1, bias1)
    a = Tanh (h)
    output1 = Gemm (a, weight2, bias2)
    output2 = Gemm (a, weight3, bias3)
}
"""
SHAPES = {
    "weight1": (6, 16), "bias1": (16,), "weight2": (16, 1), "bias2": (1,),
    "weight3": (16, 2), "bias3": (2,),
}  # fmt: skip


class WeightedAverageLoss(onnxblock.Block):
    """``w · mse(output1, target1) + (1 − w) · mse(output2, target2)``."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(weight)
        self._w2 = onnxblock.blocks.Constant(1 - weight)
        self._mul = onnxblock.blocks.Mul()
        self._add = onnxblock.blocks.Add()

    def build(self, name1: str, name2: str) -> Any:
        """Append the loss; a block is called with names of values and returns such a name."""
        return self._add(
            self._mul(self._w1(), self._loss1(name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(name2, target_name="target2")),
        )


def build(rng: np.random.Generator) -> onnx.ModelProto:
    """Two heads on one hidden layer."""
    model = onnx.parser.parse_model(GRAPH)
    for name, shape in SHAPES.items():
        spread = shape[0] ** -0.5 if len(shape) > 1 else 0.0
        array = rng.normal(0, spread, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def data(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, ...]:
    """Two smooth functions of six numbers."""
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    target1 = np.sin(x[:, :1]) + 0.5 * x[:, 1:2]
    target2 = np.stack([x[:, 2] * 0.8 - x[:, 3] * 0.3, np.tanh(x[:, 4] + x[:, 5])], axis=1)
    return x, target1.astype(np.float32), target2.astype(np.float32)


def main(given: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("two_outputs"), help="folder for files")
    parser.add_argument("--weight", type=float, default=0.4, help="share of the first loss")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="few steps: only to see it run")
    options = parser.parse_args(given)
    rng = np.random.default_rng(0)
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        build(rng),
        requires_grad="*",
        loss=WeightedAverageLoss(options.weight),
        optimizer=artifacts.OptimType.AdamW,
        additional_output_names=["output1", "output2"],
        artifact_directory=folder,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    model = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(1e-2)
    print("inputs of the training model:", ", ".join(model.input_names()))

    test = data(rng, 500)
    first = measure(model, test)
    for _ in range(300 if options.quick else options.steps):
        model(*data(rng, 64))
        optimizer.step()
        model.lazy_reset_grad()
    last = measure(model, test)
    for name, before, after in zip(
        ("weighted loss", "mse of output1", "mse of output2"), first, last
    ):
        print(f"{name}: {before:.4f} → {after:.4f}")
    return first[0], last[0]


def measure(model: Module, test: tuple[np.ndarray, ...]) -> tuple[float, ...]:
    """The loss and the error of each output, with the eval model."""
    x, target1, target2 = test
    model.eval()
    loss, output1, output2 = model(x, target1, target2)
    model.train()
    errors = (np.mean((output1 - target1) ** 2), np.mean((output2 - target2) ** 2))
    return float(np.mean(loss)), *map(float, errors)


if __name__ == "__main__":
    main()
