from __future__ import annotations

import pytest

from . import models


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folder of artifacts by the name of the optimizer, made when it is asked for."""
    made = {}

    def get(name: str):
        if name not in made:
            folder = tmp_path_factory.mktemp("finite")
            made[name] = models.write(folder, models.OPTIMIZERS[name])
        return made[name]

    return get


@pytest.fixture(params=["graph", "numba"])
def update(request, monkeypatch):
    """The portable graph, and the compiled kernels even for a small model."""
    from onnxtrain.runtime.step import kernels

    if request.param == "graph":
        monkeypatch.setenv("ONNXTRAIN_NO_NUMBA", "1")
    else:
        pytest.importorskip("numba")
        monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 1)
    return request.param
