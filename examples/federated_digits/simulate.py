"""Ten clients in Flower's simulation, compared with training in one place."""

from __future__ import annotations

import json
import os
import shutil

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from federated_digits import task


def central() -> float:
    """Accuracy when all the images are in one place, with as many passes over them."""
    from onnxtrain.api import Trainer

    train, test = task.split()
    trainer = Trainer.from_directory(task.FOLDER, learning_rate=task.RATE, metrics=["accuracy"])
    epochs = task.EPOCHS * int(os.environ.get("ROUNDS", "30"))
    trainer.fit(train, epochs, task.BATCH, progress=False)
    return trainer.evaluate(test)["accuracy"]


def federated() -> float:
    """Accuracy when they stay with ten clients."""
    from federated_digits import client, server
    from flwr.simulation import run_simulation

    run_simulation(
        server.app,
        client.app,
        num_supernodes=task.CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    rounds = json.loads((task.FOLDER / "rounds.json").read_text())
    return max(rounds.items(), key=lambda item: int(item[0]))[1]["accuracy"]


def main() -> None:
    """Train both ways."""
    shutil.rmtree(task.FOLDER, ignore_errors=True)
    task.make_artifacts()
    print(f"central training   {central():.3f}")
    print(f"ten clients        {federated():.3f}")


if __name__ == "__main__":
    main()
