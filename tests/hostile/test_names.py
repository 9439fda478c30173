"""A name that no file can have is our own error at every door that reads or writes one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxtrain
from onnxtrain import CheckpointState, Module, Trainer, api, lora, optim, text
from onnxtrain.cli.output import UserError
from onnxtrain.cli.settings import Settings
from onnxtrain.compat.ort.old_artifacts import convert_artifacts
from onnxtrain.errors import OnnxTrainError
from onnxtrain.loggers import CSVLogger, TensorBoardLogger
from tests.hostile.models import forward

NAMES = {"zero byte": "a\0b", "half a character": "a\ud800b"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Artifacts of a small model, and the model itself."""
    folder = tmp_path_factory.mktemp("artifacts")
    onnx.save(forward(), folder / "model.onnx")
    make_artifacts(folder / "model.onnx", folder)
    return folder


def make_artifacts(model, directory) -> None:
    onnxtrain.generate_artifacts(
        model, loss=None, optimizer=optim.sgd(), artifact_directory=directory
    )


DOORS = {
    "generate_artifacts: model": lambda folder, name: make_artifacts(name, folder),
    "generate_artifacts: folder": lambda folder, name: make_artifacts(forward(), name),
    "differentiate": lambda folder, name: onnxtrain.differentiate(name, of="y"),
    "load_checkpoint": lambda folder, name: CheckpointState.load_checkpoint(name),
    "save_checkpoint": lambda folder, name: CheckpointState.save_checkpoint(state(folder), name),
    "Module": lambda folder, name: Module(name, state(folder)),
    "export": lambda folder, name: module(folder).export_model_for_inferencing(name, ["y"]),
    "Trainer.from_directory": lambda folder, name: trainer(name),
    "Trainer.export": lambda folder, name: trainer(folder).export(name),
    "Trainer.save": lambda folder, name: trainer(folder).save(name),
    "SaveCheckpoint": lambda folder, name: fit(folder, api.SaveCheckpoint(name)),
    "lora.add": lambda folder, name: lora.add(forward(), rank=1, output=name),
    "save_peft": lambda folder, name: lora.save_peft(adapter(), name),
    "load_tokenizer": lambda folder, name: text.load_tokenizer(name),
    "CSVLogger": lambda folder, name: CSVLogger(name),
    "TensorBoardLogger": lambda folder, name: TensorBoardLogger(name),
    "convert: old": lambda folder, name: convert_artifacts(name, folder),
    "convert: new": lambda folder, name: convert_artifacts(folder, name),
}


def state(folder):
    return CheckpointState.load_checkpoint(folder / "checkpoint")


def module(folder):
    return Module(folder / "training_model.onnx", state(folder), folder / "eval_model.onnx")


def adapter():
    """One that has no layers."""
    return lora.Adapter(lora.Config(), {})


def trainer(folder):
    return Trainer.from_directory(folder, learning_rate=0.1)


def fit(folder, callback):
    rows = np.zeros((2, 4), np.float32)
    trainer(folder).fit((rows,), batch_size=2, progress=False, callbacks=[callback])


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_what_is_wrong_with_a_name(folder, monkeypatch, door, name) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    with pytest.raises((OnnxTrainError, FileNotFoundError)) as caught:
        DOORS[door](folder, name)
    assert repr(name) in str(caught.value)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("said", NAMES)
def test_the_folder_of_a_run_too(said) -> None:
    """A configuration file can say what no argument can."""
    settings = Settings(model="model.onnx", data="d.npz", loss="mse", output=NAMES[said])
    with pytest.raises(UserError, match=said):
        settings.check()
