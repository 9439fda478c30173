"""The page, used as a person would use it, and what it hands out, used in Python."""

import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits
from onnxtrain.serve import Server, Site

from . import tools

pytestmark = pytest.mark.slow


ROWS = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("page")
    (made / "artifacts").mkdir()
    model = digits_network()
    generate_artifacts(
        model, requires_grad=[i.name for i in model.graph.initializer],
        loss=LossType.CrossEntropyLoss, optimizer=optim.adamw(),
        artifact_directory=made / "artifacts", browser=True,
    )  # fmt: skip
    images, labels = digits()
    np.savez(made / "mine.npz", images=images[:ROWS, 0], labels=labels[:ROWS].astype(np.int32))
    return made


@pytest.fixture(scope="module")
def report(folder):
    modules, chromium = tools.modules(), tools.chromium()
    with Server(Site(folder / "artifacts", name="Digits")) as server:
        (found,) = tools.run_node("page.mjs", modules, chromium, server.url, folder)
    return found


def test_it_loads_isolated_and_from_here_only(report):
    assert report["isolated"] is True
    assert "38,282 trainable numbers, AdamW" in report["summary"]
    assert report["problems"] == []
    assert len([h for h in report["hosts"] if h]) == 1  # the others are blobs of the page


def test_dropped_data(report):
    assert '"hello" is not a number' in report["complaint"]
    assert report["data"] == "mine.npz: 480 examples to train on, 120 held out."


def test_training_pauses_and_resumes(report):
    assert 5 < report["paused"] < report["steps"]
    assert report["button"] == "Resume"
    assert report["points"] == report["steps"]
    start, end = map(float, re.findall(r"(?:from|to) ([\d.]+)", report["curve"]))
    assert end < start / 2
    assert float(report["accuracy"].split()[0]) > 80


def test_checkpoint_comes_back(report, folder):
    assert (report["reset"], report["loaded"]) == (0, report["steps"])
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "artifacts" / "training_model.onnx", state)
    optimizer = Optimizer(folder / "artifacts" / "optimizer_model.onnx", module)
    assert optimizer.step_count == report["steps"]
    assert optimizer.get_learning_rate() == 0.002


def test_drawing_and_teaching(report):
    assert report["bars"] == 10
    assert re.fullmatch(r"It reads \d \(\d+ % sure\)", report["answer"])
    assert report["examples"] == "1 of your own."
    assert report["taught"].startswith("It reads 1 ")


def test_downloaded_model_runs_in_python(report, folder):
    model = onnx.load(folder / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in model.graph.output] == ["scores"]
    images, labels = digits()
    session = ort.InferenceSession(folder / "trained.onnx")
    (scores,) = session.run(None, {"image": images[ROWS:]})
    assert (scores.argmax(1) == labels[ROWS:]).mean() > 0.8
