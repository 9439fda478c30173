"""``onnxtrain train``: the run ends with the last good state saved, and goes on from there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain.api import CheckpointState
from onnxtrain.cli import main

from . import models

DATA = """
import numpy as np

def make(name):
    rng = np.random.default_rng(0)
    batches = []
    for i in range(6):
        x = rng.normal(size=(6, 4)).astype(np.float32) + 2
        batches.append([x, x.sum(axis=1, keepdims=True)])
    if name == "nan input":
        batches[3][0][2, 1] = np.nan
    elif name == "nan gradient":
        batches[3][0][2, 0] = 0
    elif name == "infinite loss":
        batches[3][1][...] = 1e30
    if name == "without":
        del batches[3]
    return [tuple(b) for b in batches]

def nan_input(): return make("nan input")
def nan_gradient(): return make("nan gradient")
def infinite_loss(): return make("infinite loss")
def without(): return make("without")
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("finite_data.py").write_text(DATA)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x) => (float[N, 1] out)
          <float[4] scale = {1, 1, 1, 1}, float[4] shift = {0, 0.1, 0, 0},
           float[4] mean = {0, 0, 0, 0}, float[4] var = {1, 1, 1, 1},
           float[4, 1] W = {0.5, -0.25, 0.125, 1}, float[1] gain = {1}, int64[1] first = {0}>
        {
            h = BatchNormalization (x, scale, shift, mean, var)
            z = MatMul(h, W)
            x0 = Gather <axis = 1> (x, first)
            size = Abs(x0)
            gain2 = Mul(gain, gain)
            scaled = Mul(size, gain2)
            root = Sqrt(scaled)
            out = Add(z, root)
        }"""
    )
    onnx.save(model, "model.onnx")

    def call(data, *more, output="run"):
        capsys.readouterr()
        code = main([
            "train", "model.onnx", "--data", f"finite_data:{data}", "--loss", "mse", "--epochs",
            "2", "--lr", "0.05", "--output", output, "--metric", "none", *more,
        ])  # fmt: skip
        said = capsys.readouterr()
        return code, said.err

    return call


def saved(folder: str) -> dict[str, np.ndarray]:
    return models.everything(CheckpointState.load_checkpoint(Path(folder) / "checkpoint"))


@pytest.mark.parametrize("bad", [name.replace(" ", "_") for name in models.BAD])
@pytest.mark.parametrize("clip", [(), ("--clip-norm", "0.5")])
def test_saved_and_resumed(run, bad, clip):
    assert run("without", *clip, output="straight")[0] == 0
    code, said = run(bad, *clip)
    assert code == 1
    assert "Traceback" not in said
    assert "(epoch 1, batch 4)" in said
    assert "--resume --output run" in said
    assert "--no-check-finite" in said
    assert all(np.isfinite(v).all() for v in saved("run").values())
    assert saved("run")["step"] == 3
    assert (Path("run") / "history.json").is_file()
    code, said = run(bad, *clip, "--resume")
    assert code == 1
    assert "(epoch 2, batch 4)" in said
    assert run(bad, *clip, "--resume")[0] == 0
    models.assert_same(saved("run"), saved("straight"))
    onnx.checker.check_model(onnx.load("run/model.onnx"), full_check=True)
    steps = [(Path(f) / "steps.csv").read_text() for f in ("run", "straight")]
    assert steps[0] == steps[1]


def test_turned_off(run):
    code, said = run("nan_input", "--no-check-finite")
    assert code == 0, said
    assert np.isnan(saved("run")["W"]).all()
    Path("run.toml").write_text("check-finite = false\n")
    assert run("nan_input", "--config", "run.toml", output="other")[0] == 0


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("--lr", ["nan", "inf", "-0.1", "0", "1e39"], "--lr is"),
        ("--clip-norm", ["nan", "inf", "-1", "0"], "--clip-norm is"),
        ("--weight-decay", ["nan", "inf", "-1"], "--weight-decay is"),
        ("--warmup", ["nan", "inf", "-1"], "--warmup is"),
    ],
)
def test_numbers(run, option, values, words):
    for value in values:
        code, said = run("without", option, value)
        assert code == 1, value
        assert words in said
        assert "Traceback" not in said
        assert not Path("run").exists()


@pytest.mark.parametrize(("option", "value"), [("--clip-norm", "nan"), ("--momentum", "inf")])
def test_numbers_of_artifacts(run, capsys, option, value):
    code = main(["artifacts", "model.onnx", "--output", "made", "--loss", "mse",
                 "--optimizer", "sgd", option, value])  # fmt: skip
    assert code == 1
    assert option in capsys.readouterr().err
    assert not Path("made").exists()
