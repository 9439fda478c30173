"""What an optimizer model says about itself decides where is written: it is checked first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtrain
from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts.device import device_file
from onnxtrain.errors import CheckpointError, ModelFileError, UnknownNameError

from . import models

KEY = "onnxtrain.optimizer"
WRONG = {
    "a state smaller than its parameter": {"state_shapes": {"first_order_moments": {"w": [1]}}},
    "a state of terabytes": {
        "layout": "tensor", "state_shapes": {"first_order_moments": {"w": [2**30, 2**12]}},
    },
    "a negative size": {"layout": "tensor", "state_shapes": {"first_order_moments": {"w": [-1]}}},
    "an unknown layout": {"layout": ["elementwise"]},
    "states that are no names": {"states": [1, 2]},
    "clipping that is no number": {"clip": {"norm": "x"}},
    "a clipping that is a flag": {"clip": True},
    "a decay that is no number": {"hyper": {"weight_decay": [1]}},
    "a group that is text": {"groups": ["w"]},
    "a group with a factor of NaN": {"groups": [{"params": ["w"], "lr_scale": float("nan")}]},
    "a name that is a list": {"name": []},
}  # fmt: skip
X = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str, sound: Path) -> None:
    model = onnx.load(sound / "optimizer_model.onnx")
    entry = next(p for p in model.metadata_props if p.key == KEY)
    entry.value = json.dumps({**json.loads(entry.value), **WRONG[name]})
    state = CheckpointState.load_checkpoint(sound / "checkpoint")
    module = Module(sound / "training_model.onnx", state)
    module(X)
    with pytest.raises(ModelFileError):
        Optimizer(model.SerializeToString(), module)


def test_moments_of_another_size_are_refused(sound: Path, tmp_path: Path) -> None:
    """Those of a checkpoint are written to as well."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] x) => (float loss)'
        "<float[4, 1] w = {1, 2, 3, 4}> { y = MatMul(x, w) loss = ReduceSum<keepdims = 0>(y) }"
    )
    artifacts.generate_artifacts(
        model, ["w"], artifact_directory=tmp_path, optimizer=artifacts.OptimType.AdamW
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    module(X)
    Optimizer(tmp_path / "optimizer_model.onnx", module).step()
    state.training_state.trainable = CheckpointState.load_checkpoint(
        sound / "checkpoint"
    ).training_state.trainable
    CheckpointState.save_checkpoint(state, tmp_path / "mixed", include_optimizer_state=True)
    mixed = CheckpointState.load_checkpoint(tmp_path / "mixed")
    module = Module(sound / "training_model.onnx", mixed)
    with pytest.raises(CheckpointError, match="do not have the shapes"):
        Optimizer(sound / "optimizer_model.onnx", module)


def test_a_device_learns_of_no_parameter_that_is_no_input(sound: Path, tmp_path: Path) -> None:
    """The name in the description was taken for one in the graph: a KeyError of `serve`."""
    folder = tmp_path / "folder"
    shutil.copytree(sound, folder)
    model = onnx.load(folder / "training_model.onnx")
    next(value for value in model.graph.input if value.name == "w").name = "v"
    onnx.save(model, folder / "training_model.onnx")
    with pytest.raises(UnknownNameError, match="'w'"):
        device_file(folder)


@pytest.mark.parametrize("place", ["graph", "function"])
def test_a_name_of_a_node_that_is_no_text(place: str, tmp_path: Path) -> None:
    """It was read, and could not be written: an error of onnx-ir's from `generate_artifacts`."""
    model = models.forward("node1")
    if place == "function":
        models.as_function(model, numpy_helper.from_array(models.VALUES, "c"))
        model.functions[0].node[0].name = "node1"
        model.graph.node[1].name = "scale"
    content = model.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(content.replace(b"node1", b"nod\xb81"))
    for door in (artifacts.generate_artifacts, onnxtrain.differentiate):
        with pytest.raises(ModelFileError, match="is no text"):
            door(tmp_path / "model.onnx", ["w"])  # type: ignore[operator]
