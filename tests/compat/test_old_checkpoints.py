"""Checkpoints of the predecessor: stored files of three releases, and the round trip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import CheckpointError
from onnxtrain.runtime.files import odtc

from .recorded import DATA, Recorded

EARLIER = ["v1_15", "v1_17"]
OLD_PYTHON = os.environ.get("ONNXTRAIN_OLD_PYTHON")
with_old = pytest.mark.skipif(
    not OLD_PYTHON,
    reason="set ONNXTRAIN_OLD_PYTHON to a python that has onnxruntime-training-cpu 1.19.2",
)


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_releases_train_here(name: str) -> None:
    folder = DATA / name
    with np.load(folder / "steps.npz") as stored:
        x, y, expected, more = (stored[k] for k in ("x", "y", "losses", "more"))
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module, optimizer = _open(folder, state, 0.05)
    assert _steps(module, optimizer, [x, y], len(expected)) == pytest.approx(expected, rel=1e-5)
    assert _steps(module, optimizer, [x, y], len(more)) == pytest.approx(more, rel=1e-5)


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_releases_are_continued(name: str) -> None:
    folder = DATA / name
    with np.load(folder / "steps.npz") as stored:
        x, y, more = (stored[k] for k in ("x", "y", "more"))
    state = CheckpointState.load_checkpoint(folder / "trained")
    assert dict(state.properties) == {"epoch": 7, "best": 0.25, "name": "hello"}
    assert state.training_state.optimizer is not None
    assert state.training_state.optimizer.step == 6
    module, optimizer = _open(folder, state, 0.05)
    assert _steps(module, optimizer, [x, y], len(more)) == pytest.approx(more, rel=1e-5)


def _open(folder: Path, state: CheckpointState, rate: float) -> tuple[Module, Optimizer]:
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(rate)
    return module, optimizer


def _steps(module: Module, optimizer: Optimizer, batch: list[Any], count: int) -> list[float]:
    losses = []
    for _ in range(count):
        result = module(*batch)
        loss = np.asarray(result[0] if isinstance(result, tuple) else result)
        losses.append(float(loss.reshape(())))  # 1.15 keeps the reduced dimensions
        optimizer.step()
        module.lazy_reset_grad()
    return losses


# --- damaged directories ------------------------------------------------------------------------


def test_a_directory_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"paramtrain_tensors\.pbseq"):
        CheckpointState.load_checkpoint(tmp_path)


@pytest.mark.parametrize("size", [1, 20, 60, 96])
def test_truncated_sequence(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(DATA / "v1_15" / "trained", folder)
    file = folder / "paramtrain_tensors.pbseq"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"paramtrain_tensors\.pbseq is damaged"):
        CheckpointState.load_checkpoint(folder)


def test_moments_of_other_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(DATA / "v1_15" / "trained", folder)
    frozen = (folder / "paramfrozen_tensors.pbseq").read_bytes()
    (folder / "optim_group0_momentum0_tensors.pbseq").write_bytes(frozen)
    with pytest.raises(CheckpointError, match="does not cover exactly"):
        CheckpointState.load_checkpoint(folder)


# --- there and back -----------------------------------------------------------------------------


def _there(source: Path, target: Path, steps: int, rate: float, data: Path) -> dict[str, Any]:
    assert OLD_PYTHON is not None
    script = Path(__file__).parent / "old_side.py"
    done = subprocess.run(
        [OLD_PYTHON, script, DATA / "mlp_mse", source, target, str(steps), str(rate), data],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@with_old
@pytest.mark.parametrize("external", [False, True])
def test_here_there_and_back(tmp_path: Path, external: bool) -> None:
    recorded = Recorded("mlp_mse")
    data, rate = recorded.folder / "data.npz", recorded.rate
    # one run that stays here
    state, module, optimizer = recorded.open()
    alone = _steps(module, optimizer, recorded.batches[0], 15)
    # one that changes sides after 5 and 10 steps
    state, module, optimizer = recorded.open()
    losses = _steps(module, optimizer, recorded.batches[0], 5)
    state.properties["epoch"], state.properties["best"] = 3, 0.5
    state.properties["name"] = "here"
    odtc.save(
        state.training_state, tmp_path / "out", True, external_above=0 if external else 1 << 40
    )
    assert (tmp_path / "out.data").exists() == external
    there = _there(tmp_path / "out", tmp_path / "back", 5, rate, data)
    assert there["properties"] == {"epoch": 3, "best": 0.5, "name": "here"}
    assert (tmp_path / "back.data").exists() == external
    state = CheckpointState.load_checkpoint(tmp_path / "back")
    assert state.properties["there"] == "been"
    module, optimizer = _open(recorded.folder, state, rate)
    losses += there["losses"] + _steps(module, optimizer, recorded.batches[0], 5)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)


@with_old
def test_nominal_checkpoint_there(tmp_path: Path) -> None:
    recorded = Recorded("mlp_mse")
    full = CheckpointState.load_checkpoint(recorded.folder / "checkpoint")
    nominal = CheckpointState.nominal(*full.training_state.names())
    CheckpointState.save_checkpoint(nominal, tmp_path / "nominal", format="odtc")
    module = Module(recorded.folder / "training_model.onnx", full)
    values = np.array(module.get_contiguous_parameters(trainable_only=False).numpy())
    batch = {f"batch/0/{i}": b for i, b in enumerate(recorded.batches[0])}
    np.savez(tmp_path / "data.npz", values=values, **batch)
    there = _there(tmp_path / "nominal", tmp_path / "back", 3, recorded.rate, tmp_path / "data.npz")
    _, module, optimizer = recorded.open()
    expected = _steps(module, optimizer, recorded.batches[0], 3)
    np.testing.assert_allclose(there["losses"], expected, rtol=1e-5)
