"""Masks of Dropout in JavaScript are those of Python, bit for bit, whoever began the run."""

import base64

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Module
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.runtime.files import tensorfile

from . import cases, tools

SEED = 2**63 + 12345
"""Negative as the signed number that the model gets."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("masks")
    model, trainable, shape, vocabulary, _ = cases.forward(cases.dropout)
    drop = next(n for n in model.graph.node if n.op_type == "Dropout")
    drop.output.append("mask")
    generate_artifacts(
        model, requires_grad=trainable, loss=LossType.CrossEntropyLoss, artifact_directory=made,
        additional_output_names=["mask"], optimizer=cases.optim.sgd(), browser=True,
    )  # fmt: skip
    tensorfile.write(made / "batches", cases.batches(shape, vocabulary), {})
    state = CheckpointState.load_checkpoint(made / "checkpoint")
    state.seed = SEED
    CheckpointState.save_checkpoint(state, made / "start")
    return made


def in_python(folder, checkpoint, passes):
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(folder / "training_model.onnx", state)
    data, _ = tensorfile.load(folder / "batches")
    masks = [module(data["0/0"], data["0/1"])[1].ravel().tolist() for _ in range(passes)]
    return masks, state


def in_javascript(folder, checkpoint, passes, backend):
    (found,) = tools.run_node(
        "masks.mjs", tools.LIBRARY, tools.modules(), backend, folder, checkpoint, passes
    )
    return [[bool(m) for m in mask] for mask in found["masks"]], found["checkpoint"]


@pytest.mark.parametrize("backend", ["node", "wasm"])
def test_masks_are_the_same(folder, tmp_path, backend):
    expected, _ = in_python(folder, folder / "start", 6)
    assert len({tuple(m) for m in expected}) == 6
    found, saved = in_javascript(folder, folder / "start", 2, backend)
    assert found == expected[:2]
    (tmp_path / "two").write_bytes(base64.b64decode(saved))
    found, state = in_python(folder, tmp_path / "two", 2)
    assert (state.seed, state.training_state.random.counter) == (SEED, 4)
    assert found == expected[2:4]
    CheckpointState.save_checkpoint(state, tmp_path / "four")
    found, _ = in_javascript(folder, tmp_path / "four", 2, backend)
    assert found == expected[4:]


def test_wasm_trains_with_dropout_as_python_does(tmp_path):
    want = cases.write("dropout", tmp_path / "case")
    (got,) = tools.run_node("node.mjs", tools.LIBRARY, tools.modules(), "wasm", tmp_path / "case")
    np.testing.assert_allclose(got["losses"], want["losses"], atol=1e-5)
    np.testing.assert_allclose(got["parameters"], want["parameters"], atol=1e-5)
