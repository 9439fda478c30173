"""Loggers: each gets the same numbers; those of packages that are not installed are played."""

from __future__ import annotations

import csv
import sys
import types

import numpy as np
import pytest

from onnxtrain import losses, optim
from onnxtrain.api import Trainer
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.errors import MissingPackageError
from onnxtrain.loggers import (
    LOGGERS,
    CSVLogger,
    Logger,
    LogTo,
    MLflowLogger,
    TensorBoardLogger,
    WandbLogger,
    make_logger,
)

from .models import blobs, classifier


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    model = classifier(str(folder / "model.onnx"))
    generate_artifacts(
        model, loss=losses.CrossEntropyLoss(), optimizer=optim.sgd(), artifact_directory=folder
    )
    return folder


def trained(artifacts, logger, **options):
    x, labels = blobs(24)
    trainer = Trainer.from_directory(artifacts)
    hook = LogTo(logger, "first", {"lr": 0.1, "val": None}, **options)
    trainer.fit((x, labels), 2, 8, callbacks=[hook], progress=False)
    return trainer


def test_csv(artifacts, tmp_path):
    trainer = trained(artifacts, CSVLogger(tmp_path / "log.csv"))
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [r for r in rows if r["name"] == "step/loss"]
    assert [r["step"] for r in steps] == ["1", "2", "3", "4", "5", "6"]
    epochs = [float(r["value"]) for r in rows if r["name"] == "epoch/loss"]
    assert epochs == trainer.history["loss"]
    trained(artifacts, CSVLogger(tmp_path / "log.csv"))
    assert (tmp_path / "log.csv").read_text().count("step,name,value") == 1


def test_fewer_steps(artifacts, tmp_path):
    trained(artifacts, CSVLogger(tmp_path / "log.csv"), every=3)
    assert (tmp_path / "log.csv").read_text().count("step/loss") == 2


class Played(types.ModuleType):
    """Takes every call and remembers it."""

    def __init__(self, name, **attributes):
        super().__init__(name)
        self.calls = []
        self.__dict__.update(attributes)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: self.calls.append((name, a, k))


def test_mlflow(artifacts, monkeypatch):
    mlflow = Played("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    logger = MLflowLogger("study", "file:runs")
    trained(artifacts, logger)
    logger.finish()  # a second time
    names = [call[0] for call in mlflow.calls]
    assert names[:4] == ["set_tracking_uri", "set_experiment", "start_run", "log_params"]
    assert mlflow.calls[3][1] == ({"lr": 0.1},)
    assert (names[-1], names.count("end_run")) == ("end_run", 1)
    name, (values,), options = mlflow.calls[4]
    assert (name, options) == ("log_metrics", {"step": 1})
    assert set(values) == {"step/loss", "step/lr"}


def test_weights_and_biases(artifacts, monkeypatch, tmp_path):
    run, begun = Played("run"), []
    wandb = Played("wandb", init=lambda **options: begun.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trained(artifacts, WandbLogger(folder=tmp_path, mode="offline"))
    (options,) = begun
    assert options["project"] == "onnxtrain"
    assert (options["name"], options["mode"]) == ("first", "offline")
    assert options["config"] == {"lr": 0.1, "val": None}
    assert run.calls[-1][0] == "finish"
    steps = [k["step"] for name, _, k in run.calls if name == "log"]
    assert steps == sorted(steps)  # it refuses to go back


def test_tensorboard(artifacts, tmp_path):
    pytest.importorskip("tensorboardX")
    trained(artifacts, TensorBoardLogger(tmp_path))
    (events,) = tmp_path.iterdir()
    content = events.read_bytes()
    assert b"step/loss" in content
    assert b"epoch/loss" in content


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboardX"])
def test_a_missing_package_is_named(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    short = {"tensorboardX": "tensorboard"}.get(name, name)
    with pytest.raises(MissingPackageError, match=rf"onnxtrain\[{short}\]"):
        make_logger(short, tmp_path)


def test_an_error_in_training_closes_the_logger_of_the_command_line(run, monkeypatch):
    classifier()
    x, labels = blobs(24)
    x[:] = 1e30
    np.savez("train.npz", x=x, labels=labels)
    ended = []

    class Mine:
        def start(self, run, settings):
            assert settings["loss"] == "cross_entropy"

        def log(self, values, step):
            pass

        def finish(self):
            ended.append(True)

    assert isinstance(Mine(), Logger)
    monkeypatch.setitem(LOGGERS, "csv", lambda folder: Mine())
    arguments = ("--data", "train.npz", "--loss", "cross_entropy", "--log", "csv", "--lr", "1e9")
    assert run("train", "model.onnx", *arguments).code == 1
    assert ended
