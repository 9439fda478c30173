"""The README's main command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from onnxtrain.cli.demo import split
from onnxtrain.data import digits


def test_demo(run):
    result = run("demo", "--output", "out")
    assert result.code == 0, result.err
    accuracy = float(result.out.split("Test accuracy ")[1].split("%")[0]) / 100
    assert accuracy >= 0.97
    _, test = split(0)
    session = ort.InferenceSession("out/model.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"image": test.arrays["image"]})
    exact = float((scores.argmax(axis=1) == test.arrays["labels"]).mean())
    assert round(exact, 4) == round(accuracy, 4)
    assert "true \\ predicted" in result.out
    for name in ("model.onnx", "checkpoint", "report.html", "loss.svg", "confusion.svg"):
        assert Path("out", name).is_file()
    again = run("demo", "--output", "out", "--epochs", "1")
    assert again.code == 1
    assert "--overwrite" in again.err
    assert "--resume" not in again.err


def test_split_keeps_rows_apart_and_classes_alike():
    train, test = split(3)
    assert (train.rows, test.rows) == (1437, 360)
    counts = np.bincount(test.arrays["labels"])
    assert counts.max() - counts.min() <= 2
    together = np.concatenate([train.arrays["image"], test.arrays["image"]])
    images, _ = digits()
    assert together.sum() == np.float32(images.sum())


def test_demo_needs_neither_torch_nor_sklearn():
    code = (
        "import sys\n"
        "for name in ('torch', 'sklearn', 'PIL', 'numba', 'pyarrow', 'yaml', 'tensorboardX'):\n"
        "    sys.modules[name] = None\n"
        "from onnxtrain.cli import main\n"
        "sys.exit(main(['demo', '--epochs', '1', '--output', 'out']))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert Path("out/loss.svg").is_file()
    assert not Path("out/loss.png").exists()


def test_the_command_line_weighs_nothing_on_the_device_half():
    code = (
        "import sys, onnxtrain.api\n"
        "assert not {'click', 'rich', 'onnxtrain.cli'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_is_quick_to_import():
    code = (
        "import sys\n"
        "from onnxtrain.cli import main\n"
        "main(['train', '--help'])\n"
        "assert not {'onnx', 'onnxruntime', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
