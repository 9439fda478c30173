"""Loggers: each gets the same numbers; those of packages that are not installed are played."""

from __future__ import annotations

import csv
import json
import sys
import types

import numpy as np
import pytest
from packaging.version import Version

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
    started = ["set_tracking_uri", "set_experiment", "active_run", "start_run", "log_params"]
    assert names[:5] == started
    assert mlflow.calls[4][1] == ({"lr": "0.1"},)
    assert (names[-1], names.count("end_run")) == ("end_run", 1)
    name, (values,), options = mlflow.calls[5]
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


STORES = {"files": "file:{}/runs", "sqlite": "sqlite:///{}/mlflow.db"}


@pytest.mark.filterwarnings("ignore")  # of sqlalchemy, about mlflow's calls
@pytest.mark.parametrize("store", STORES)
def test_the_real_mlflow(artifacts, tmp_path, monkeypatch, store):
    """What was logged is read back by its own client."""
    mlflow = pytest.importorskip("mlflow")
    if store == "sqlite":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database")
        pytest.importorskip("alembic", reason="mlflow-skinny has no database")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow 3 asks for it
    monkeypatch.chdir(tmp_path)
    address = STORES[store].format(tmp_path)
    logger = MLflowLogger("study", address)
    trainer = trained(artifacts, logger)
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    losses = client.get_metric_history(run.info.run_id, "epoch/loss")
    assert [m.value for m in losses] == trainer.history["loss"]
    assert [m.step for m in losses] == [3, 6]
    assert len(client.get_metric_history(run.info.run_id, "step/lr")) == 6
    assert mlflow.active_run() is None


def test_the_real_mlflow_of_a_training_that_fails(artifacts, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = STORES["files"].format(tmp_path)
    logger = MLflowLogger("study", address)
    many = {f"setting {n}": n for n in range(150)}
    logger.start("first", {"text": "x" * 10_000, "none": None, **many})  # more than MLflow takes
    logger.log({"step/loss": float("nan"), "step/lr": float("inf")}, 1)
    logger.finish()
    logger.finish()
    client = mlflow.MlflowClient(address)
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert len(run.data.params["text"]) >= 500
    assert len(run.data.params) == 151
    assert "step/loss" in run.data.metrics


def test_the_real_mlflow_in_a_run_of_the_user(artifacts, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = STORES["files"].format(tmp_path)
    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("mine")
    with mlflow.start_run(run_name="mine") as mine:
        trained(artifacts, MLflowLogger())
        assert mlflow.active_run() is not None
    run = mlflow.MlflowClient(address).get_run(mine.info.run_id)
    assert run.data.metrics["epoch/number"] == 2


def test_the_real_weights_and_biases(artifacts, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    name = "x_disable_stats" if Version(wandb.__version__) >= Version("0.19") else "_disable_stats"
    logger = WandbLogger(folder=tmp_path, settings=wandb.Settings(**{name: True}))
    trainer = trained(artifacts, logger)
    wandb.teardown()  # its own process writes the file
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    rows, config = wandb_rows(file)
    epochs = [row["epoch/loss"] for row in rows if "epoch/loss" in row]
    assert epochs == pytest.approx(trainer.history["loss"])
    assert [row["_step"] for row in rows] == sorted(row["_step"] for row in rows)
    assert sum("step/lr" in row for row in rows) == 6
    assert config["lr"] == 0.1


def wandb_records(content):
    """The records of an offline run: a header of 7 bytes, then a log of LevelDB's form."""
    block, at, parts = 32768, 7, []
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for a header: the next block
            at += block - at % block
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield b"".join(parts)
            parts = []


def wandb_rows(file):
    """The values by step, and the settings."""
    from wandb.proto import wandb_internal_pb2

    rows, config = [], {}
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            rows.append({"_step": record.history.step.num, **row})
        if record.HasField("run"):
            config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    return rows, config


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
