"""A client of a federation: its own bad batch stops it, and nothing of it is sent."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from onnxtrain.errors import InputError, NonFiniteError
from onnxtrain.flower.local import LocalModel

from . import models

GOOD = [models.good(seed) for seed in range(2)]


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_weights_of_before_the_batch(folders, name, bad, mu):
    client, twin = LocalModel(folders(name)), LocalModel(folders(name))
    twin.train(GOOD, learning_rate=0.05, proximal_mu=mu)
    with pytest.raises(NonFiniteError, match=r"epoch 0, batch 2 .*nothing is sent"):
        client.train([*GOOD, models.BAD[bad]()], learning_rate=0.05, proximal_mu=mu)
    models.assert_same(client.arrays(), twin.arrays())
    client.set_arrays(LocalModel(folders(name)).arrays())  # the next round
    client.train(GOOD, learning_rate=0.05, proximal_mu=mu)
    models.assert_same(client.arrays(), twin.arrays())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
def test_numbers_that_a_server_may_send(folders, value):
    client = LocalModel(folders("sgd"))
    before = client.arrays()
    with pytest.raises(InputError, match="learning rate"):
        client.train(GOOD, learning_rate=value)
    with pytest.raises(InputError, match="proximal_mu"):
        client.train(GOOD, proximal_mu=value)
    models.assert_same(client.arrays(), before)
    client.train(GOOD, learning_rate=0)
    for name in client.arrays():
        if name == "parameters":
            np.testing.assert_array_equal(client.arrays()[name], before[name])
