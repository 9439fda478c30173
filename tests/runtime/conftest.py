from __future__ import annotations

import pytest

from onnxtrain import optim

from . import handmade


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """Artifacts without dropout, AdamW with decay and clipping, and the one-graph step."""
    folder = tmp_path_factory.mktemp("artifacts")
    optimizer = optim.adamw(weight_decay=0.01, clip=optim.ClipNorm(0.5))
    return handmade.write(folder, optimizer=optimizer, step=True)


@pytest.fixture(scope="session")
def dropout_artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dropout")
    return handmade.write(folder, dropout=True, optimizer=optim.sgd())
