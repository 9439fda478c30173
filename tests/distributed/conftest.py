from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain import optim
from onnxtrain.optim import build
from tests.runtime import handmade

WORKER = Path(__file__).parent / "worker.py"
LIMIT = 100
"""Seconds after which a group of processes counts as hung."""


def mpirun() -> str | None:
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpirun() is None,
    reason="mpi4py or mpiexec is not installed (pip install mpi4py mpich)",
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def launch(
    ranks: int,
    folder: Path,
    result: Path,
    runs: list[dict],
    *,
    unnoticed: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """The worker on several ranks of MPI."""
    task = json.dumps({"backend": "mpi", "runs": runs}, default=str)
    worker = [sys.executable, WORKER, folder, result, task]
    if unnoticed:  # the launcher's children are shells that outlive the ranks
        worker = ["sh", "-c", '"$@"; code=$?; sleep 4; exit $code', "sh", *worker]
    command = [mpirun(), "-n", ranks, *worker]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [str(c) for c in command],
        env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def results(result: Path, ranks: int) -> list[dict[str, np.ndarray]]:
    found = []
    for rank in range(ranks):
        with np.load(f"{result}.{rank}.npz") as file:
            found.append(dict(file))
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Artifacts with AdamW (clipped) and SGD, and data."""
    where = tmp_path_factory.mktemp("distributed")
    made = handmade.write(where, optimizer=optim.adamw(weight_decay=0.01, clip=optim.ClipNorm(0.5)))
    shapes = [(n, handmade.SHAPES[n]) for n in handmade.TRAINABLE]
    for name, optimizer in (("sgd", optim.sgd(momentum=0.9)), ("lamb", optim.lamb())):
        model = handmade.proto(build.sequence_model(optimizer, shapes))
        onnx.save(model, made.directory / f"{name}.onnx")
    x, y = handmade.batch(3, 124)
    vx, vy = handmade.batch(4, 21)
    np.savez(where / "data.npz", x=x, y=y, vx=vx, vy=vy)
    return where
