"""Ten clients in Flower's simulation, compared with training in one place and with each alone.

python simulate.py             # one run
python simulate.py 0 1 2 3 4   # one run for each seed, then mean and worst
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from federated_digits import task


def trained(data: object, epochs: int, rate: float) -> float:
    """Accuracy on the test digits after training in this process."""
    from onnxtrain.api import Trainer

    trainer = Trainer.from_directory(task.FOLDER, learning_rate=rate, metrics=["accuracy"])
    trainer.fit(data, epochs, task.BATCH, seed=task.SEED, progress=False)
    return trainer.evaluate(task.split().test)["accuracy"]


def central() -> float:
    """Accuracy when all the images are in one place."""
    return trained(task.split().train, task.CENTRAL_EPOCHS, task.CENTRAL_RATE)


def alone() -> float:
    """Mean accuracy of the clients if each keeps to itself, with as many epochs."""
    epochs = task.ROUNDS * task.EPOCHS
    clients = [task.client_data(n) for n in range(task.CLIENTS)]
    return sum(trained(c, epochs, task.RATE) for c in clients) / len(clients)


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
    return json.loads((task.FOLDER / "result.json").read_text())["test"]


def one_run() -> None:
    """Train in all three ways."""
    shutil.rmtree(task.FOLDER, ignore_errors=True)
    task.make_artifacts()
    found = {"central": central(), "alone": alone(), "federated": federated()}
    (task.FOLDER / "accuracies.json").write_text(json.dumps(found))
    print(f"in one place       {found['central']:.4f}")
    print(f"each client alone  {found['alone']:.4f}")
    print(f"ten clients        {found['federated']:.4f}", flush=True)


def several(seeds: list[str]) -> None:
    """A process for each seed; a table at the end."""
    found = []
    for seed in seeds:
        folder = task.FOLDER / f"seed{seed}"
        variables = {**os.environ, "SEED": seed, "FEDERATED_DIGITS": str(folder)}
        print(f"seed {seed}", flush=True)
        subprocess.run([sys.executable, __file__], env=variables, check=True)
        found.append(json.loads((folder / "accuracies.json").read_text()))
    for way in ("central", "alone", "federated"):
        values = [f[way] for f in found]
        print(f"{way:10s} mean {sum(values) / len(values):.4f}  worst {min(values):.4f}")
    losses = [f["central"] - f["federated"] for f in found]
    mean = 100 * sum(losses) / len(losses)
    print(f"points lost: mean {mean:.2f}, worst {100 * max(losses):.2f}")


if __name__ == "__main__":
    several(sys.argv[1:]) if sys.argv[1:] else one_run()
