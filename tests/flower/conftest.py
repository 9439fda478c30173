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
