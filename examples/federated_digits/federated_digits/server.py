"""What brings the clients' parameters together."""

from __future__ import annotations

import json
import os
from typing import Any

from onnxtrain.flower import LocalModel, make_strategy, server_app

from .task import FOLDER, ROUNDS, split

NODES = int(os.environ.get("NODES", "10"))
DIGITS = split()


def finished(result: Any) -> None:
    """Leave the model, its accuracy, and the way there, in the folder."""
    model = LocalModel(FOLDER, metrics=["accuracy"])
    model.set_arrays({n: a.numpy().astype("float32") for n, a in result.arrays.items()})
    model.export(FOLDER / "digits.onnx")
    found = {
        "rounds": [m["accuracy"] for m in result.evaluate_metrics_serverapp.values()],
        "test": model.evaluate(DIGITS.test)["accuracy"],  # looked at here, once, and nowhere else
    }
    temporary = FOLDER / "result.json.tmp"
    temporary.write_text(json.dumps(found))
    temporary.rename(FOLDER / "result.json")  # its appearance means: done


app = server_app(
    FOLDER,
    make_strategy(
        os.environ.get("STRATEGY", "fedavg"),
        min_train_nodes=NODES,
        min_available_nodes=NODES,
        fraction_evaluate=0.0,
    ),
    rounds=int(os.environ.get("ROUNDS", str(ROUNDS))),
    validation_data=DIGITS.validation,
    metrics=["accuracy"],
    round_timeout=120.0,
    on_result=finished,
)
