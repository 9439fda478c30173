"""Artifacts keep the opset of their model where every operator has a form there."""

import numpy as np
import onnx
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts
from tests.onnxblock.harness import mlp

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def opsets(folder):
    names = ("training_model", "eval_model", "optimizer_model")
    models = [onnx.load(folder / f"{n}.onnx") for n in names]
    for model in models[:2]:  # the optimizer's leaves shapes open; onnxruntime checks it below
        onnx.checker.check_model(model)
    return [next(o.version for o in m.opset_import if not o.domain) for m in models]


def losses(folder):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    found = []
    for _ in range(3):
        found.append(float(module(X, LABELS)))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def generate(folder, model, **options):
    folder.mkdir()
    generate_artifacts(
        model, loss=LossType.CrossEntropyLoss,
        **{"optimizer": optim.adamw(clip=optim.ClipNorm(1.0)), **options},
        artifact_directory=folder,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("version", [13, 14, 17])
@pytest.mark.parametrize(
    "optimizer", [optim.adamw(clip=optim.ClipNorm(1.0)), optim.adafactor(), optim.lamb()]
)
def test_the_opset_of_the_model_is_kept_and_trains_the_same(tmp_path, version, optimizer):
    old = generate(tmp_path / "old", mlp(opset=version), optimizer=optimizer)
    new = generate(tmp_path / "new", mlp(opset=18), optimizer=optimizer)
    assert opsets(old) == [version] * 3
    assert opsets(new) == [18] * 3
    np.testing.assert_allclose(losses(old), losses(new), rtol=1e-6)


def test_an_operator_without_a_form_there_keeps_the_new_opset(tmp_path):
    """Dropout draws its masks with BitwiseAnd, which opset 18 brought."""
    model = mlp(opset=14)
    ratio, training = (
        onnx.numpy_helper.from_array(np.array(value), name)
        for name, value in (("ratio", np.float32(0.5)), ("training", True))
    )
    model.graph.initializer.extend([ratio, training])
    model.graph.node.insert(
        2, onnx.helper.make_node("Dropout", ["r", "ratio", "training"], ["dropped"], name="drop")
    )
    model.graph.node[3].input[0] = "dropped"
    folder = generate(tmp_path / "a", model, requires_grad=["W1", "b1", "W2", "b2"])
    assert opsets(folder)[:2] == [18, 14]
    assert all(np.isfinite(losses(folder)))
