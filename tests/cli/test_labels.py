"""Labels on the command line: which do not count, which are wrong, and losses on probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain.api import CheckpointState

from .models import HEAD, blobs, classifier, write_npz
from .test_train import accuracy_of

TRAIN = ("train", "model.onnx", "--data", "train.npz", "--lr", "0.1")
LOSS = ("--loss", "cross_entropy")


def ignoring(label, rows=120):
    x, labels = blobs(rows)
    labels[::4] = label
    return x, labels


@pytest.mark.parametrize("label", [-100, -1, 255])
def test_rows_that_do_not_count(run, label):
    """They change nothing: the run is the one on the other rows."""
    classifier()
    x, labels = ignoring(label)
    counts = labels != label
    option = () if label == -100 else ("--ignore-index", label)
    for name, rows in (("all", slice(None)), ("some", counts)):
        write_npz(x=x[rows], labels=labels[rows])
        result = run(
            *TRAIN, *LOSS, *option, "--epochs", "12", "--val", "0.2", "--output", name,
        )  # fmt: skip
        assert result.code == 0, result.err
        said = f"train.npz: 30 rows left out, with no other label than {label}" in result.err
        assert said is (name == "all")
    states = [CheckpointState.load_checkpoint(Path(n, "checkpoint")) for n in ("all", "some")]
    for name, parameter in states[0].parameters:
        np.testing.assert_array_equal(parameter.data, states[1].parameters[name].data)
    assert accuracy_of("all/model.onnx", x[counts], labels[counts]) > 0.95
    settings = json.loads(Path("all/run.json").read_text())["settings"]
    assert settings["ignore_index"] == label


def tagger(path="model.onnx"):
    """x: N×5×4 → scores: N×3×5, a class for each of five places."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        HEAD + "g (float[N, 5, 4] x) => (float[N, 3, 5] scores)"
        "{ h = MatMul(x, w) scores = Transpose <perm = [0, 2, 1]> (h) }"
    )
    value = rng.standard_normal((4, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, "w"))
    onnx.save(model, path)


def test_labels_that_do_not_count_within_rows(run):
    tagger()
    x, labels = blobs(600)
    x, labels = x.reshape(-1, 5, 4), labels.reshape(-1, 5)
    labels[:, 3:] = -100
    labels[7] = -100
    np.savez("train.npz", x=x, labels=labels)
    result = run(*TRAIN, *LOSS, "--epochs", "20", "--val", "0.2", "--output", "out")
    assert result.code == 0, result.err
    assert "train.npz: 1 row left out" in result.err
    history = json.loads(Path("out/history.json").read_text())
    assert history["val_accuracy"][-1] > 0.95
    assert np.isfinite(history["loss"]).all()
    labels[9, 1] = -1
    np.savez("train.npz", x=x, labels=labels)
    result = run(*TRAIN, *LOSS)
    assert result.code == 1
    assert "1 row out of range, the first is row 9 with -1" in result.err


def test_only_labels_that_do_not_count(run):
    classifier()
    write_npz(labels=np.full(120, -100))
    result = run(*TRAIN, *LOSS)
    assert result.code == 1
    assert "every label is -100, which does not count" in result.err
    assert not Path("runs").exists()


def test_ignore_index_is_for_classes(run):
    classifier()
    write_npz()
    result = run(*TRAIN, "--loss", "mse", "--ignore-index", "3")
    assert result.code == 1
    assert "--ignore-index 3 is for losses that take class numbers; mse takes none" in result.err


def test_resuming_with_another_label(run):
    classifier()
    write_npz()
    assert run(*TRAIN, *LOSS, "--epochs", "1", "--output", "out").code == 0
    result = run(*TRAIN, *LOSS, "--resume", "--output", "out", "--ignore-index", "-1")
    assert result.code == 1
    assert "started with --ignore-index -100, and now it is -1" in result.err


def test_batches_with_wrong_labels(run, folder, monkeypatch):
    """Data that a function makes are seen only when they are trained on."""
    classifier()
    Path("source.py").write_text(
        "import numpy as np\n"
        "def data():\n"
        "    x = np.ones((6, 4), np.float32)\n"
        "    return [(x, np.array([0, 1, 2, 0, 1, 2])), (x, np.array([0, 1, -1, 0, 1, 2]))]\n"
    )
    monkeypatch.syspath_prepend(folder)
    result = run("train", "model.onnx", "--data", "source:data", *LOSS, "--output", "out")
    assert result.code == 1
    assert "Input 'labels' has the label -1 in row 2, and labels are classes 0 to 2" in result.err


def test_artifacts(run):
    classifier()
    arguments = ("artifacts", "model.onnx", "--loss", "nll", "--ignore-index", "-1")
    assert run(*arguments, "--output", "out").code == 0
    model = onnx.load("out/training_model.onnx")
    (entry,) = (p.value for p in model.metadata_props if p.key == "onnxtrain.artifact")
    assert json.loads(entry)["labels"] == [{"input": "labels", "classes": 3, "ignore_index": -1}]


