"""How the settings in task.py were found: without the test digits.

    python choose.py

All other digits are cut into four parts; each in turn is left out of training, to judge.
Federated averaging is done in this process, without Flower, which is quick and gives the same
weights. What has the best mean accuracy is taken, and of equals the one with less work: in one
place over learning rate and epochs; for clients over learning rate, epochs per round, momentum of
the server (Flower's FedAvgM) and rounds.
The seeds are others than those of the final runs.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from federated_digits import task

from onnxtrain.api import Trainer
from onnxtrain.flower import LocalModel

FOLDS = 4
FIRST_SEED = 100
RATES = (0.05, 0.1)
LOCAL_EPOCHS = (1, 2)
MOMENTA = (0.0, 0.7)
ROUNDS = (10, 20, 30, 40, 60)
CENTRAL_RATES = (0.02, 0.05)
CENTRAL_EPOCHS = (10, 20, 30, 45, 60)


def fold(number: int) -> tuple[Any, Any, Path]:
    """Digits to train on, digits to judge with, and a start, all for one fold."""
    train, validation, _ = task.split()
    images, labels = (np.concatenate(parts) for parts in zip(train, validation))
    left_out = np.arange(len(labels)) % FOLDS == number
    start = Path(tempfile.mkdtemp())
    task.make_artifacts(start, FIRST_SEED + number)
    return (images[~left_out], labels[~left_out]), (images[left_out], labels[left_out]), start


def federated(number: int, rate: float, epochs: int, momentum: float) -> list[float]:
    """Accuracies after some numbers of rounds of federated averaging."""
    (images, labels), validation, start = fold(number)
    seed = FIRST_SEED + number
    model = LocalModel(start, metrics=["accuracy"])
    clients = task.partitions(labels, seed=seed)
    arrays, found = model.arrays(), []
    moving = {name: np.zeros(a.shape) for name, a in arrays.items()}
    for turn in range(1, max(ROUNDS) + 1):
        sums = {name: np.zeros(a.shape) for name, a in arrays.items()}
        for client, rows in enumerate(clients):
            model.set_arrays(arrays)
            model.train(
                (images[rows], labels[rows]),
                epochs=epochs,
                batch_size=task.BATCH,
                learning_rate=rate,
                seed=seed + 1_000_003 * turn + client,
            )
            for name, value in model.arrays().items():
                sums[name] += len(rows) / len(labels) * value
        for name, old in arrays.items():
            moving[name] = momentum * moving[name] + sums[name] - old
            arrays[name] = (old + moving[name]).astype(np.float32)
        if turn in ROUNDS:
            model.set_arrays(arrays)
            found.append(model.evaluate(validation)["accuracy"])
    return found


def central(number: int, rate: float) -> list[float]:
    """Accuracies after some numbers of epochs when all training digits are in one place."""
    train, validation, start = fold(number)
    trainer = Trainer.from_directory(start, learning_rate=rate, metrics=["accuracy"])
    history = trainer.fit(
        train,
        max(CENTRAL_EPOCHS),
        task.BATCH,
        validation_data=validation,
        seed=FIRST_SEED + number,
        progress=False,
    )
    return [history["val_accuracy"][n - 1] for n in CENTRAL_EPOCHS]


def best(
    pool: ProcessPoolExecutor,
    work: Callable[..., list[float]],
    settings: list[tuple[Any, ...]],
    lengths: tuple[int, ...],
) -> None:
    """Print the table of means (and, in brackets, worst folds), and the best of it."""
    print(f"{'':14}", *(f"{n:14d}" for n in lengths), flush=True)
    table = []
    for setting in settings:
        runs = list(pool.map(work, range(FOLDS), *([value] * FOLDS for value in setting)))
        means, worst = np.mean(runs, axis=0), np.min(runs, axis=0)
        cells = (f"{100 * m:6.2f} ({100 * w:5.2f})" for m, w in zip(means, worst))
        print(f"{setting!s:14}", *cells, flush=True)
        table += [(-round(m, 9), n, setting) for m, n in zip(means.tolist(), lengths)]
    accuracy, length, setting = min(table)
    print(f"best: {setting}, {length}: {-100 * accuracy:.2f} %", flush=True)


def main() -> None:
    """Both searches."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        print("in one place: learning rate; epochs")
        best(pool, central, [(rate,) for rate in CENTRAL_RATES], CENTRAL_EPOCHS)
        print("ten clients: learning rate, epochs per round, momentum; rounds")
        best(pool, federated, list(itertools.product(RATES, LOCAL_EPOCHS, MOMENTA)), ROUNDS)


if __name__ == "__main__":
    main()
