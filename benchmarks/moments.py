"""Adam's moments in fewer bits: `python -m benchmarks.moments [--write]`.

Two networks on scikit-learn's digits, AdamW with the same batches from the same weights, moments in
float32, float16 and int8: the demo's convolutional network (38,282 weights; onnxruntime runs the
update) and a fully connected one of 0.46 million (numba runs it, where it is installed). Each has
the mean over three seeds of the training loss after each epoch, and accuracy on new rows; beside it
bytes of the moments and the time of an update alone (processor time, one thread, least of five).

Results go to `benchmarks/moments.json`, and from there to `docs/guides/optimizers.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain import losses, optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "moments.json"
PAGE = ROOT / "docs" / "guides" / "optimizers.md"
MARK = "<!-- moments table -->"
KINDS = ("float32", "float16", "int8")
SEEDS, EPOCHS, ROWS = 3, 8, 1200


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="only write the table of the guide")
    options = parser.parse_args()
    rows = json.loads(STORED.read_text()) if STORED.exists() else {}
    points = [(n, k, s) for s in range(SEEDS) for n in NETWORKS for k in KINDS]
    for name, kind, seed in () if options.write else points:
        key = f"{name}/{kind}/{seed}"
        if key not in rows:  # a run that was cut off goes on
            rows[key] = measure(name, kind, seed)
            print(key, rows[key], flush=True)
            STORED.write_text(json.dumps(rows, indent=1) + "\n")
    write_table(rows)
    return 0


def perceptron(seed: int) -> onnx.ModelProto:
    """64-640-640-10 with ReLU."""
    rng = np.random.default_rng(seed)
    sizes = (64, 640, 640, 10)
    arrays, nodes, value = {}, [helper.make_node("Flatten", ["image"], ["f"])], "f"
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        arrays[f"fc{i}.weight"] = rng.normal(0, np.sqrt(2 / a), (a, b)).astype(np.float32)
        arrays[f"fc{i}.bias"] = np.zeros(b, np.float32)
        result = "scores" if i == 2 else f"h{i}"
        nodes.append(helper.make_node("Gemm", [value, f"fc{i}.weight", f"fc{i}.bias"], [result]))
        if i < 2:
            nodes.append(helper.make_node("Relu", [result], [f"r{i}"]))
        value = f"r{i}"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


NETWORKS = {"convolutional": digits_network, "fully connected": perceptron}


def measure(name: str, kind: Any, seed: int) -> dict[str, Any]:
    """Curve, accuracy, bytes and time of one network with one kind of moments."""
    images, labels = digits()
    order = np.random.default_rng(seed).permutation(len(images))
    x, y = images[order], labels[order]
    with tempfile.TemporaryDirectory() as folder:
        onnxtrain.generate_artifacts(
            NETWORKS[name](seed), loss=losses.CrossEntropyLoss(),
            optimizer=optim.adamw(moments=kind), artifact_directory=folder,
        )  # fmt: skip
        trainer = Trainer.from_directory(folder, learning_rate=1e-3, metrics=["accuracy"])
        history = trainer.fit((x[:ROWS], y[:ROWS]), EPOCHS, 32, progress=False, seed=seed)
        right = trainer.evaluate((x[ROWS:], y[ROWS:]))["accuracy"]
        size, seconds = _update(Path(folder))
    return {"loss": history["loss"], "accuracy": right, "bytes": size,
            "microseconds": seconds * 1e6}  # fmt: skip


def _update(folder: Path) -> tuple[int, float]:
    """Bytes of the moments, and processor seconds of an update."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    stores = optimizer.training_state.need_optimizer().states.values()
    size = sum(spec.nbytes for store in stores for spec in store.specs.values())
    times = []
    for _ in range(6):
        started = time.process_time()
        optimizer.step()
        times.append(time.process_time() - started)
    return size, min(times[1:])


def write_table(rows: dict[str, Any]) -> None:
    """Put what is stored into the guide, between its two marks."""
    lines = [
        "| network | moments | loss after epoch 1 | 2 | 4 | 8 | accuracy | bytes | an update |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in NETWORKS:
        for kind in KINDS:
            seeds = [v for k, v in rows.items() if k.startswith(f"{name}/{kind}/")]
            if not seeds:
                continue
            loss = np.mean([row["loss"] for row in seeds], 0)
            right = 100 * np.mean([row["accuracy"] for row in seeds])
            least = min(row["microseconds"] for row in seeds) / 1000
            cells = [name, kind, *(f"{loss[i]:.4f}" for i in (0, 1, 3, 7)), f"{right:.2f} %",
                     f"{seeds[0]['bytes']:,}", f"{least:.2f} ms"]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    before, _, after = PAGE.read_text().split(MARK)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{MARK}\n{table}\n{MARK}{after}")


if __name__ == "__main__":
    sys.exit(main())
