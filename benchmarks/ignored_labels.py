"""What a label to ignore costs: `python -m benchmarks.ignored_labels [rounds]`.

Steps of networks of microseconds, with the default `ignore_index` and without any, interleaved in
one process. The tenth percentile of the rounds says what a step takes when nothing else runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import onnxtrain
from onnxtrain import CheckpointState, Module, Optimizer, losses, optim

NETWORKS = {"4-8-3": 8, "20-16-10": 15, "64-32-10": 64, "784-128-10": 64}
"""Widths of the layers → rows of a batch."""
STEPS = 50
"""Steps between two looks at the clock."""

Step = Callable[[np.ndarray, np.ndarray], None]


def network(widths: list[int]) -> onnx.ModelProto:
    """Fully connected layers with ReLU between them."""
    rng, lines, x = np.random.default_rng(0), [], "x"
    tensors = []
    for i, (rows, columns) in enumerate(zip(widths, widths[1:])):
        is_last = i == len(widths) - 2
        lines.append(f"{'y' if is_last else f'h{i}'} = Gemm({x}, w{i}, b{i})")
        if not is_last:
            lines.append(f"r{i} = Relu(h{i})")
            x = f"r{i}"
        values = rng.normal(size=(rows, columns)) / np.sqrt(rows)
        tensors.append(numpy_helper.from_array(values.astype(np.float32), f"w{i}"))
        tensors.append(numpy_helper.from_array(np.zeros(columns, np.float32), f"b{i}"))
    text = f"g (float[N, {widths[0]}] x) => (float[N, {widths[-1]}] y) {{ {' '.join(lines)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    model.graph.initializer.extend(tensors)
    return model


def training(model: onnx.ModelProto, ignore_index: int | None, folder: Path) -> Step:
    """One step of training with SGD."""
    loss = losses.CrossEntropyLoss(ignore_index=ignore_index)
    onnxtrain.generate_artifacts(
        model, loss=loss, optimizer=optim.sgd(), artifact_directory=str(folder)
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)

    def step(x: np.ndarray, labels: np.ndarray) -> None:
        module(x, labels)
        optimizer.step()
        module.lazy_reset_grad()

    return step


def microseconds(steps: list[Step], batch: tuple[np.ndarray, np.ndarray], rounds: int) -> list:
    """The tenth percentile of each, in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for round_ in range(rounds):
        for i in (range(len(steps)), reversed(range(len(steps))))[round_ % 2]:
            start = time.perf_counter()
            for _ in range(STEPS):
                steps[i](*batch)
            times[i].append((time.perf_counter() - start) / STEPS * 1e6)
    return [float(np.percentile(t, 10)) for t in times]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    print("| network, rows | without, µs | ignore_index=-100, µs | ratio |")
    print("| --- | --- | --- | --- |")
    for name, rows in NETWORKS.items():
        widths = [int(w) for w in name.split("-")]
        rng = np.random.default_rng(1)
        batch = (
            rng.normal(size=(rows, widths[0])).astype(np.float32),
            rng.integers(0, widths[-1], rows),
        )
        with tempfile.TemporaryDirectory() as made:
            steps = []
            for number, ignored in enumerate((None, -100)):
                folder = Path(made) / str(number)
                folder.mkdir()
                steps.append(training(network(widths), ignored, folder))
            microseconds(steps, batch, 10)
            without, default = microseconds(steps, batch, rounds)
        print(f"| {name}, {rows} | {without:.1f} | {default:.1f} | {default / without:.3f} |")


if __name__ == "__main__":
    main()
