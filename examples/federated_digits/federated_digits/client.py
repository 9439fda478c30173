"""What runs where the images are."""

from __future__ import annotations

from typing import Any

from onnxtrain.flower import client_app

from .task import BATCH, EPOCHS, FOLDER, RATE, client_rows, split


def data(context: Any) -> tuple[Any, Any]:
    """This client's images; it has no validation data of its own."""
    number = int(context.node_config["partition-id"])
    rows = client_rows(number, int(context.node_config["num-partitions"]))
    (images, labels), _ = split()
    return (images[rows], labels[rows]), None


app = client_app(
    FOLDER, data, epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE, metrics=["accuracy"]
)
