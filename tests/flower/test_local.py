"""A client's copy of the model; needs no Flower beyond the import."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from onnxtrain.errors import InputError, NonFiniteError
from onnxtrain.flower import LocalModel
from tests.runtime import test_real_artifacts as convolutional

from .conftest import client_data


@pytest.mark.parametrize("named", [False, True])
def test_arrays_there_and_back(artifacts, named):
    first, second = (LocalModel(artifacts, named=named) for _ in range(2))
    first.train(client_data(0), epochs=2, learning_rate=0.05)
    arrays = first.arrays()
    expected = ["parameters", "statistics"]
    if named:
        expected = ["W1", "b1", "W2", "b2", "running_mean"]
    assert list(arrays) == expected
    second.set_arrays(arrays)
    for name, value in first.state.parameters:
        assert np.array_equal(value.data, second.state.parameters[name].data)
    arrays[expected[0]][...] = 0.0
    assert first.arrays()[expected[0]].any(), "arrays are copies"


def test_wrong_arrays_are_refused_and_change_nothing(artifacts):
    model = LocalModel(artifacts)
    before = model.arrays()
    for change, error, message in (
        ({"parameters": before["parameters"][:-1]}, InputError, "must be float of shape"),
        ({"parameters": before["parameters"].astype(int)}, InputError, "must be float"),
        ({"more": np.zeros(1)}, InputError, "Expected the arrays"),
        ({"parameters": before["parameters"] * np.nan}, NonFiniteError, "67 values"),
    ):
        with pytest.raises(error, match=message):
            model.set_arrays({**before, **change})
    for name, value in model.arrays().items():
        assert np.array_equal(value, before[name])


def test_nan_data_send_nothing(artifacts):
    x, y = client_data(0)
    with pytest.raises(NonFiniteError, match="nothing is sent"):
        LocalModel(artifacts).train((x * np.nan, y))
    with pytest.raises(InputError, match="no batch"):
        LocalModel(artifacts).train([])


def test_the_proximal_term_is_its_gradient(artifacts):
    """Two steps: at the second the parameters differ from the start by the first update."""
    data, rate, mu = client_data(1), 0.1, 3.0
    rows = {"epochs": 1, "batch_size": 100, "learning_rate": rate}
    plain, prox = LocalModel(artifacts), LocalModel(artifacts)
    start = plain.state.training_state.trainable.buffers["F32"].data.copy()
    plain.train(data, **rows)
    after_one = plain.state.training_state.trainable.buffers["F32"].data.copy()
    prox.train(data, **{**rows, "epochs": 2}, proximal_mu=mu)
    prox_end = prox.state.training_state.trainable.buffers["F32"].data.copy()
    plain_two = LocalModel(artifacts)
    plain_two.train(data, **{**rows, "epochs": 2})
    plain_end = plain_two.state.training_state.trainable.buffers["F32"].data
    np.testing.assert_allclose(prox_end, plain_end - rate * mu * (after_one - start), atol=1e-5)
    assert np.abs(prox_end - plain_end).max() > 1e-3


def test_masks_of_dropout_follow_from_the_seed_alone(tmp_path):
    """Not from what the process has trained before: another client, or an earlier round."""
    folder = convolutional.generate(tmp_path, dropout=True)
    data = convolutional.batch(size=40)

    def trained(model, seed):
        model.train(data, batch_size=10, seed=seed)
        return model.arrays()

    fresh, used = LocalModel(folder), LocalModel(folder)
    start = used.arrays()
    first = trained(used, 1)
    used.set_arrays(start)
    found, expected = trained(used, 2), trained(fresh, 2)
    for name, value in expected.items():
        assert np.array_equal(value, found[name])
    assert not np.array_equal(first["parameters"], found["parameters"])
    fresh.set_arrays(start)  # the same seed once more: new masks, the order of the rows again
    assert not np.array_equal(trained(fresh, 2)["parameters"], found["parameters"])
