"""The model, the data, and who has which of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

from onnxtrain import artifacts
from onnxtrain.data import digits
from onnxtrain.optim import sgd

Array = npt.NDArray[Any]
CLIENTS = 10
EPOCHS, BATCH, RATE = 2, 16, 0.05
FOLDER = Path(os.environ.get("FEDERATED_DIGITS", "federated_digits_run")).absolute()
"""Where the artifacts are and the result goes; the same for server and clients of this machine."""

GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
digits (float[batch, 1, 8, 8] image) => (float[batch, 10] scores) {
    c1 = Conv <pads = [1, 1, 1, 1]> (image, conv_weight, conv_bias)
    r1 = Relu (c1)
    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
    flat = Flatten (p1)
    h = Gemm <transB = 1> (flat, hidden_weight, hidden_bias)
    r2 = Relu (h)
    scores = Gemm <transB = 1> (r2, out_weight, out_bias)
}
"""
SHAPES = {"conv": (16, 1, 3, 3), "hidden": (64, 256), "out": (10, 64)}


def build(seed: int = 0) -> onnx.ModelProto:
    """A convolution and two dense layers with random weights."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(GRAPH)
    for layer, shape in SHAPES.items():
        weight = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        bias = np.zeros(shape[0], np.float32)
        for name, array in ((f"{layer}_weight", weight), (f"{layer}_bias", bias)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def make_artifacts(folder: Path = FOLDER) -> Path:
    """Write what all clients and the server start from."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build()
    artifacts.generate_artifacts(
        model,
        requires_grad=[i.name for i in model.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=sgd(momentum=0.9),
        artifact_directory=folder,
    )
    return folder


def split() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Training and test data; the clients share the former, nobody trains on the latter."""
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[360:], order[:360]
    return (images[train], labels[train]), (images[test], labels[test])


def partitions(labels: Array, clients: int = CLIENTS, spread: float = 0.5) -> list[Array]:
    """Row numbers by client: each has digits in proportions of its own (Dirichlet)."""
    rng = np.random.default_rng(1)
    found: list[list[Array]] = [[] for _ in range(clients)]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        edges = np.cumsum(rng.dirichlet([spread] * clients))[:-1] * len(rows)
        for part, chosen in zip(found, np.split(rows, edges.astype(int))):
            part.append(chosen)
    return [np.concatenate(p) for p in found]


def client_rows(number: int, nodes: int) -> Array:
    """Rows of node `number` of `nodes`; with fewer nodes than clients each serves several."""
    (_, labels), _ = split()
    parts = partitions(labels)
    return np.concatenate(parts[number::nodes])
