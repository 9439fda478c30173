"""`onnxtrain qat`: what a run leaves, going on with it, and mistakes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from .models import blobs, classifier, write_npz

LOSS = ("--loss", "cross_entropy", "--lr", "0.01")


def kinds(path):
    model = onnx.load(path)
    return {i.name: i.data_type for i in model.graph.initializer}


def test_a_run_leaves_integers_and_goes_on(run):
    classifier()
    write_npz()
    data = ("--data", "train.npz", "--val", "0.2", *LOSS)
    result = run("qat", "model.onnx", *data, "--epochs", "2", "--output", "a", "--weight-bits", "4")
    assert result.code == 0, result.err
    assert "Rounded, before training" in result.out + result.err
    stored = kinds("a/model.onnx")
    assert stored["enc_w_quantized"] == onnx.TensorProto.INT4
    assert not any(name.endswith("_factor") for name in stored)
    x, y = blobs(60, seed=1)
    (scores,) = ort.InferenceSession("a/model.onnx").run(None, {"x": x})
    assert (scores.argmax(1) == y).mean() > 0.5
    more = run("qat", "model.onnx", *data, "--epochs", "3", "--output", "a", "--weight-bits", "4",
               "--resume")  # fmt: skip
    assert more.code == 0, more.err
    other = run("qat", "model.onnx", *data, "--epochs", "3", "--output", "a", "--resume")
    assert other.code == 1
    assert "--weight-bits" in other.err
    again = run("qat", "a/model.onnx", *data, "--epochs", "1", "--output", "b")
    assert again.code == 0, again.err
    assert kinds("b/model.onnx") == kinds("a/model.onnx")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--weight-bits", "3"), "3 bits"),
        (("--weight-bits", "4", "--eight-bits", "encw"), "enc_w"),
        (("--activation-bits", "9"), "9 bits"),
        (("--observer", "mean"), "no observer 'mean'"),
        (("--calibration-rows", "4"), "at least 8"),
        (("--exclude", "nothing"), "nothing"),
        (("--task", "causal-lm", "--tokenizer", "t.json"), "no --task"),
    ],
)
def test_mistakes_are_told(run, arguments, said):
    classifier()
    write_npz()
    result = run("qat", "model.onnx", "--data", "train.npz", *LOSS, "--epochs", "1", *arguments)
    assert result.code != 0
    assert said in result.err


def test_weights_alone_and_fixed_scales(run):
    classifier()
    write_npz()
    result = run(
        "qat", "model.onnx", "--data", "train.npz", *LOSS, "--epochs", "1",
        "--activation-bits", "0", "--fixed-scales", "--per-tensor", "--output", "c",
    )  # fmt: skip
    assert result.code == 0, result.err
    model = onnx.load("c/model.onnx")
    assert "QuantizeLinear" not in [n.op_type for n in model.graph.node]
    scales = [i for i in model.graph.initializer if i.name.endswith("_scale")]
    assert scales
    assert all(np.prod(i.dims) == 1 for i in scales)
