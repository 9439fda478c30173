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


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 1), (4, 2), (3, 4)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_label_counts_the_same_on_whichever_rank(folder, ranks, batch, accumulate):
    """Ignored labels lie unevenly over ranks and batches: the sum is that of one process."""
    y = Y.copy()
    y[[1, 4, 5, 6, 7, 8, 9, 17, 20, 21]] = -100

    def run(backend):
        trainer = Trainer.from_directory(
            folder, learning_rate=0.1, distributed=backend, accumulate=accumulate
        )
        history = trainer.fit((X, y), 2, batch, shuffle=False, progress=False)
        return parameters(trainer), history["loss"]

    (alone, losses), *_ = together(1, run)
    single = Trainer.from_directory(folder, learning_rate=0.1, accumulate=accumulate)
    single.fit((X, y), 2, batch, shuffle=False, progress=False)
    for values, several in together(ranks, run):
        np.testing.assert_allclose(several, losses, rtol=1e-5)
        for name, value in parameters(single).items():
            np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(alone[name], value, rtol=1e-4, atol=1e-6)


def test_a_rank_with_a_wrong_label(folder):
    y = Y.copy()
    y[6] = -1
    with pytest.raises((LabelError, RankLostError)) as caught:
        together(2, lambda backend: trained(folder, backend, y))
    if isinstance(caught.value, LabelError):
        assert "the label -1 in row 2," in str(caught.value)
