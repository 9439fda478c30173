"""Models and data that pages take for granted; imported by their hidden set-up code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    weights: dict[str, np.ndarray],
    opset: int = 18,
) -> onnx.ModelProto:
    """A model of float inputs and outputs."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(made, full_check=True)
    return made


def classifier(path: str | Path = "model.onnx", inputs: int = 20) -> None:
    """Two layers with a Dropout between: ``x`` to ``logits`` of three classes."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1"),
        node("Relu", ["h"], ["a"], "relu"),
        node("Dropout", ["a", "ratio"], ["d"], "dropout"),
        node("Gemm", ["d", "fc2.weight", "fc2.bias"], ["logits"], "fc2"),
    ]
    weights = {
        "fc1.weight": rng.normal(0, inputs**-0.5, (inputs, 32)),
        "fc1.bias": np.zeros(32),
        "ratio": np.array(0.1),
        "fc2.weight": rng.normal(0, 32**-0.5, (32, 3)),
        "fc2.bias": np.zeros(3),
    }
    shapes = {"x": ["batch", inputs]}, {"logits": ["batch", 3]}
    onnx.save(model(nodes, *shapes, weights), path)


def blobs(rows: int = 256, inputs: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of points, and which of them each point belongs to."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, rows)
    centres = rng.normal(0, 1, (3, inputs))
    return (centres[y] + rng.normal(0, 1, (rows, inputs))).astype(np.float32), y


def two_outputs(path: str | Path = "model.onnx") -> None:
    """A hidden layer with two heads, ``price`` and ``rating``."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1"),
        node("Tanh", ["h"], ["a"], "tanh"),
        node("MatMul", ["a", "price.weight"], ["price"], "price"),
        node("MatMul", ["a", "rating.weight"], ["rating"], "rating"),
    ]
    weights = {
        "fc1.weight": rng.normal(0, 0.4, (8, 16)),
        "fc1.bias": np.zeros(16),
        "price.weight": rng.normal(0, 0.3, (16, 1)),
        "rating.weight": rng.normal(0, 0.3, (16, 1)),
    }
    outputs = {"price": ["batch", 1], "rating": ["batch", 1]}
    onnx.save(model(nodes, {"x": ["batch", 8]}, outputs, weights), path)
