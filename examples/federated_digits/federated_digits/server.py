"""What brings the clients' parameters together."""

from __future__ import annotations

import json
import os
from typing import Any

from onnxtrain.flower import LocalModel, make_strategy, server_app

from .task import FOLDER, split

ROUNDS = int(os.environ.get("ROUNDS", "30"))
NODES = int(os.environ.get("NODES", "10"))


def finished(result: Any) -> None:
    """Leave the accuracies of all rounds, and the model, in the folder."""
    rounds = {n: dict(m) for n, m in result.evaluate_metrics_serverapp.items()}
    model = LocalModel(FOLDER)
    model.set_arrays({n: a.numpy().astype("float32") for n, a in result.arrays.items()})
    model.export(FOLDER / "digits.onnx")
    temporary = FOLDER / "rounds.json.tmp"
    temporary.write_text(json.dumps(rounds))
    temporary.rename(FOLDER / "rounds.json")  # its appearance means: done


app = server_app(
    FOLDER,
    make_strategy(
        os.environ.get("STRATEGY", "fedavg"),
        min_train_nodes=NODES,
        min_available_nodes=NODES,
        fraction_evaluate=0.0,
    ),
    rounds=ROUNDS,
    validation_data=split()[1],
    metrics=["accuracy"],
    round_timeout=120.0,
    on_result=finished,
)
