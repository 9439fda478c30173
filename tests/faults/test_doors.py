"""Faults while a checkpoint, an exported model or the folder of a run is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.cli import main
from tests.cli.models import classifier, write_npz
from tests.runtime import handmade

from . import kills
from .injection import ERRORS, STEPS, failing

CASES = [(step, list(ERRORS)[i % len(ERRORS)]) for i, step in enumerate(STEPS)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    handmade.write(folder, optimizer=optim.adamw())
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    return state, module, optimizer


def step(module, optimizer):
    module.train()
    module(*handmade.batch(0, 8))
    optimizer.step()
    module.lazy_reset_grad()


def save(trained, path):
    CheckpointState.save_checkpoint(trained[0], path, include_optimizer_state=True)


def export(trained, path):
    module = trained[1]
    module.export_model_for_inferencing(path, module.output_names()[-1:])


@pytest.mark.parametrize(("fault", "kind"), CASES)
@pytest.mark.parametrize("door", [save, export])
def test_a_file_is_the_old_or_the_new_one(trained, tmp_path, monkeypatch, door, fault, kind):
    path = tmp_path / "file"
    door(trained, path)
    old = path.read_bytes()
    step(*trained[1:])
    door(trained, tmp_path / "new")
    new = (tmp_path / "new").read_bytes()
    assert old != new
    with failing(monkeypatch, fault, kind) as injected:
        try:
            door(trained, path)
        except OSError:
            expected = old
        else:
            expected = new
    assert injected.fired
    assert path.read_bytes() == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "new"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run that nothing disturbs, and how often it writes a file."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        classifier(dropout=0.4)
        write_npz()
        with failing(patch, "replace", "no space", after=10**6) as counted:
            assert main([*ARGUMENTS, "--output", "whole"]) == 0
    return folder / "whole", counted.calls


ARGUMENTS = [
    "train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--batch-size", "16",
    "--accumulate", "2", "--epochs", "2", "--quiet",
]  # fmt: skip


@pytest.mark.parametrize("place", range(1, 24, 2))
def test_a_run_says_what_failed_and_resumes_exactly(
    undisturbed, tmp_path, monkeypatch, capsys, place
):
    whole, writes = undisturbed
    assert writes <= 24, "a place for every file that a run writes"
    monkeypatch.chdir(tmp_path)
    classifier(dropout=0.4)
    write_npz()
    fault, kind = CASES[place % len(CASES)]
    with failing(monkeypatch, fault, kind, after=place) as injected:
        code = main([*ARGUMENTS, "--output", "run"])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if code:
        assert injected.fired
        assert "No space left" in said or "Input/output error" in said
        go_on = "--resume" if Path("run/checkpoint").exists() else "--overwrite"
        assert main([*ARGUMENTS, "--output", "run", go_on]) == 0
    for name in kills.SAME:
        assert (whole / name).read_bytes() == Path("run", name).read_bytes(), name
    assert not [p.name for p in tmp_path.rglob(".*")]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
@pytest.mark.slow
def test_a_few_kills(tmp_path, monkeypatch):
    """`python -m tests.faults.kills` does a thousand."""
    monkeypatch.chdir(tmp_path)
    classifier(dropout=0.4)
    write_npz()
    _, _, faults = kills.kill_often(5, seed=1)
    assert faults == []
