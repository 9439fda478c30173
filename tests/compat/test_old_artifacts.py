"""Artifacts of the real 1.19.2 train here to the losses that it recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module
from onnxtrain.compat import convert_artifacts
from onnxtrain.compat.ort.old_artifacts import (
    OldArtifactError,
    convert_optimizer_model,
    convert_training_model,
    optimizer_of,
)
from onnxtrain.errors import MissingFileError, ModelFileError

from .recorded import DATA, FAMILIES, Recorded

NO_GRADIENT = {("torch_encoder", "layer.self_attn.in_proj_bias")}
"""The bias of attention's keys has the gradient 0, and Adam makes large steps of its rounding."""


@pytest.mark.parametrize("name", FAMILIES)
def test_same_numbers_as_recorded(name: str) -> None:
    recorded = Recorded(name)
    state, module, optimizer = recorded.open()
    assert module.input_names() == recorded.names
    losses, gradients = recorded.train(state, module, optimizer)
    np.testing.assert_allclose(losses, recorded.losses, rtol=1e-5)
    for key, expected in recorded.gradients.items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(gradients[key], expected, atol=1e-5 * scale + 1e-9)
    for key, expected in recorded.last.items():
        if (name, key) in NO_GRADIENT:
            continue
        scale = np.abs(expected).max()
        np.testing.assert_allclose(state.parameters[key].data, expected, atol=2e-5 * scale)


@pytest.mark.parametrize("name", FAMILIES)
def test_converted_folder(name: str, tmp_path: Path) -> None:
    recorded = Recorded(name)
    written = convert_artifacts(recorded.folder, tmp_path / "new")
    assert {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"} == set(
        written
    )
    for file in (tmp_path / "new").glob("*.onnx"):
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        domains = {n.domain for n in model.graph.node}
        assert domains <= {"", "com.microsoft"} if file.name == "eval_model.onnx" else {""}
        onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    state, module, optimizer = recorded.open(tmp_path / "new")
    losses, _ = recorded.train(state, module, optimizer)
    np.testing.assert_allclose(losses, recorded.losses, rtol=1e-5)


def test_inputs_and_outputs_keep_their_order() -> None:
    old = onnx.load(DATA / "mlp_mse" / "training_model.onnx")
    new = convert_training_model(DATA / "mlp_mse" / "training_model.onnx")
    assert [v.name for v in new.graph.inputs] == [v.name for v in old.graph.input]
    assert [v.name for v in new.graph.outputs] == [v.name for v in old.graph.output]


def test_eval_model_and_export(tmp_path: Path) -> None:
    recorded = Recorded("mlp_mse")
    state, module, optimizer = recorded.open()
    recorded.train(state, module, optimizer)
    module.eval()
    loss, y = module(*recorded.batches[0])
    module.export_model_for_inferencing(tmp_path / "model.onnx", ["y"])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"x": recorded.batches[0][0]})[0], y, rtol=1e-5)
    np.testing.assert_allclose(loss, np.mean((y - recorded.batches[0][1]) ** 2), rtol=1e-5)


def test_running_statistics_are_trained() -> None:
    recorded = Recorded("cnn_batchnorm")
    state, module, optimizer = recorded.open()
    before = state.parameters["mean"].data.copy()
    recorded.train(state, module, optimizer)
    assert np.abs(state.parameters["mean"].data - before).max() > 1e-3
    np.testing.assert_allclose(state.parameters["var"].data, recorded.last["var"], rtol=1e-5)


def test_continues_a_trained_checkpoint() -> None:
    recorded = Recorded("mlp_mse")
    state = CheckpointState.load_checkpoint(recorded.folder / "trained")
    for name, expected in recorded.last.items():
        np.testing.assert_array_equal(state.parameters[name].data, expected)
    assert state.training_state.optimizer is not None
    assert state.training_state.optimizer.step == len(recorded.losses)
    assert list(state.training_state.optimizer.states) == [
        "first_order_moments",
        "second_order_moments",
    ]


def test_hyperparameters_of_the_optimizer() -> None:
    clipped = optimizer_of(DATA / "mlp_bce" / "optimizer_model.onnx")
    assert clipped.name == "AdamW"
    assert clipped.weight_decay == pytest.approx(0.01)
    assert isinstance(clipped.clip, optim.ClipNorm)
    assert clipped.clip.max_norm == pytest.approx(0.1)
    assert clipped.hyper["betas"] == pytest.approx([0.8, 0.99])
    assert optimizer_of(DATA / "mlp_ce" / "optimizer_model.onnx").name == "SGD"


def test_eval_model_that_did_not_load_is_repaired() -> None:
    recorded = Recorded("cnn_batchnorm")
    broken = onnx.load(recorded.folder / "eval_model.onnx")
    norm = next(n for n in broken.graph.node if n.op_type == "BatchNormalization")
    norm.output.extend(["mean_out", "var_out"])
    state = CheckpointState.load_checkpoint(recorded.folder / "checkpoint")
    module = Module(
        recorded.folder / "training_model.onnx", state, broken.SerializeToString()
    ).eval()
    assert np.isfinite(module(*recorded.batches[0]))


# --- refusals -----------------------------------------------------------------------------------


def test_unknown_operator_is_refused_by_name() -> None:
    model = onnx.load(DATA / "mlp_mse" / "training_model.onnx")
    node = next(n for n in model.graph.node if n.op_type == "ReluGrad")
    node.op_type = "PythonOpGrad"
    with pytest.raises(OldArtifactError, match=r"com\.microsoft::PythonOpGrad"):
        convert_training_model(model)


def test_optimizer_of_several_nodes_is_refused() -> None:
    model = onnx.load(DATA / "mlp_mse" / "optimizer_model.onnx")
    model.graph.node.append(model.graph.node[0])
    model.graph.node[1].output[0] = "again"
    with pytest.raises(OldArtifactError, match="2 optimizer nodes"):
        convert_optimizer_model(model)


def test_folder_must_be_complete_and_another(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"training_model\.onnx"):
        convert_artifacts(tmp_path, tmp_path / "new")
    with pytest.raises(OldArtifactError, match="folder of their own"):
        convert_artifacts(DATA / "mlp_mse", DATA / "mlp_mse")


def test_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for file in (DATA / "mlp_mse").iterdir():
        (old / file.name).write_bytes(file.read_bytes())
    (old / "optimizer_model.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not an ONNX model"):
        convert_artifacts(old, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_forward_model_is_not_a_training_model() -> None:
    forward = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    state = CheckpointState.from_arrays({"w": np.zeros(2, np.float32)})
    with pytest.raises(ModelFileError, match="is not a training model"):
        Module(forward.SerializeToString(), state)


def test_without_onnx_the_error_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from onnxtrain.api import CheckpointState, Module\n"
        f"folder = {str(DATA / 'mlp_mse')!r}\n"
        "state = CheckpointState.load_checkpoint(folder + '/checkpoint')\n"
        "try:\n    Module(folder + '/training_model.onnx', state)\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "convert_artifacts" in done.stdout
    assert "'onnx' is needed" in done.stdout


def test_command(tmp_path: Path) -> None:
    pytest.importorskip("click")
    arguments = ["convert", DATA / "mlp_ce", tmp_path / "new"]
    done = subprocess.run(
        [sys.executable, "-m", "onnxtrain", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    recorded = Recorded("mlp_ce")
    losses, _ = recorded.train(*recorded.open(tmp_path / "new"))
    np.testing.assert_allclose(losses, recorded.losses, rtol=1e-5)
