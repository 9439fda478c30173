"""Entry points: what a package adds is found by its name, without an import of onnxtrain's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnxtrain
from onnxtrain import plugins

from .models import classifier, regressor

POINTS = """\
[onnxtrain.gradients]
cube = other_package:add_gradients

[onnxtrain.losses]
cubic = other_package:CubicLoss
broken = other_package:missing

[onnxtrain.optimizers]
halving = other_package:halving

[onnxtrain.loggers]
shouting = other_package:Shouting

[onnxtrain.data]
.blob = other_package:read_blob
made = other_package:make_data
"""
CODE = """\
from pathlib import Path

import numpy as np

from onnxtrain import optim
from onnxtrain.losses import Loss


def add_gradients():
    from onnxtrain.extend import gradient

    @gradient("Cube", domain="other")
    def cube(op, dy, y, x):
        return dy * x * x * 3.0


class CubicLoss(Loss):
    target = "number"

    def elements(self, op, x, t):
        d = op.Abs(x - t)
        return d * d * d


def halving(**options):
    return optim.sgd(**options)


class Shouting:
    def __init__(self, folder):
        self.path = Path(folder) / "shouted.txt"

    def start(self, run, settings):
        self.path.write_text("START\\n")

    def log(self, values, step):
        with self.path.open("a") as file:
            file.write(f"{step} {sorted(values)}\\n".upper())

    def finish(self):
        pass


def read_blob(path):
    values = np.fromfile(path, np.float32).reshape(-1, 4)
    return values[:, :3].copy(), values[:, 3:].copy()


def make_data(text):
    rows = int(text)
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    return {"x": x, "target": x.sum(axis=1, keepdims=True)}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package beside onnxtrain, as pip would have put it there."""
    (tmp_path / "other_package.py").write_text(CODE)
    about = tmp_path / "other_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("other_package", None)


def test_names_and_errors(package, monkeypatch):
    assert plugins.names("losses") == ["broken", "cubic"]
    assert plugins.load("losses", "cubic").__name__ == "CubicLoss"
    with pytest.raises(plugins.PluginError, match="other-package adds as other_package:missing"):
        plugins.load("losses", "broken")
    with pytest.raises(plugins.PluginError, match="there are: broken, cubic"):
        plugins.load("losses", "square")
    second = package / "more" / "third_package-1.0.dist-info"
    second.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(second.parent))
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (second / "entry_points.txt").write_text("[onnxtrain.losses]\ncubic = third:Other\n")
    with pytest.raises(plugins.PluginError, match=r"other-package, third\. Uninstall all but one"):
        plugins.load("losses", "cubic")


def test_all_of_them_on_the_command_line(package, run):
    regressor("model.onnx")
    arguments = (
        "--loss", "cubic", "--optimizer", "halving", "--log", "shouting", "--epochs", "2",
    )  # fmt: skip
    result = run("train", "model.onnx", "--data", "made:32", *arguments, "--output", "out")
    assert result.code == 0, result.err
    history = json.loads(Path("out/history.json").read_text())
    assert history["loss"][-1] < history["loss"][0]
    assert Path("out/shouted.txt").read_text().startswith("START\n1 ['STEP/LOSS'")
    x = np.random.default_rng(1).standard_normal((16, 3)).astype(np.float32)
    np.concatenate([x, x[:, :1]], axis=1).tofile("data.blob")
    result = run("train", "model.onnx", "--data", "data.blob", *arguments, "--output", "blob")
    assert result.code == 0, result.err
    result = run("train", "model.onnx", "--data", "made:no", *arguments)
    assert result.code == 1
    assert "another package adds as 'made' raised ValueError" in result.err
    result = run("train", "model.onnx", "--data", "made:8", "--loss", "cubics")
    assert "mean 'cubic'" in result.err


GRADIENT = """
import onnx, onnx.parser, onnxtrain
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 18, "other": 1]>'
    "g (float[N] x) => (float s) { y = other.Cube(x) s = ReduceSum<keepdims=0>(y) }"
)
model.graph.value_info.append(
    onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N"])
)
made = onnxtrain.differentiate(model, wrt=["x"], of="s")
print([n.op_type for n in made.graph.node])
"""


def test_a_gradient_of_another_package(package):
    """In a process of its own: rules stay where they are registered."""
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", GRADIENT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Mul" in done.stdout


def test_nothing_is_imported_for_nothing(package):
    classifier(str(package / "model.onnx"))
    onnxtrain.differentiate(str(package / "model.onnx"), wrt=["head_b"], vjp=True)
    assert "other_package" not in sys.modules
