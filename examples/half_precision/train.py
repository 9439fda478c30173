"""Fewer bytes for the same training: frozen weights in half precision, Adam's moments in a byte."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from onnxtrain import artifacts, lora, losses, optim, quant
from onnxtrain.api import Trainer
from onnxtrain.data import digits

Rows = tuple[np.ndarray, np.ndarray]
GRAPH = """
<ir_version: 8, opset_import: ["": 18]>
perceptron (float[N, 1, 8, 8] image) => (float[N, 10] scores) {
    flat = Flatten (image)
    h1 = Gemm (flat, w1, b1)
    a1 = Relu (h1)
    h2 = Gemm (a1, w2, b2)
    a2 = Relu (h2)
    h3 = Gemm (a2, w3, b3)
    a3 = Relu (h3)
    scores = Gemm (a3, w4, b4)
}
"""


def perceptron(width: int) -> onnx.ModelProto:
    """Four layers, as wide as asked."""
    model = onnx.parser.parse_model(GRAPH)
    rng = np.random.default_rng(0)
    for i, (inputs, outputs) in enumerate(
        [(64, width), (width, width), (width, width), (width, 10)]
    ):
        weight = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{i + 1}"))
        bias = np.zeros(outputs, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(bias, f"b{i + 1}"))
    return model


def data(turned: bool = False) -> tuple[Rows, Rows]:
    """Images of digits, upright or lying: those to learn from, and new ones."""
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order]
    if turned:
        images = np.ascontiguousarray(np.rot90(images, axes=(2, 3)))
    return (images[:1300], labels[:1300]), (images[1300:], labels[1300:])


def prepare(model: onnx.ModelProto, folder: Path, optimizer: optim.Optimizer) -> Trainer:
    """Training files for a model, and what trains them."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model, loss=losses.CrossEntropyLoss(), optimizer=optimizer, artifact_directory=folder
    )
    return Trainer.from_directory(folder, learning_rate=5e-4, metrics=["accuracy"])


def fit(trainer: Trainer, rows: Rows, epochs: int) -> list[float]:
    """Train; gives the loss of each epoch."""
    return trainer.fit(rows, epochs, batch_size=32, progress=False)["loss"]


def with_moments(kind: Any, folder: Path, width: int, epochs: int) -> str:
    """All weights are trained, with Adam's moments in one of three types."""
    rows, new = data()
    trainer = prepare(perceptron(width), folder, optim.adamw(moments=kind))
    curve = " ".join(f"{loss:.4f}" for loss in fit(trainer, rows, epochs))
    trainer.save(folder / "saved")  # weights and moments
    trainer.export(folder.parent / f"trained_{kind}.onnx")  # weights alone
    weights, saved = (
        (folder.parent / name).stat().st_size
        for name in (f"trained_{kind}.onnx", f"{folder.name}/saved")
    )
    return (
        f"moments in {kind}: {(saved - weights) / 1e6:.1f} MB beside {weights / 1e6:.1f} MB of "
        f"weights; loss {curve}; {trainer.evaluate(new)['accuracy']:.3f} of the new images right"
    )


def with_frozen_base(kind: str, folder: Path, epochs: int) -> str:
    """The upright network learns lying digits in adapters; its own weights are frozen."""
    base, stored = folder.parent / "trained_float32.onnx", folder.parent / f"base_{kind}.onnx"
    if kind == "float32":
        stored = base
    else:
        quant.half_weights(base, kind, output=stored)
    rows, new = data(turned=True)
    before = right(stored, new)
    folder.mkdir(parents=True, exist_ok=True)
    lora.add(stored, rank=8, alpha=16, output=folder / "adapted.onnx")
    prepare(onnx.load(folder / "adapted.onnx"), folder, optim.adamw())
    grown, after = alone(learn, folder, rows, new, epochs)
    used = f", {grown / 1e6:.0f} MB of memory to train" if grown else ""
    return (
        f"frozen weights in {kind}: file {stored.stat().st_size / 1e6:.1f} MB{used}; "
        f"lying digits right: {before:.3f} → {after:.3f}"
    )


def learn(folder: Path, rows: Rows, new: Rows, epochs: int) -> tuple[int | None, float]:
    """Train what is in a folder: by how much memory grew, and the share that is right then."""
    before = memory("VmRSS")
    trainer = Trainer.from_directory(folder, learning_rate=2e-3, metrics=["accuracy"])
    fit(trainer, rows, epochs)
    peak = memory("VmHWM")
    grown = peak - before if peak and before else None
    return grown, trainer.evaluate(new)["accuracy"]


def in_half_arithmetic(folder: Path, epochs: int) -> str:
    """Products in float16 with a scaled loss: for hardware that has them, and no gain here."""
    rows, new = data()
    plain = perceptron(256)
    ends, seconds = [], []
    for name, model in {"full": plain, "half": quant.mixed_precision(plain)}.items():
        trainer = prepare(model, folder / name, optim.adamw())
        ends.append(fit(trainer, rows, epochs)[-1])
        share = trainer.evaluate(new)["accuracy"]
        began = time.perf_counter()
        fit(trainer, rows, 1)
        seconds.append(time.perf_counter() - began)
    scale = float(np.ravel(trainer.state.parameters["onnxtrain.loss_scale"].data)[0])
    return (
        f"products in float16: loss {ends[1]:.4f} (float32: {ends[0]:.4f}), {share:.3f} right, the "
        f"loss scaled by {scale:g}; an epoch took {seconds[1] / seconds[0]:.1f} times as long on "
        "this CPU"
    )


def right(path: Path, rows: Rows) -> float:
    """Share of the images that plain onnxruntime tells right."""
    session = onnxruntime.InferenceSession(str(path))
    return float((session.run(None, {"image": rows[0]})[0].argmax(1) == rows[1]).mean())


def memory(field: str) -> int | None:
    """Bytes that this process has now (VmRSS), or had at most (VmHWM); None outside of Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(field)]
    return found[0] if found else None


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Work in a fresh process, so that its memory is that of this work alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("half"), help="folder for all files")
    parser.add_argument("--quick", action="store_true", help="a small network, few epochs")
    options = parser.parse_args()
    width, epochs = (640, 2) if options.quick else (1536, 4)
    for kind in ("float32", "float16", "int8"):
        print(with_moments(kind, options.out / f"moments_{kind}", width, epochs), flush=True)
    for kind in ("float32", "float16", "bfloat16"):
        print(with_frozen_base(kind, options.out / f"frozen_{kind}", epochs), flush=True)
    print(in_half_arithmetic(options.out / "products", epochs))
    print("PyTorch was imported:", "torch" in sys.modules)


if __name__ == "__main__":
    main()
