"""Frozen weights beside a model: read when they are written, and not copied by onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import ExternalDataError
from onnxtrain.runtime.files import external
from onnxtrain.runtime.session import devices

SIZE = 32


@pytest.fixture
def folder(tmp_path):
    """Artifacts of two layers, the first of which is frozen and beside the model."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(SIZE, SIZE)).astype(np.float32), name)
        for name in ("frozen", "trained")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "frozen"], ["h"]),
        helper.make_node("MatMul", ["h", "trained"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", SIZE])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="model.data",
        size_threshold=0,
    )  # fmt: skip
    artifacts.generate_artifacts(
        tmp_path / "model.onnx", requires_grad=["trained"], loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    return tmp_path


def module_of(folder):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")


def beside(folder):
    files = [p for p in folder.glob("*.data") if p.name != "model.data"]
    assert len(files) == 1
    return files[0]


@pytest.mark.parametrize("external_data", [False, True])
@pytest.mark.parametrize("limit", [1, 2**20], ids=["late", "at once"])
def test_export(folder, monkeypatch, limit, external_data):
    monkeypatch.setattr(external, "READ_LATER", limit)
    x = np.random.default_rng(1).normal(size=(3, SIZE)).astype(np.float32)
    module_of(folder).export_model_for_inferencing(
        folder / "out.onnx", ["y"], external_data=external_data
    )
    onnx.checker.check_model(folder / "out.onnx", full_check=True)
    results = [
        onnxruntime.InferenceSession(folder / name).run(None, {"x": x})[0]
        for name in ("model.onnx", "out.onnx")
    ]
    np.testing.assert_array_equal(*results)


def test_data_that_change_while_a_model_is_written_lose_nothing(folder, monkeypatch):
    monkeypatch.setattr(external, "READ_LATER", 1)
    module, target, file = module_of(folder), folder / "out.onnx", beside(folder)
    target.write_bytes(b"before")
    embed = external.embed

    def cut_after(*arguments):
        embedded = embed(*arguments)
        file.write_bytes(file.read_bytes()[:-1])
        return embedded

    monkeypatch.setattr(external, "embed", cut_after)
    with pytest.raises(ExternalDataError, match="truncated"):
        module.export_model_for_inferencing(target, ["y"])
    assert target.read_bytes() == b"before"


def test_many_constants_are_not_copied(folder, monkeypatch):
    x = np.ones((3, SIZE), np.float32)
    usual = module_of(folder)
    monkeypatch.setattr(devices, "MANY_CONSTANTS", 1)
    lean = module_of(folder)
    assert usual.gradient_step.options.get_session_config_entry(SPIN) == "1"
    with pytest.raises(RuntimeError):
        usual.gradient_step.options.get_session_config_entry(PREPACKING)
    assert lean.gradient_step.options.get_session_config_entry(PREPACKING) == "1"
    np.testing.assert_allclose(usual(x, x), lean(x, x), rtol=1e-5)


SPIN, PREPACKING = "session.force_spinning_stop", "session.disable_prepacking"
