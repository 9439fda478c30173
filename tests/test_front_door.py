"""`import onnxtrain` gives the names to begin with: typed, listed, and imported when used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import onnxtrain

SRC = Path(onnxtrain.__file__).parents[1]

USER = """\
import numpy as np

import onnxtrain
from onnxtrain import Module, Trainer, losses, optim, schedulers

gradient = onnxtrain.differentiate("model.onnx", wrt=["w"])
report = onnxtrain.check_gradient("model.onnx")
report.raise_if_wrong()
print(onnxtrain.summarize("model.onnx").parameters)
onnxtrain.generate_artifacts(
    "model.onnx",
    loss=losses.CrossEntropyLoss(label_smoothing=0.1),
    optimizer=optim.adamw(preset="torch"),
)
state = onnxtrain.CheckpointState.load_checkpoint("checkpoint")
model = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = onnxtrain.Optimizer("optimizer_model.onnx", model)
schedule = schedulers.CosineAnnealingLR(optimizer, 10)
loss = model(np.zeros((2, 3), np.float32))
optimizer.step()
schedule.step()
trainer = Trainer.from_directory(".")
history = trainer.fit((np.zeros(3), np.zeros(3)))
session = onnxtrain.TrainingSession
version: str = onnxtrain.__version__
"""
REVEALED = {
    "onnxtrain.differentiate": "def (model:",
    "onnxtrain.check_gradient": "GradientReport",
    "onnxtrain.summarize": "Summary",
    "onnxtrain.generate_artifacts": "def (model:",
    "onnxtrain.losses.MSELoss": "MSELoss",
    "onnxtrain.optim.adamw": "Optimizer",
    "onnxtrain.schedulers.OneCycleLR": "OneCycleLR",
    "onnxtrain.api.Accuracy": "Accuracy",
    "onnxtrain.artifacts.LossType.MSELoss": "LossType",
    "onnxtrain.errors.ModelError": "ModelError",
    "onnxtrain.extend.is_registered": "-> bool",
    "onnxtrain.onnxblock.TrainingBlock": "TrainingBlock",
    "gradient": "ModelProto",
    "report": "GradientReport",
    "state": "CheckpointState",
    "model": "Module",
    "optimizer": "Optimizer",
    "schedule": "CosineAnnealingLR",
    "trainer": "Trainer",
    "history": "History",
    "session": "TrainingSession",
}
"""What a strict mypy must know of an expression: a part of its type, and never just Any."""


def mypy(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Check a user's script, with the package found where it is installed."""
    (folder / "user.py").write_text(script)
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {SRC}\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=mypy.ini", "user.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_a_users_strict_mypy_knows_every_name(tmp_path) -> None:
    pytest.importorskip("mypy")  # not among the lowest versions
    lines = [f"reveal_type({expression})" for expression in REVEALED]
    first = USER.count("\n") + 1
    done = mypy(tmp_path, USER + "\n".join([*lines, "onnxtrain.diferentiate", ""]))
    said = done.stdout.splitlines()
    for number, (expression, part) in enumerate(REVEALED.items(), start=first):
        (note,) = [n for n in said if n.startswith(f"user.py:{number}: note: Revealed")]
        revealed = note.partition("Revealed type is ")[2].strip('"')
        assert part in revealed, f"{expression}: {revealed}"
        assert revealed != "Any"
        assert not revealed.endswith("-> Any"), f"{expression}: {revealed}"
    errors = [n for n in said if ": error: " in n]
    assert len(errors) == 1, done.stdout + done.stderr
    assert '"diferentiate"' in errors[0]


def test_dir_lists_what_there_is() -> None:
    listed = dir(onnxtrain)
    assert set(onnxtrain.__all__) <= set(listed)
    assert listed == sorted(set(listed))
    for name in listed:
        getattr(onnxtrain, name)
    assert {"TrainingSession", "TrainingAgent", "artifacts"} <= set(listed)


def test_a_name_is_the_one_of_its_module() -> None:
    for name, module in onnxtrain._HOMES.items():
        home = importlib.import_module(f"onnxtrain.{module}")
        assert getattr(onnxtrain, name) is getattr(home, name)
    for name in onnxtrain._MODULES:
        assert getattr(onnxtrain, name) is importlib.import_module(f"onnxtrain.{name}")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="'diferentiate'"):
        _ = onnxtrain.diferentiate
    with pytest.raises(ImportError):
        from onnxtrain import nothing_of_the_kind  # noqa: F401


DEVICE = """\
import sys
for name in ("onnx", "onnx_ir", "torch", "sklearn", "numba"):
    sys.modules[name] = None
import onnxtrain
onnxtrain.Module, onnxtrain.Optimizer, onnxtrain.CheckpointState, onnxtrain.Trainer
onnxtrain.schedulers.OneCycleLR
dir(onnxtrain)
"""


def test_the_device_half_of_the_front_door_needs_no_onnx() -> None:
    subprocess.run([sys.executable, "-c", DEVICE], check=True, timeout=120)
