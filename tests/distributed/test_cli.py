"""``mpirun -n 2 onnxtrain train``: one folder, written once, the numbers of one process."""

from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import onnx
import pytest

from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits

from .conftest import LIMIT, mpirun, needs_mpi

pytestmark = needs_mpi


def train(folder, ranks, *arguments, data="data.npz"):
    command = [
        mpirun(), "-n", str(ranks), sys.executable, "-m", "onnxtrain", "train", "model.onnx",
        "--data", data, "--loss", "cross_entropy", "--val", "0.2", *arguments,
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def history(folder):
    with (folder / "history.csv").open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def test_the_command_under_mpirun(tmp_path):
    images, labels = digits()
    onnx.save(digits_network(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", image=images[:300], target=labels[:300])
    done = train(tmp_path, 1, "--output", "one", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    done = train(tmp_path, 2, "--output", "two", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("two/model.onnx") == 1, "one rank speaks"
    done = train(tmp_path, 2, "--output", "two", "--epochs", "2")
    assert done.returncode != 0
    assert "holds a run already" in done.stderr
    done = train(tmp_path, 2, "--output", "two", "--epochs", "2", "--resume")
    assert done.returncode == 0, done.stderr
    alone, together = history(tmp_path / "one"), history(tmp_path / "two")
    assert len(alone) == len(together) == 2
    for a, b in zip(alone, together, strict=True):
        for name, value in a.items():
            assert b[name] == pytest.approx(value, rel=1e-4), name
    assert not list(tmp_path.glob(".two*")), "nothing is left of the preparation"


def test_one_rank_says_what_the_data_are(tmp_path):
    images, labels = digits()
    onnx.save(digits_network(), tmp_path / "model.onnx")
    names = [f"p{i}" for i in range(64)]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        rows = np.column_stack([images[:60].reshape(60, 64), labels[:60]])
        csv.writer(file).writerows([[*names, "digit"], *rows.tolist()])
    done = train(tmp_path, 2, "--epochs", "1", "--output", "run", data="data.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the target is the column 'digit'") == 1, done.stderr
