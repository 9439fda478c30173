from __future__ import annotations

import numpy as np
import pytest

from onnxtrain import optim
from tests.runtime import handmade


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """Small artifacts with plain SGD, and a running mean that travels too."""
    folder = tmp_path_factory.mktemp("flower")
    handmade.write(folder, optimizer=optim.sgd())
    return folder


def client_data(number: int):
    x, _ = handmade.batch(10 + number, 12 + 4 * number)
    y = (x[:, :3] * 2 + number).astype(np.float32)
    return x, y


def federated_average(model, clients, rounds, *, left_out=(), seed=0, momentum=0.0, **options):
    """FedAvg as in the paper: the mean of what the clients got, weighted by their rows.

    FedAvgM with `momentum`: a part of the last change is added to the new one.

    `clients` are data by number (a list or a dictionary), `options` those of `LocalModel.train`.
    """
    data = dict(clients) if isinstance(clients, dict) else dict(enumerate(clients))
    arrays = model.arrays()
    moving = {n: np.zeros(a.shape) for n, a in arrays.items()}
    for number in range(1, rounds + 1):
        sums, total = {n: np.zeros(a.shape) for n, a in arrays.items()}, 0
        for node in set(data) - set(left_out):
            model.set_arrays(arrays)
            model.train(data[node], seed=seed + 1_000_003 * number + node, **options)
            rows = len(data[node][0])
            for name, value in model.arrays().items():
                sums[name] += value.astype(np.float64) * rows
            total += rows
        for name, old in arrays.items():
            moving[name] = momentum * moving[name] + sums[name] / total - old
            arrays[name] = (old + moving[name]).astype(np.float32)
    return arrays
