"""device.json: what JavaScript puts together from it is what Python makes itself."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxtrain.passes as building
from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.artifacts.device import device_file
from onnxtrain.artifacts.spans import assembled
from onnxtrain.runtime.files.onnxfile import ModelFile
from onnxtrain.runtime.step.artifact import drop_accumulation, load_artifact

RNG = np.random.default_rng(3)


def network(constant=(6, 4)):
    """A trained layer on a constant one, with Dropout between."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 6] x) => (float[N, 3] y) <float ratio = {0.5}, bool training = {1}> {
            a = MatMul (x, fixed)
            [drop] h = Dropout (a, ratio, training)
            [other] j = RandomNormalLike (h)
            k = Add (h, j)
            y = Gemm (k, w, b)
        }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"fixed": constant, "w": (constant[1], 3), "b": (3,)}.items():
        value = RNG.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def make(folder, model=None, **kw):
    options = {
        "requires_grad": ["w", "b"], "loss": LossType.MSELoss,
        "optimizer": optim.adamw(clip=optim.ClipNorm(0.1)), "artifact_directory": folder,
        "browser": True,
    }  # fmt: skip
    generate_artifacts(network() if model is None else model, **{**options, **kw})
    return json.loads((folder / f"{kw.get('prefix', '')}device.json").read_text())


def put_together(facts, folder, name, fill=None):
    model = facts["models"][name]
    source = b"" if model["file"] is None else (folder / model["file"]).read_bytes()
    return assembled(model["pieces"], source, fill)


def test_training_model_is_the_one_that_python_runs(tmp_path):
    facts = make(tmp_path)
    artifact = load_artifact(tmp_path / "training_model.onnx", "training")
    drop_accumulation(artifact)
    found = put_together(facts, tmp_path, "train")
    assert onnx.load_from_string(found) == onnx.load_from_string(artifact.model.encode())
    train = facts["models"]["train"]
    assert train["feeds"] == {"w": "param/w", "b": "param/b"}
    assert train["random"] == "onnxtrain.random"
    assert [i["name"] for i in train["inputs"]] == ["x", "target"]
    session = ort.InferenceSession(found, providers=["CPUExecutionProvider"])
    known = {"x", "target", "w", "b", "onnxtrain.random"}
    assert {i.name for i in session.get_inputs()} == known


def test_models_of_earlier_releases_get_their_seeds_on_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "draw_from_counter", lambda model: model)
    facts = make(tmp_path)
    artifact = load_artifact(tmp_path / "training_model.onnx", "training")
    drop_accumulation(artifact)
    for node in artifact.model.all_nodes():
        if node.name in {"drop", "other"}:
            node.set_attribute("seed", 5 if node.name == "drop" else 5.0)

    def fill(hole):
        assert hole["float"] == (hole["seed"] == "other")
        return np.float32(5).tobytes() if hole["float"] else bytes([0x85, 0x80, 0x80, 0])

    found = put_together(facts, tmp_path, "train", fill)
    wanted = artifact.model.encode()
    assert onnx.load_from_string(found) == onnx.load_from_string(wanted)
    assert facts["models"]["train"]["random"] is None
    ort.InferenceSession(found, providers=["CPUExecutionProvider"])