def test_config_file(run):
    classifier()
    x, labels = ignoring(-7)
    write_npz(x=x, labels=labels)
    Path("run.toml").write_text(
        'data = "train.npz"\nloss = "cross_entropy"\nignore-index = -7\nepochs = 1\n'
    )
    result = run("train", "model.onnx", "--config", "run.toml", "--output", "out")
    assert result.code == 0, result.err
    assert "30 rows left out, with no other label than -7" in result.err


# --- probabilities --------------------------------------------------------------------------------


def with_end(nodes, path="model.onnx"):
    """x: N×4 → p: N×3, with a Softmax or the like behind the scores z."""
    model = onnx.parser.parse_model(
        HEAD + f"g (float[N, 4] x) => (float[N, 3] p) {{ h = MatMul(x, w) z = Add(h, b) {nodes} }}"
    )
    for name, shape in {"w": (4, 3), "b": (3,)}.items():
        value = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(model, path)


SOFTMAX = "p = Softmax <axis = 1> (z)"


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
def test_a_loss_on_probabilities(run, loss):
    """Warned of by `train` and `inspect`; what they say works."""
    with_end(SOFTMAX)
    write_npz()
    result = run(*TRAIN, "--loss", loss, "--epochs", "1", "--output", "bad")
    assert result.code == 0, result.err
    assert "Warning: " in result.err
    assert "'p'" in result.err
    assert "--loss-output z" in result.err
    assert "UserWarning" not in result.err
    assert result.err.count("Warning: ") == 1
    assert run(*TRAIN, "--loss", loss, "--quiet", "--output", "quiet").err == ""

    said = run("inspect", "model.onnx")
    assert "Warning: the output 'p' comes out of a Softmax" in said.out
    assert "--loss cross_entropy --loss-output z" in said.out
    (end,) = json.loads(run("inspect", "model.onnx", "--json").out)["endings"]
    assert end == {"value": "p", "function": "Softmax", "scores": "z"}

    advised = ("--loss", "cross_entropy", "--loss-output", "z")
    result = run(*TRAIN, *advised, "--epochs", "30", "--val", "0.2", "--output", "good")
    assert result.code == 0, result.err
    assert "Warning" not in result.err
    history = json.loads(Path("good/history.json").read_text())
    x, labels = blobs()
    assert history["val_accuracy"][-1] == pytest.approx(1.0)
    assert accuracy_of("good/model.onnx", x, labels) > 0.95
    trained = onnx.load("good/model.onnx")
    assert [o.name for o in trained.graph.output] == ["p"]
    assert [n.op_type for n in trained.graph.node] == ["MatMul", "Add", "Softmax"]
    assert "predicted" in Path("good/report.html").read_text()


def test_a_sigmoid_twice(run):
    with_end("p = Sigmoid (z)")
    x, labels = blobs()
    write_npz(labels=None, x=x, target=np.eye(3, dtype=np.float32)[labels])
    result = run(*TRAIN, "--loss", "bce_with_logits", "--epochs", "1", "--output", "bad")
    assert "applies a Sigmoid to them itself" in result.err
    assert "--loss-output z" in result.err
    for loss in (("bce",), ("bce_with_logits", "--loss-output", "z")):
        result = run(*TRAIN, "--loss", *loss, "--epochs", "1", "--output", f"good-{loss[0]}")
        assert result.code == 0, result.err
        assert "Warning" not in result.err
    assert (
        "--loss bce_with_logits --loss-output z, or with --loss bce"
        in run("inspect", "model.onnx").out
    )


RIGHT = {
    "LogSoftmax for nll": ("p = LogSoftmax <axis = 1> (z)", "nll"),
    "LogSoftmax for cross entropy": ("p = LogSoftmax <axis = 1> (z)", "cross_entropy"),
    "logarithm of a Softmax": ("s = Softmax <axis = 1> (z) p = Log (s)", "nll"),
    "scores": ("p = Identity (z)", "cross_entropy"),
    "Softmax inside": ("s = Softmax <axis = 1> (z) p = Mul (s, z)", "cross_entropy"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_no_warning_where_nothing_is_wrong(run, name):
    nodes, loss = RIGHT[name]
    with_end(nodes)
    write_npz()
    result = run(*TRAIN, "--loss", loss, "--epochs", "1", "--output", "out")
    assert result.code == 0, result.err
    assert "Warning" not in result.err
    assert "Warning" not in run("inspect", "model.onnx").out


def test_a_value_inside_the_model_that_is_not_there(run):
    with_end(SOFTMAX)
    write_npz()
    result = run(*TRAIN, *LOSS, "--loss-output", "zz")
    assert result.code == 1
    assert "--loss-output 'zz' is not known. Choose from: p." in result.err


def test_the_loss_of_a_value_that_the_output_does_not_show(run):
    """The hidden layer is no prediction of the model: nothing is measured with the output."""
    classifier()
    x, labels = blobs()
    np.savez("train.npz", x=x, labels=labels)
    result = run(*TRAIN, *LOSS, "--loss-output", "h", "--epochs", "1", "--output", "out")
    assert result.code == 0, result.err
    assert "accuracy" not in json.loads(Path("out/history.json").read_text())
    result = run(*TRAIN, *LOSS, "--loss-output", "h", "--metric", "accuracy", "--output", "two")
    assert "leave --metric out" in result.err
