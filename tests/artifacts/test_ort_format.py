"""Artifacts in onnxruntime's own format train, evaluate and export as the others do."""

import numpy as np
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.errors import ModelFileError
from tests.onnxblock.harness import mlp, run

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ort")
    generate_artifacts(
        mlp(), loss=LossType.CrossEntropyLoss, optimizer=optim.adamw(clip=optim.ClipNorm(1.0)),
        artifact_directory=made, ort_format=True,
    )  # fmt: skip
    return made


def trained(folder, ending, exported):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / f"training_model.{ending}", state, folder / f"eval_model.{ending}")
    optimizer = Optimizer(folder / f"optimizer_model.{ending}", module)
    losses = []
    for _ in range(3):
        losses.append(float(module(X, LABELS)))
        optimizer.step()
        module.lazy_reset_grad()
    losses.append(float(module.eval()(X, LABELS)))
    module.export_model_for_inferencing(exported, ["out"])
    return losses, run(str(exported), {"x": X})[0]


def test_both_formats_train_the_same(folder, tmp_path):
    losses, scores = trained(folder, "onnx", tmp_path / "a.onnx")
    ort_losses, ort_scores = trained(folder, "ort", tmp_path / "b.onnx")
    np.testing.assert_allclose(ort_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(ort_scores, scores, rtol=1e-4)
    assert losses[-1] < losses[0]


def test_a_damaged_one_is_named(folder, tmp_path):
    content = (folder / "training_model.ort").read_bytes()
    (tmp_path / "m.ort").write_bytes(content[: len(content) // 2])
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(ModelFileError, match=r"m\.ort.*Use the \.onnx file"):
        Module(tmp_path / "m.ort", state)
