"""A killed worker: the group starts again and goes on exactly where the checkpoint was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Trainer
from tests.streams.shards import write_parquet

from . import elastic
from .conftest import LIMIT, needs_torch
from .threads import parameters, together

pytest.importorskip("pyarrow")
ROWS = 103
"""11 batches an epoch; the rank is killed in the second one."""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("shards"), ROWS)


def make(folder, backend):
    return Trainer.from_directory(folder, distributed=backend, overlap=False, step_model=None)


@pytest.fixture(scope="module")
def expected(folder, pattern):
    """The weights of two ranks that nobody interrupts."""
    found = together(2, lambda b: parameters(elastic.fit(make(folder, b), pattern)))
    assert all(np.array_equal(found[0][n], found[1][n]) for n in found[0])
    return found[0]


def test_the_weights_are_those_of_one_process(folder, pattern, expected):
    """Each rank reads its own part of the files; together they have the batches of one."""
    alone = parameters(elastic.fit(make(folder, None), pattern))
    four = together(4, lambda b: parameters(elastic.fit(make(folder, b), pattern)))[3]
    for name, value in alone.items():
        np.testing.assert_allclose(expected[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(four[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def weights(path: Path) -> dict[str, np.ndarray]:
    return {n: p.data for n, p in CheckpointState.load_checkpoint(path).parameters}


@needs_torch
def test_torchrun_starts_a_killed_group_again(folder, pattern, expected, tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--max-restarts", "1", elastic.__file__, folder, pattern, tmp_path,
    ]  # fmt: skip
    done = subprocess.run(
        [str(c) for c in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ONNXTRAIN_TIMEOUT": "60"},
        capture_output=True, text=True, timeout=2 * LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    starts = (tmp_path / "starts.txt").read_text().split("\n")[:-1]
    assert starts == ["0 2", "12 2"], "from the beginning, then from the last checkpoint"
    for name, value in weights(tmp_path / "last").items():
        assert np.array_equal(value, expected[name]), name
