"""`onnxtrain tune`: options searched with Optuna, bad trials given up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.cli.tune import read_search

from .models import blobs, classifier

optuna = pytest.importorskip("optuna", reason="no optuna for Python 3.10")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:optuna")  # it names its experiments

TUNE = (
    "tune", "model.onnx", "--data", "train.npz", "--val", "0.25", "--loss", "cross_entropy",
    "--output", "study", "--epochs", "2",
)  # fmt: skip


def prepare():
    classifier()
    x, labels = blobs(48)
    np.savez("train.npz", x=x, labels=labels)


def test_the_best_trial_is_told_and_can_be_trained_again(run):
    prepare()
    result = run(*TUNE, "--trials", "3", "--search", "lr=1e-6,0.05", "--search", "batch-size=8..16",
                 "--no-pruning")  # fmt: skip
    assert result.code == 0, result.err
    trials = json.loads(Path("study/trials.json").read_text())
    assert [t["trial"] for t in trials] == [0, 1, 2]
    best = min(trials, key=lambda t: t["value"])
    assert all(8 <= t["batch_size"] <= 16 and t["lr"] in (1e-6, 0.05) for t in trials)
    assert f"best of 3 trials: {best['value']:.6g}" in result.out
    history = json.loads(Path(f"study/trial-{best['trial']}/history.json").read_text())
    assert min(history["val_loss"]) == pytest.approx(best["value"])
    assert f"lr = {best['lr']}" in Path("study/best.toml").read_text()
    again = ("--data", "train.npz", "--loss", "cross_entropy", "--epochs", "1", "--output", "again")
    assert run("train", "model.onnx", *again, "--config", "study/best.toml").code == 0
    settings = json.loads(Path("again/run.json").read_text())["settings"]
    assert settings["lr"] == best["lr"]


def test_a_bad_trial_is_given_up(run, monkeypatch):
    prepare()

    class Second:
        """Prunes every trial but the first, after its first epoch."""

        def prune(self, study, trial):
            return trial.number > 0

    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda: Second())
    result = run(*TUNE, "--trials", "2", "--monitor", "val_accuracy")
    assert result.code == 0, result.err
    states = [t["state"] for t in json.loads(Path("study/trials.json").read_text())]
    assert states == ["complete", "pruned"]
    assert "given up: val_accuracy is" in result.err
    assert not Path("study/trial-1/model.onnx").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lrate=1..2", "'lrate' is not known"),
        ("lr", "name=low..high"),
        ("lr=2..1", "wrong order"),
        ("loss=a..b", "'a' is not a number"),
        ("batch_size=8,many", "must be of type int"),
    ],
)
def test_what_cannot_be_searched(run, text, says):
    prepare()
    result = run(*TUNE, "--search", text)
    assert result.code == 1
    assert says in result.err
    assert not Path("study").exists()


def test_a_mistake_in_the_data_ends_the_search(run):
    prepare()
    np.savez("train.npz", x=np.zeros((8, 5), np.float32), labels=np.zeros(8, np.int64))
    result = run(*TUNE, "--trials", "5")
    assert result.code == 1
    assert "the model takes 4" in result.err


@pytest.mark.parametrize(("text", "log"), [("lr=1e-5..1e-1", True), ("momentum=0.5..0.9", False)])
def test_wide_ranges_are_drawn_by_logarithm(text, log):
    name, suggest = read_search(text)
    low, high = (float(v) for v in text.partition("=")[2].split(".."))
    asked = []

    class Trial:
        def suggest_float(self, *arguments, **options):
            asked.append((*arguments, options["log"]))
            return low

    assert suggest(Trial()) == low
    assert asked == [(name, low, high, log)]
