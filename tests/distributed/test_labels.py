"""Labels on several ranks: a rank whose labels are all ignored, and one with a wrong one."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import Trainer
from onnxtrain.errors import LabelError, RankLostError
from tests.runtime.test_labels import generate

from .threads import parameters, together


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("ranks"))


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 6)).astype(np.float32), RNG.integers(0, 4, 24)


def trained(folder, backend, y):
    trainer = Trainer.from_directory(
        folder, learning_rate=0.1, distributed=backend, check_finite=True
    )
    history = trainer.fit(
        (X, y), 2, 8, shuffle=False, progress=False, validation_data=(X, y)
    )  # fmt: skip
    return parameters(trainer), history


def test_a_rank_with_nothing_to_learn(folder):
    """Its gradient is 0 and its loss is left out: no NaN reaches the others."""
    y = Y.copy()
    for batch in range(3):
        y[batch * 8 + 4 : batch * 8 + 8] = -100  # the rows of the second rank
    found = together(2, lambda backend: trained(folder, backend, y))
    for values, history in found:
        assert all(np.isfinite(v).all() for v in values.values())
        assert np.isfinite(history["loss"]).all()
        assert np.isfinite(history["val_loss"]).all()
    for name, value in found[0][0].items():
        np.testing.assert_array_equal(value, found[1][0][name])


def test_a_rank_with_a_wrong_label(folder):
    y = Y.copy()
    y[6] = -1
    with pytest.raises((LabelError, RankLostError)) as caught:
        together(2, lambda backend: trained(folder, backend, y))
    if isinstance(caught.value, LabelError):
        assert "the label -1 in row 2," in str(caught.value)
