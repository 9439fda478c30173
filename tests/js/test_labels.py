"""Labels in JavaScript: what is no class is refused, what is ignored does not count."""

import json
import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxtrain.api import CheckpointState, Module
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts

from . import cases, tools

X = np.sin(np.arange(256, dtype=np.float32)).reshape(4, 64)
CANDIDATES = np.cos(np.arange(96, dtype=np.float32)).reshape(32, 3)


def open_model():
    """Scores against candidates that come with the batch: as many classes as there are of them."""
    text = """g (float[N, 64] x, float[32, C] candidates) => (float[N, C] y) {
        h = MatMul (x, w)
        y = MatMul (h, candidates)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    value = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "w"))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("labels")
    mlp, trainable, *_ = cases.forward(cases.mlp)
    for name, model, weights, options in (
        ("usual", mlp, trainable, {}),
        ("minus", mlp, trainable, {"ignore_index": -1}),
        ("open", open_model(), ["w"], {}),
    ):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        (made / name).mkdir()
        generate_artifacts(
            copy, requires_grad=weights, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD,
            artifact_directory=made / name, browser=True, **options,
        )  # fmt: skip
    return made


def python_losses(folder, *inputs):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return [float(module(*inputs)), float(module.eval()(*inputs))]


def test_labels(folder):
    (got,) = tools.run_node("labels.mjs", tools.LIBRARY, tools.modules(), folder)
    want = {
        "usual": python_losses(folder / "usual", X, np.array([3, -100, 2, -100])),
        "minus": python_losses(folder / "minus", X, np.array([3, -1, 2, -1])),
        "open": python_losses(folder / "open", X, CANDIDATES, np.array([0, -100, 1, 2])),
    }
    none = got.pop("none")
    assert none == [None, None]  # how JSON writes NaN
    assert all(map(math.isnan, python_losses(folder / "usual", X, np.full(4, -100))))
    for name, losses in want.items():
        np.testing.assert_allclose(got[name], losses, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(got["usual"], got["minus"], rtol=1e-6)


def test_webgpu_leaves_labels_of_unknown_classes_to_the_processor(folder):
    """It does not notice an index that is too large."""
    for name, expected in (("open", True), ("usual", False)):
        facts = json.loads((folder / name / "device.json").read_text())
        model = facts["models"]["train"]
        (labels,) = model["labels"]
        assert labels["classes"] == (None if expected else 10)
        forced = model["webgpu"]["provider"].get("forceCpuNodeNames", [])
        assert any("GatherElements" in n for n in forced) is expected
