"""A network that knows five shapes learns three others from twenty pictures each, in one line."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from draw import KNOWN, NEW, SIDE, arrays, write_folders

from onnxtrain import artifacts
from onnxtrain.api import Trainer
from onnxtrain.cli import main as onnxtrain

CHANNELS = (3, 16, 32, 32)
GRAPH = f"""
<ir_version: 9, opset_import: ["": 18]>
shapes (float[batch, 3, {SIDE}, {SIDE}] image) => (float[batch, {len(KNOWN)}] scores) {{
    c0 = Conv <pads = [1, 1, 1, 1]> (image, conv0_weight, conv0_bias)
    r0 = Relu (c0)
    p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
    c1 = Conv <pads = [1, 1, 1, 1]> (p0, conv1_weight, conv1_bias)
    r1 = Relu (c1)
    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
    c2 = Conv <pads = [1, 1, 1, 1]> (p1, conv2_weight, conv2_bias)
    r2 = Relu (c2)
    p2 = GlobalMaxPool (r2)
    flat = Flatten (p2)
    scores = Gemm <transB = 1> (flat, fc_weight, fc_bias)
}}
"""


def network() -> onnx.ModelProto:
    """Three convolutions and a classifier, with random weights."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(GRAPH)
    shapes = {
        f"conv{i}_weight": (b, a, 3, 3) for i, (a, b) in enumerate(itertools.pairwise(CHANNELS))
    }
    shapes["fc_weight"] = (len(KNOWN), CHANNELS[-1])
    for name, shape in shapes.items():
        spread = (2 / np.prod(shape[1:])) ** 0.5
        bias = np.zeros(shape[0], np.float32)
        weight = rng.normal(0, spread, shape).astype(np.float32)
        for part, array in (("weight", weight), ("bias", bias)):
            named = onnx.numpy_helper.from_array(array, name.replace("weight", part))
            model.graph.initializer.append(named)
    return model


def pretrain(folder: Path, each: int, epochs: int) -> Path:
    """Train the network on the shapes that it shall know; gives its file."""
    (folder / "pretraining").mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        network(),
        requires_grad="*",
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder / "pretraining",
        step_model=True,
    )
    trainer = Trainer.from_directory(folder / "pretraining", learning_rate=4e-3)
    trainer.fit(arrays(KNOWN, each, seed=0), epochs=epochs, progress=False)
    trainer.export(folder / "shapes.onnx")
    return folder / "shapes.onnx"


def accuracy(model: Path, each: int) -> float:
    """Of a trained model on pictures that it has not seen."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    images, labels = arrays(NEW, each, seed=99)
    (scores,) = session.run(None, {session.get_inputs()[0].name: images})
    right = [names[s] == NEW[label] for s, label in zip(scores.argmax(axis=1), labels)]
    return float(np.mean(right))


def main(given: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("photo_transfer"), help="for all files")
    parser.add_argument("--quick", action="store_true", help="fewer pictures: only to see it run")
    options = parser.parse_args(given)
    model = pretrain(options.out, *((80, 8) if options.quick else (200, 15)))
    write_folders(options.out / "pictures", NEW, 20, seed=1)
    line = ["train", str(model), "--data", str(options.out / "pictures"), "--new-head"]
    line += ["--lr", "0.02", "--epochs", "60", "--output", str(options.out / "run"), "--overwrite"]
    print("onnxtrain", *line)
    began = time.perf_counter()
    if onnxtrain(line):
        raise SystemExit(1)
    print(f"{time.perf_counter() - began:.1f} s")
    reached = accuracy(options.out / "run" / "model.onnx", 30 if options.quick else 100)
    print(f"accuracy on new pictures of {', '.join(NEW)}: {reached:.3f}")
    return reached


if __name__ == "__main__":
    main()
