"""`onnxtrain lora`: what a run leaves, going on with it, and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxtrain import lora
from onnxtrain.api import CheckpointState

from .models import blobs, classifier, write_npz

LOSS = ("--loss", "cross_entropy", "--lr", "0.05")


def scores(path, x, options=None):
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x}, options)[0]


def test_a_run_leaves_the_adapter_in_every_form_and_goes_on(run):
    classifier()
    write_npz()
    data = ("--data", "train.npz", *LOSS, "--epochs", "6")
    result = run("lora", "model.onnx", *data, "--rank", "2", "--targets", "enc_w", "--output", "a")
    assert result.code == 0, result.err
    state = CheckpointState.load_checkpoint("a/checkpoint")
    assert [n for n, _ in state.parameters] == ["enc_w.lora_A.weight", "enc_w.lora_B.weight"]
    again = run("lora", "a/base.onnx", *data, "--rank", "1", "--output", "b")
    assert again.code == 1
    assert "takes adapters as inputs ('enc_w.lora_A.weight')" in " ".join(again.err.split())
    x, _ = blobs(60, seed=1)
    merged = scores("a/model.onnx", x)
    assert np.abs(merged - scores("model.onnx", x)).max() > 0.1
    loaded = ort.LoraAdapter()
    loaded.Load("a/adapter.onnx_adapter")
    options = ort.RunOptions()
    options.add_active_adapter(loaded)
    np.testing.assert_allclose(scores("a/base.onnx", x, options), merged, rtol=1e-4, atol=1e-5)
    again = lora.merge("model.onnx", lora.load_peft("a/adapter"))
    np.testing.assert_allclose(scores(again.SerializeToString(), x), merged, rtol=1e-5, atol=1e-6)
    more = run("lora", "model.onnx", *data, "--adapter", "a/adapter", "--output", "b")
    assert more.code == 0, more.err
    assert np.abs(scores("b/model.onnx", x) - merged).max() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--targets", "encw"), "Near: enc_w"),
        (("--rank", "9", "--targets", "enc_w"), "4 at most"),
        (("--rank", "0"), "--rank must be at least 1"),
        (("--adapter", "nowhere"), "There is no adapter"),
        (("--adapter", "nowhere", "--rank", "16"), "--rank is for a new one"),
        (("--targets", "("), "(missing ), unterminated subpattern)"),
        (("--dora", "--lora-dropout", "0.1"), "dropout"),
    ],
)
def test_mistakes_are_told(run, arguments, said):
    classifier()
    write_npz()
    result = run("lora", "model.onnx", "--data", "train.npz", *LOSS, *arguments)
    assert result.code in (1, 2)
    assert said in " ".join(result.err.split())
    assert not Path("runs").exists()
