"""What runs where the images are."""

from __future__ import annotations

from typing import Any

from onnxtrain.flower import client_app

from . import task


def data(context: Any) -> tuple[Any, Any]:
    """This client's images; it has no validation data of its own."""
    node = context.node_config
    return task.client_data(int(node["partition-id"]), int(node["num-partitions"])), None


app = client_app(
    task.FOLDER,
    data,
    epochs=task.EPOCHS,
    batch_size=task.BATCH,
    learning_rate=task.RATE,
    metrics=["accuracy"],
    seed=task.SEED,
)
