"""Processes that train together refuse a batch together, though only one has the bad row."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import Trainer
from onnxtrain.errors import NonFiniteError
from tests.distributed.threads import together

from . import models

GOOD = [models.good(seed) for seed in range(6)]
TINY = 1e-5
WAYS = {
    "plain": {"overlap": False},
    "sharded": {"overlap": False, "shard_optimizer": True},
    "two batches": {"overlap": False, "accumulate": 2},
    "overlap": {"overlap": True, "bucket_mb": TINY},
    "overlap sharded": {"overlap": True, "bucket_mb": TINY, "shard_optimizer": True},
    "overlap two batches": {"overlap": True, "bucket_mb": TINY, "accumulate": 2},
    "clipped": {"overlap": False, "clip_norm": 0.25},
}


def trainer(folder, backend, **options) -> Trainer:
    return Trainer.from_directory(
        folder, learning_rate=0.05, check_finite=True, distributed=backend, **options
    )


def moments(trained: Trainer) -> dict[str, np.ndarray]:
    own = getattr(trained._engine.optimizer, "moments", {})
    return {kind: store.buffers["F32"].data.copy() for kind, store in own.items()}


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_as_if_the_batch_had_not_been(folders, ranks, way, bad):
    folder = folders("adamw")
    batches = [*GOOD[:4], models.BAD[bad](), *GOOD[4:]]

    def straight(backend):
        trained = trainer(folder, backend, **WAYS[way])
        trained.fit(GOOD[:4], progress=False)
        middle = models.everything(trained.state), moments(trained)
        trained = trainer(folder, backend, **WAYS[way])
        history = trained.fit(GOOD, progress=False)
        return middle, models.everything(trained.state), history

    def interrupted(backend):
        trained = trainer(folder, backend, **WAYS[way])
        with pytest.raises(NonFiniteError, match=r"epoch 0, batch \d: .*Nothing was changed"):
            trained.fit(batches, progress=False)
        assert not backend.failed, "the ranks agree and can go on"
        middle = models.everything(trained.state), moments(trained)
        history = trained.fit(batches, progress=False, resume=True)
        return middle, models.everything(trained.state), history

    expected, found = together(ranks, straight), together(ranks, interrupted)
    for (before, end, history), (middle, last, resumed) in zip(expected, found):
        models.assert_same(middle[0], before[0])
        models.assert_same(middle[1], before[1])
        if "two" in way:  # the batch gathered with it is dropped too
            continue
        models.assert_same(last, end)
        assert resumed == history


@pytest.mark.parametrize("shard_optimizer", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_update_that_would_overflow(folders, ranks, shard_optimizer):
    """Finite gradients whose step is not; with a sharded optimizer only one rank's part."""

    def run(backend):
        trained = trainer(folders("sgd"), backend, shard_optimizer=shard_optimizer, overlap=False)
        before = models.everything(trained.state)
        trained.optimizer.set_learning_rate(3e38)
        with pytest.raises(NonFiniteError, match="update"):
            trained.fit(GOOD[:1], progress=False)
        models.assert_same(models.everything(trained.state), before)
        trained.optimizer.set_learning_rate(0.05)
        trained.fit(GOOD[:1], progress=False)
        return models.everything(trained.state)

    results = together(ranks, run)
    assert results[0]["step"] == 1
    for found in results:
        models.assert_same(found, results[0])
