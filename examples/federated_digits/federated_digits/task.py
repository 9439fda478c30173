"""The model, the data, and who has which of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

from onnxtrain import artifacts
from onnxtrain.data import digits
from onnxtrain.optim import sgd

Array = npt.NDArray[Any]
CLIENTS = 10
BATCH = 16
ROUNDS, EPOCHS, RATE = 60, 2, 0.1
"""Rounds, passes of a client over its data in each, and learning rate: what `choose.py` found."""

CENTRAL_EPOCHS, CENTRAL_RATE = 45, 0.05
"""For training in one place, chosen in the same way."""

SEED = int(os.environ.get("SEED", "0"))
"""From it follow the first weights, who has which digits, and the order of the rows."""

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


def build(seed: int = SEED) -> onnx.ModelProto:
    """A convolution and two dense layers with random weights."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(GRAPH)
    for layer, shape in SHAPES.items():
        weight = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        bias = np.zeros(shape[0], np.float32)
        for name, array in ((f"{layer}_weight", weight), (f"{layer}_bias", bias)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def make_artifacts(folder: Path = FOLDER, seed: int = SEED) -> Path:
    """Write what all clients and the server start from."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(seed)
    artifacts.generate_artifacts(
        model,
        requires_grad=[i.name for i in model.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=sgd(momentum=0.9),
        artifact_directory=folder,
    )
    return folder


class Split(NamedTuple):
    """The digits, whatever the seed: for training, for choosing, and for the last word."""

    train: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]


def split() -> Split:
    """1077 digits to train on (the clients share them), 360 to choose with, 360 to test."""
    images, labels = digits()
    order = np.random.default_rng(10).permutation(len(labels))
    parts = np.split(order, [len(labels) - 720, len(labels) - 360])
    return Split(*((images[rows], labels[rows]) for rows in parts))


def partitions(
    labels: Array, clients: int = CLIENTS, spread: float = 0.5, seed: int = SEED
) -> list[Array]:
    """Row numbers by client: each has digits in proportions of its own (Dirichlet)."""
    rng = np.random.default_rng([1, seed])
    found: list[list[Array]] = [[] for _ in range(clients)]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        edges = np.cumsum(rng.dirichlet([spread] * clients))[:-1] * len(rows)
        for part, chosen in zip(found, np.split(rows, edges.astype(int))):
            part.append(chosen)
    return [np.concatenate(p) for p in found]


def client_data(number: int, nodes: int = CLIENTS) -> tuple[Array, Array]:
    """Digits of node `number` of `nodes`; with fewer nodes than clients each serves several."""
    images, labels = split().train
    rows = np.concatenate(partitions(labels)[number::nodes])
    return images[rows], labels[rows]
