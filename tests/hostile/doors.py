"""The ways in: everything that takes a file of somebody else's. Each is called with a folder.

A folder has ``model.onnx`` and the artifacts made of it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxtrain
from onnxtrain import onnxblock
from onnxtrain.api import CheckpointState, Module
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.cli import main
from onnxtrain.errors import OnnxTrainError
from onnxtrain.serve import Site
from onnxtrain.training import TrainingParameters, TrainingSession

from .models import forward

Door = Callable[[Path], object]


class CommandError(OnnxTrainError):
    """What a command said on stderr, so that the table can treat it like the other doors."""


def state_of(folder: Path) -> CheckpointState:
    return CheckpointState.load_checkpoint(folder / "checkpoint")


def differentiate(folder: Path) -> object:
    return onnxtrain.differentiate(folder / "model.onnx", output=folder / "out.onnx")


def check(folder: Path) -> object:
    return onnxtrain.check_gradient(folder / "model.onnx")


def artifacts(folder: Path) -> object:
    return generate_artifacts(folder / "model.onnx", ["w"], artifact_directory=folder)


def blocks(folder: Path) -> object:
    path = folder / "model.onnx"
    with onnxblock.base(onnx.load(path, load_external_data=False), str(path)) as accessor:
        return accessor.model


def session(folder: Path) -> object:
    parameters = TrainingParameters()
    parameters.loss_output_name, parameters.weights_to_train = "loss", {"w"}
    parameters.training_optimizer_name = "SGDOptimizer"
    return TrainingSession(folder / "model.onnx", parameters)


def module(folder: Path) -> object:
    return Module(folder / "training_model.onnx", state_of(folder))


def evaluation(folder: Path) -> object:
    return Module(folder / "sound.onnx", state_of(folder), folder / "eval_model.onnx")


def evaluate(folder: Path) -> object:
    """Make the eval model's session and run it."""
    module = Module(folder / "sound.onnx", state_of(folder), folder / "eval_model.onnx").eval()
    return module(*(np.ones((2, 4), np.float32) for _ in module.input_names()))


def export(folder: Path) -> object:
    from onnxtrain.runtime.step.export import export as write

    return write(
        folder / "eval_model.onnx", state_of(folder).training_state, folder / "out.onnx", ["y"]
    )


def export_external(folder: Path) -> object:
    from onnxtrain.runtime.step.export import export as write

    source, target = folder / "eval_model.onnx", folder / "out.onnx"
    return write(source, state_of(folder).training_state, target, ["y"], external_data=True)


def lora(folder: Path) -> object:
    from onnxtrain import lora

    return lora.add(folder / "predict.onnx", rank=1, output=folder / "out.onnx")


def training_info(folder: Path) -> object:
    from onnxtrain.training_info import Training

    return Training(folder / "info.onnx")


def prepare_qat(folder: Path) -> object:
    from onnxtrain import quant

    return quant.prepare_qat(folder / "predict.onnx", activation_bits=None)


def new_head(folder: Path) -> object:
    from onnxtrain import transfer

    return transfer.new_head(folder / "predict.onnx", 3)


def teacher(folder: Path) -> object:
    """A sound student, and somebody else's teacher."""
    from onnxtrain.distillation import with_teacher

    student = forward()
    return with_teacher(student, folder / "predict.onnx", output=folder / "out.onnx")


def flower(folder: Path) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of flwr's own imports
        pytest.importorskip("flwr")
        from onnxtrain.flower.local import LocalModel

    return LocalModel(folder)


def serve(folder: Path) -> object:
    (folder / "device.json").unlink(missing_ok=True)
    site = Site(folder)
    if site.find("/artifacts/device.json") is None:
        from onnxtrain.artifacts.device import device_file

        device_file(folder)  # the page gets "not found"; here is the reason
    return site


def command(*arguments: str) -> Door:
    """A command line, with ``{}`` for the folder."""

    def call(folder: Path) -> object:
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(said):
            code = main([a.replace("{}", str(folder)) for a in arguments])
        if code:
            assert "please report it" not in said.getvalue(), said.getvalue()
            raise CommandError(" ".join(said.getvalue().split()))
        return said.getvalue()

    return call


LOSS = ("--loss", "mse", "--loss-output", "y")
DOORS: dict[str, Door] = {
    "differentiate": differentiate,
    "check_gradient": check,
    "generate_artifacts": artifacts,
    "onnxblock": blocks,
    "TrainingSession": session,
    "Module": module,
    "Module.eval": evaluation,
    "evaluate": evaluate,
    "export": export,
    "export as external data": export_external,
    "lora": lora,
    "training_info": training_info,
    "teacher": teacher,
    "prepare qat": prepare_qat,
    "new head": new_head,
    "flower": flower,
    "serve": serve,
    "inspect": command("inspect", "{}/model.onnx"),
    "draw": command("draw", "{}/model.onnx", "-o", "{}/out.svg"),
    "quantize": command("quantize", "{}/model.onnx", "-o", "{}/small.onnx"),
    "artifacts": command("artifacts", "{}/model.onnx", "--output", "{}/made", *LOSS),
    "export command": command("export", "{}/checkpoint", "--artifacts", "{}", "-o", "{}/out.onnx"),
    "train": command(
        "train", "{}/predict.onnx", "--data", "{}/data.npz", "--output", "{}/run",
        "--loss", "mse", "--epochs", "1", "--target", "target",
    ),
    "training-info": command(
        "training-info", "{}/info.onnx", "--data", "{}/data.npz", "-o", "{}/out.onnx"
    ),
    "bench": command("bench", "{}/predict.onnx", "--loss", "mse", "--steps", "1"),
}  # fmt: skip
"""Name → what it does with a folder. JavaScript is a door too: see `test_javascript`."""


def enter(door: str, folder: Path) -> object:
    """Call a door by its name, for processes that have nothing but that."""
    return DOORS[door](folder)
