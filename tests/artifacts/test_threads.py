"""Artifacts are made, and gradients built, in several threads at once."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import onnxtrain
from onnxtrain import onnxblock, optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate, generate_artifacts
from onnxtrain.cli.demo_model import digits_network
from tests.sharing import repeat, together

IMAGES = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32)
LABELS = np.arange(6)


def make(folder, **options):
    folder.mkdir()
    model = digits_network()
    generate_artifacts(
        model,
        requires_grad=[i.name for i in model.graph.initializer],
        loss=LossType.CrossEntropyLoss,
        optimizer=optim.adamw(),
        artifact_directory=folder,
        **options,
    )


def losses(folder):
    """Of three steps."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer, found = Optimizer(folder / "optimizer_model.onnx", module), []
    for _ in range(3):
        found.append(module(IMAGES, LABELS))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def test_artifacts_of_several_threads_train_like_those_of_one(tmp_path):
    folders = [tmp_path / str(i) for i in range(4)]
    make(folders[0])
    together(*(lambda f=f: make(f) for f in folders[1:]))
    assert [losses(f) for f in folders[1:]] == [losses(folders[0])] * 3


def test_what_the_converter_prints_is_hidden_in_all_threads(tmp_path, monkeypatch, capfd):
    """Its output is turned off by changing stdout for all; afterwards that is as it was."""
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    def convert(folder, **options):
        print("converting", folder)
        time.sleep(0.005)
        print("converted", folder)

    monkeypatch.setattr(converter, "convert_onnx_models_to_ort", convert)
    before = sys.stdout
    together(*[repeat(5, lambda: generate._convert_to_ort(tmp_path, None))] * 3)
    assert sys.stdout is before
    assert capfd.readouterr().out == ""


def test_every_thread_builds_its_own_model():
    def build():
        with onnxblock.empty_base() as accessor:
            name = onnxblock.blocks.Constant(2.0)()
            assert [i.name for i in accessor.model.graph.initializer] == [name]
            with pytest.raises(RuntimeError, match="cannot be nested"), onnxblock.empty_base():
                pass

    together(*[repeat(50, build)] * 3)


def test_gradients_are_built_in_several_threads():
    expected = onnxtrain.differentiate(digits_network(), vjp=True).SerializeToString()

    def build():
        made = onnxtrain.differentiate(digits_network(), vjp=True)
        assert made.SerializeToString() == expected

    together(*[repeat(2, build)] * 3)