def test_export_is_the_one_of_python(tmp_path):
    facts = make(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    module.export_model_for_inferencing(tmp_path / "wanted.onnx", ["y"])
    found = put_together(
        facts, tmp_path, "export", lambda hole: state.parameters[hole["value"]].data.tobytes()
    )
    assert onnx.load_from_string(found) == onnx.load(tmp_path / "wanted.onnx")
    predict = facts["models"]["predict"]
    assert [i["name"] for i in predict["inputs"]] == ["x"]
    assert predict["inputs"][0] == {"name": "x", "type": "float32", "shape": ["N", 6]}
    ort.InferenceSession(put_together(facts, tmp_path, "predict"))


def test_what_is_in_the_artifacts_is_not_repeated(tmp_path):
    make(tmp_path, network((6, 20_000)))
    assert (tmp_path / "training_model.onnx").stat().st_size > 480_000
    assert (tmp_path / "device.json").stat().st_size < 20_000


@pytest.mark.parametrize("model", ["update", "update_float32"])
def test_one_run_updates_everything_as_the_optimizer_does(tmp_path, model):
    groups = [optim.Group(["b"], weight_decay=0.0, lr_scale=0.5)]
    optimizer = optim.adamw(weight_decay=0.1, clip=optim.ClipNorm(0.1), groups=groups)
    facts = make(tmp_path, optimizer=optimizer)
    assert facts["optimizer"]["clip_norm"] == 0.1
    described = facts["models"][model]
    session = ort.InferenceSession(put_together(facts, tmp_path, model))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    update = Optimizer(tmp_path / "optimizer_model.onnx", module)
    values = {f"param/{n}": state.parameters[n].data.copy() for n in ("w", "b")}
    values |= {k: np.zeros(s, np.float32) for k, s in facts["optimizer"]["moments"].items()}
    one = np.ones(1, np.float32)
    for step in range(1, 4):
        module(RNG.standard_normal((2, 6)).astype(np.float32), np.ones((2, 3), np.float32))
        values |= {f"grad/{n}": state.parameters[n].grad.copy() for n in ("w", "b")}
        update.apply(0.5)
        module.lazy_reset_grad()
        feeds = {name: values[key] for name, key in described["feeds"].items()}
        feeds |= {"learning_rate": 0.001 * one, "scale": 0.5 * one, "clip_norm": 0.1 * one}
        results = session.run([*described["updates"]], {**feeds, "step": np.array([step])})
        values |= dict(zip(described["updates"].values(), results))
    for name in ("w", "b"):
        np.testing.assert_allclose(values[f"param/{name}"], state.parameters[name].data, atol=1e-6)


def test_gradients_are_added(tmp_path):
    facts = make(tmp_path)
    described = facts["models"]["accumulate"]
    values = {k: np.full(2, i, np.float32) for i, k in enumerate(described["feeds"].values())}
    session = ort.InferenceSession(put_together(facts, tmp_path, "accumulate"))
    found = session.run(None, {n: values[k] for n, k in described["feeds"].items()})
    assert [*described["updates"].values()] == ["fresh/w", "fresh/b"]
    assert [f.tolist() for f in found] == [[1, 1], [5, 5]]


def test_artifacts_from_before_get_it_by_a_command(tmp_path):
    wanted = make(tmp_path, prefix="my_")
    (tmp_path / "my_device.json").unlink()
    command = [sys.executable, "-m", "onnxtrain.artifacts.device", str(tmp_path)]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "training_model.onnx" in failed.stderr
    assert "Traceback" not in failed.stderr
    subprocess.run([*command, "my_"], check=True)
    assert json.loads((tmp_path / "my_device.json").read_text()) == wanted


def test_an_optimizer_over_sequences_is_for_python_only(tmp_path):
    make(tmp_path)
    shapes = [("w", [2, 1])]
    model = ir.to_proto(optim.sequence_model(optim.adamw(), shapes))
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "optimizer_model.onnx")
    facts = json.loads(device_file(tmp_path))
    assert facts["optimizer"] is None
    assert "update" not in facts["models"]


def test_constants_beside_the_model_are_for_python_only(tmp_path, caplog):
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(
        network((6, 4000)), source / "m.onnx", save_as_external_data=True, size_threshold=1000
    )
    with caplog.at_level("INFO"):
        generate_artifacts(
            source / "m.onnx", ["w", "b"], loss=LossType.MSELoss, artifact_directory=tmp_path,
            browser=True,
        )  # fmt: skip
    assert ModelFile.load(tmp_path / "training_model.onnx").folder is not None
    assert "it trains in Python only" in caplog.text
    assert not (tmp_path / "device.json").exists()
