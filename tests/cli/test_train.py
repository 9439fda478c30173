"""`onnxtrain train`: data of every kind, what a run leaves, Ctrl-C and going on."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain.api import CheckpointState

from .models import blobs, classifier, regressor, save, write_csv, write_npz

LOSS = ("--loss", "cross_entropy", "--lr", "0.02")


def accuracy_of(path, x, labels):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {session.get_inputs()[0].name: x})
    return float((scores.argmax(axis=1) == labels).mean())


def parameters(path):
    state = CheckpointState.load_checkpoint(path)
    return {name: p.data.copy() for name, p in state.parameters}


def test_a_run_leaves_everything(run):
    classifier()
    write_npz()
    x, labels = blobs(60, seed=1)
    np.savez("val.npz", x=x, y=labels)
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--val", "val.npz", *LOSS, "--epochs", "12",
        "--schedule", "cosine", "--warmup", "0.1", "--clip-norm", "1.0", "--output", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    names = {p.name for p in Path("out").iterdir()}
    assert names >= {
        "model.onnx", "checkpoint", "report.html", "history.csv", "history.json", "steps.csv",
        "loss.svg", "run.json", "artifacts",
    }  # fmt: skip
    assert accuracy_of("out/model.onnx", x, labels) > 0.95
    with Path("out/history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["epoch"] for r in rows] == [str(i) for i in range(1, 13)]
    history = json.loads(Path("out/history.json").read_text())
    assert [float(r["val_accuracy"]) for r in rows] == history["val_accuracy"]
    assert history["loss"][-1] < history["loss"][0] / 2
    exact = accuracy_of("out/model.onnx", x, labels)
    assert history["val_accuracy"][-1] == pytest.approx(exact)
    assert len(Path("out/steps.csv").read_text().splitlines()) == 1 + 12 * 4
    assert "<svg" in Path("out/loss.svg").read_text()
    assert "out/model.onnx" in result.out


def test_png_with_pillow(run):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    classifier()
    write_npz()
    arguments = ("train", "model.onnx", "--data", "train.npz", *LOSS, "--epochs", "1")
    assert run(*arguments, "--output", "out").code == 0
    with image.open("out/loss.png") as opened:
        assert opened.size == (1280, 720)
        assert len(set(opened.convert("RGB").resize((64, 36)).tobytes())) > 3


def test_frozen_parameters_stay(run):
    classifier()
    write_npz()
    result = run(
        "train", "model.onnx", "--data", "train.npz", *LOSS, "--freeze", "enc_*", "--output", "out"
    )
    assert result.code == 0, result.err
    before, after = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer}
        for p in ("model.onnx", "out/model.onnx")
    )
    np.testing.assert_array_equal(before["enc_w"], after["enc_w"])
    assert not np.array_equal(before["head_w"], after["head_w"])


def test_train_only_what_is_named(run):
    classifier()
    write_npz()
    result = run(
        "train", "model.onnx", "--data", "train.npz", *LOSS, "--train", "head_b", "--output", "out"
    )
    assert result.code == 0, result.err
    assert list(parameters("out/checkpoint")) == ["head_b"]


def test_npy_pair(run):
    classifier()
    x, labels = blobs()
    np.save("x.npy", x)
    np.save("y.npy", labels)
    result = run("train", "model.onnx", "--data", "x.npy,y.npy", *LOSS, "--epochs", "8")
    assert result.code == 0, result.err
    assert accuracy_of("runs/model/model.onnx", x, labels) > 0.95


def table_data(rows=64):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    return x, x @ np.array([1.0, -2.0, 0.5])


def columns():
    x, y = table_data()
    return {"a": list(x[:, 0]), "b": list(x[:, 1]), "c": list(x[:, 2]), "price": list(y)}


REGRESSION = ("--loss", "mse", "--lr", "0.1", "--epochs", "30")


def assert_learned():
    (found,) = onnx.load("runs/regressor/model.onnx").graph.initializer
    weights = onnx.numpy_helper.to_array(found).reshape(-1)
    np.testing.assert_allclose(weights, [1.0, -2.0, 0.5], atol=0.05)


def test_csv(run):
    regressor()
    write_csv("houses.csv", columns())
    result = run("train", "regressor.onnx", "--data", "houses.csv", *REGRESSION, "--val", "0.25")
    assert result.code == 0, result.err
    assert "val_mae" in result.out
    assert_learned()


def test_csv_chosen_columns(run):
    regressor()
    all_of_them = {"id": list(range(64)), "price": columns()["price"], **columns()}
    write_csv("houses.csv", all_of_them)
    result = run(
        "train", "regressor.onnx", "--data", "houses.csv", *REGRESSION,
        "--target", "price", "--features", "a,b,c",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert_learned()


def test_csv_with_named_classes(run):
    classifier()
    x, labels = blobs()
    names = np.array(["cat", "dog", "eel"])[labels]
    features = {f"f{i}": list(x[:, i]) for i in range(4)}
    write_csv("pets.csv", {**features, "label": list(names)})
    result = run("train", "model.onnx", "--data", "pets.csv", *LOSS, "--epochs", "8")
    assert result.code == 0, result.err
    assert json.loads(Path("runs/model/classes.json").read_text()) == ["cat", "dog", "eel"]
    assert accuracy_of("runs/model/model.onnx", x, labels) > 0.95
    write_csv("more.csv", {**features, "label": ["cow"] * 120})
    result = run("train", "model.onnx", "--data", "pets.csv", "--val", "more.csv", *LOSS)
    assert result.code == 1
    assert "the class 'cow'" in result.err


def test_parquet(run):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    regressor()
    parquet.write_table(arrow.table(columns()), "houses.parquet")
    result = run("train", "regressor.onnx", "--data", "houses.parquet", *REGRESSION)
    assert result.code == 0, result.err
    assert_learned()


def test_parquet_with_lists(run):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    regressor()
    x, y = table_data()
    parquet.write_table(arrow.table({"x": x.tolist(), "price": y}), "houses.parquet")
    result = run("train", "regressor.onnx", "--data", "houses.parquet", *REGRESSION)
    assert result.code == 0, result.err
    assert_learned()


def test_folder_of_images(run):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number, name in enumerate(("dark", "light")):
        Path("images", name).mkdir(parents=True)
        for i in range(12):
            shade = 40 + 150 * number + i
            image.new("RGB", (9, 7), (shade, shade, shade)).save(f"images/{name}/{i}.png")
    save(
        "g (float[N, 3, 2, 2] x) => (float[N, 2] y) <float[12, 2] w = "
        f"{{{','.join(['0.01'] * 24)}}}, float[2] b = {{0, 0}}>"
        "{ f = Flatten(x) m = MatMul(f, w) y = Add(m, b) }"
    )
    result = run(
        "train", "model.onnx", "--data", "images", *LOSS, "--epochs", "60", "--batch-size", "8",
        "--lr", "0.1",
    )  # fmt: skip
    assert result.code == 0, result.err
    history = json.loads(Path("runs/model/history.json").read_text())
    assert history["train_accuracy"][-1] == 1.0
    assert json.loads(Path("runs/model/classes.json").read_text()) == ["dark", "light"]


def test_function(run):
    classifier()
    Path("mydata.py").write_text(
        "import numpy as np\n"
        "def arrays():\n"
        "    x = np.eye(4, dtype=np.float32)[np.arange(40) % 3]\n"
        "    return x, np.arange(40) % 3\n"
        "class Batches:\n"
        "    def __iter__(self):\n"
        "        x, y = arrays()\n"
        "        return iter([(x[i:i + 10], y[i:i + 10]) for i in range(0, 40, 10)])\n"
        "def batches():\n"
        "    return Batches()\n"
    )
    for function in ("arrays", "batches"):
        result = run(
            "train", "model.onnx", "--data", f"mydata:{function}", *LOSS, "--output", function
        )
        assert result.code == 0, result.err
        assert Path(function, "report.html").is_file()


@pytest.mark.parametrize("suffix", [".toml", ".yaml"])
def test_configuration_file(run, suffix):
    text = {
        ".toml": 'loss = "cross_entropy"\nepochs = 2\nbatch-size = 40\nfreeze = ["enc_*"]\n',
        ".yaml": "loss: cross_entropy\nepochs: 2\nbatch-size: 40\nfreeze: ['enc_*']\n",
    }[suffix]
    if suffix == ".yaml":
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    elif sys.version_info < (3, 11):
        pytest.importorskip("tomli", reason="Python 3.10 without tomli")
    classifier()
    write_npz()
    Path(f"run{suffix}").write_text(text)
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--config", f"run{suffix}", "--epochs", "3",
        "--output", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    settings = json.loads(Path("out/run.json").read_text())["settings"]
    assert (settings["epochs"], settings["batch_size"], settings["freeze"]) == (3, 40, ["enc_*"])
    assert len(Path("out/steps.csv").read_text().splitlines()) == 1 + 3 * 3


def test_tensorboard(run):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    classifier()
    write_npz()
    result = run(
        "train", "model.onnx", "--data", "train.npz", *LOSS, "--tensorboard", "--output", "out"
    )
    assert result.code == 0, result.err
    (events,) = Path("out/tensorboard").iterdir()
    data = events.read_bytes()
    assert b"step/loss" in data
    assert b"epoch/train_accuracy" in data


def test_fixed_batch(run):
    classifier(batch="8")
    write_npz()  # 120 rows, 15 batches
    result = run(
        "train", "model.onnx", "--data", "train.npz", *LOSS, "--batch-size", "8", "--val", "0.2",
        "--output", "out", "--epochs", "1",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert len(Path("out/steps.csv").read_text().splitlines()) == 1 + 12


@pytest.mark.parametrize("validation", [(), ("--val", "val.npz")])
def test_a_fixed_batch_that_does_not_divide(run, validation):
    x, labels = blobs(21)
    classifier(batch="8")
    classifier("open.onnx")
    np.savez("train.npz", x=x, labels=labels)
    np.savez("val.npz", x=x[:11], labels=labels[:11])
    arguments = ("--data", "train.npz", *LOSS, "--batch-size", "8", "--epochs", "1", *validation)
    result = run("train", "model.onnx", *arguments, "--output", "fixed")
    assert result.code == 0, result.err
    assert "batches of exactly 8: 5 of 21 rows are left out" in result.err
    other = run("train", "open.onnx", *arguments, "--drop-last", "--output", "open")
    assert other.code == 0, other.err
    fixed, free = (
        json.loads(Path(f, "history.json").read_text()) for f in ("fixed", "open")
    )  # the rows that fill the last batch do not count
    assert fixed == {name: pytest.approx(values, rel=1e-5) for name, values in free.items()}


OWN_LOADER = """
import numpy as np

class Loader:
    def __iter__(self):
        yield {"x": np.zeros((4, 4), np.float32), "labels": np.zeros(4, np.int64)}
        raise KeyError("the second file")

loader = Loader()

def once():
    yield {"x": np.zeros((4, 4), np.float32), "labels": np.zeros(4, np.int64)}
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("loader", "raised KeyError in own_loader.py, line 7: 'the second file'. That is your own"),
        ("once", "gave a generator, which can be iterated once. Return a list"),
    ],
)
def test_batches_that_the_users_code_cannot_make(run, monkeypatch, name, says):
    classifier()
    Path("own_loader.py").write_text(OWN_LOADER)
    monkeypatch.syspath_prepend(".")
    result = run("train", "model.onnx", "--data", f"own_loader:{name}", *LOSS, "--epochs", "2")
    assert result.code == 1
    assert says in result.err
    sys.modules.pop("own_loader")


def overfitting(rows=24):
    """Data of which validation has only noise, so that training ruins its loss."""
    x, labels = blobs(rows)
    np.savez("train.npz", x=x, labels=labels)
    np.savez("val.npz", x=x[:12], labels=(labels[:12] + 1) % 3)


def test_the_best_model_is_kept_and_training_stops_early(run):
    classifier()
    overfitting()
    arguments = ("--data", "train.npz", "--val", "val.npz", *LOSS, "--output", "out")
    result = run("train", "model.onnx", *arguments, "--epochs", "30", "--early-stopping", "3")
    assert result.code == 0, result.err
    losses = json.loads(Path("out/history.json").read_text())["val_loss"]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 3 < 30
    assert f"Stopped after epoch {len(losses)}: val_loss brought no progress for 3" in result.err
    assert f"that of epoch {best + 1}" in result.err
    assert f"val_loss {losses[best]:.4g}" in result.out.splitlines()[0]
    cards = Path("out/report.html").read_text().split("<h2>")[0]
    assert f"<b>{best + 1}</b><span>best epoch</span>" in cards
    assert f"<b>{losses[best]:.4g}</b><span>val loss</span>" in cards
    data = np.load("val.npz")
    session = ort.InferenceSession("out/model.onnx", providers=["CPUExecutionProvider"])
    scores = session.run(None, {"x": data["x"]})[0].astype(float)
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    exact = -logs[np.arange(12), data["labels"]].mean()
    assert exact == pytest.approx(losses[best], rel=1e-4)
    assert parameters("out/best").keys() == parameters("out/checkpoint").keys()


def test_the_best_value_is_remembered_by_a_resumed_run(run):
    classifier()
    overfitting()
    arguments = (
        "train", "model.onnx", "--data", "train.npz", "--val", "val.npz", *LOSS, "--output", "out",
        "--keep", "best", "--monitor", "val_accuracy", "--metric", "accuracy",
    )  # fmt: skip
    assert run(*arguments, "--epochs", "2").code == 0
    before = parameters("out/best")
    result = run(*arguments, "--epochs", "4", "--resume")
    assert result.code == 0, result.err
    scores = json.loads(Path("out/history.json").read_text())["val_accuracy"]
    if max(scores[2:]) <= max(scores[:2]):
        assert all(np.array_equal(before[n], v) for n, v in parameters("out/best").items())
    assert f"that of epoch {int(np.argmax(scores)) + 1}" in result.err


@pytest.mark.parametrize("metric", ["f1", "precision", "recall", "auc"])
def test_metrics_of_classes(run, metric):
    classifier()
    write_npz()
    arguments = ("--data", "train.npz", "--val", "0.3", *LOSS, "--epochs", "8", "--output", "out")
    result = run("train", "model.onnx", *arguments, "--metric", metric)
    assert result.code == 0, result.err
    assert json.loads(Path("out/history.json").read_text())[f"val_{metric}"][-1] > 0.8


def test_a_fixed_batch_of_numbers(run):
    save(
        "g (float[8, 3] x) => (float[8, 1] y) <float[3, 1] w = {0.1, 0.2, 0.3}>{ y = MatMul(x, w) }"
    )
    x = np.random.default_rng(0).standard_normal((21, 3)).astype(np.float32)
    np.savez("train.npz", x=x, target=x.sum(axis=1, keepdims=True))
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--loss", "mse", "--batch-size", "8",
        "--val", "train.npz", "--epochs", "1", "--output", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "The last 5 rows of the validation data are left out" in result.err


@pytest.mark.parametrize("other", ["g (float[N, 4] x) => (float[N, 1] y, float s)",
                                   "g (float[N, 4] x) => (float s, float[N, 1] y)"])  # fmt: skip
def test_an_output_that_is_a_single_number(run, other):
    save(
        f"{other} <float[4, 1] w = {{1, 1, 1, 1}}>"
        "{ y = MatMul(x, w) s = ReduceMean<keepdims=0>(y) }"
    )
    np.savez("train.npz", x=blobs()[0], target=np.ones((120, 1), np.float32))
    result = run(
        "train", "model.onnx", "--data", "train.npz", "--loss", "mse", "--loss-output", "y",
        "--val", "0.2", "--epochs", "1", "--output", "out",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert Path("out/report.html").is_file()


def test_quiet_says_results_only(run):
    classifier()
    write_npz()
    result = run("train", "model.onnx", "--data", "train.npz", *LOSS, "--quiet")
    assert result.code == 0
    assert result.err == ""
    assert "\x1b" not in result.out


def test_going_on_gives_the_same_as_one_run(run):
    classifier()
    write_npz()
    common = ("train", "model.onnx", "--data", "train.npz", *LOSS, "--val", "0.2")
    assert run(*common, "--epochs", "5", "--output", "whole").code == 0
    assert run(*common, "--epochs", "2", "--output", "parts").code == 0
    assert run(*common, "--epochs", "5", "--output", "parts", "--resume").code == 0
    whole, parts = parameters("whole/checkpoint"), parameters("parts/checkpoint")
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name])
    for file in ("history.csv", "steps.csv"):
        assert Path("whole", file).read_text() == Path("parts", file).read_text()


def test_the_newest_run_is_taken_and_named(run):
    classifier()
    write_npz()
    common = ("train", "model.onnx", "--data", "train.npz", *LOSS, "--epochs", "1")
    for folder in ("runs/model", "runs/model-2"):
        assert run(*common).code == 0
        assert Path(folder, "model.onnx").is_file()
    result = run(*common, "--overwrite")
    assert "Overwriting the run in runs/model-2, the newest of 2" in result.err
    assert sorted(p.name for p in Path("runs").iterdir()) == ["model", "model-2"]
    result = run(*common[:-1], "2", "--resume")
    assert "Going on with the run in runs/model-2, the newest of 2" in result.err
    assert "other data" not in result.err
    x, labels = blobs(seed=1)
    np.savez("other.npz", x=x, labels=labels)
    other = run("train", "model.onnx", "--data", "other.npz", *LOSS, "--epochs", "3", "--resume")
    assert "Going on with the run in runs/model-2, the newest of 2" in other.err
    assert "The run in runs/model-2 was started with other data than other.npz" in other.err
    done = run(*common[:-1], "2", "--resume")
    assert "has had 3 epochs already, so nothing is trained" in done.err
    assert "so nothing is trained" not in other.err


def test_other_data_are_told(run):
    classifier()
    write_npz()
    common = ("train", "model.onnx", *LOSS, "--output", "out")
    assert run(*common, "--data", "train.npz", "--epochs", "1").code == 0
    x, labels = blobs(seed=1)
    np.savez("other.npz", x=x, labels=labels)
    result = run(*common, "--data", "other.npz", "--epochs", "2", "--resume")
    assert result.code == 0
    assert "started with other data than other.npz" in result.err


SIGNAL_IN_STEP_9 = """
import os, sys
from onnxtrain.runtime.loop.trainer import Trainer
from onnxtrain.cli import main
run_batch = Trainer._run_batch
number = int(sys.argv.pop(1))
def signalled(self, values):
    if self.step == 8:
        os.kill(os.getpid(), number)
    run_batch(self, values)
Trainer._run_batch = signalled
raise SystemExit(main())
"""
SIGNALS = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143)}


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way")
@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_saves_and_resume_goes_on_exactly(run, name):
    number, code = SIGNALS[name]
    classifier()
    write_npz()
    arguments = ["train", "model.onnx", "--data", "train.npz", *LOSS, "--val", "0.2"]
    arguments += ["--schedule", "cosine", "--batch-size", "16", "--epochs", "4"]
    assert run(*arguments, "--output", "whole").code == 0
    script = [sys.executable, "-c", SIGNAL_IN_STEP_9, str(int(number))]
    command = [*script, *arguments, "--output", "parts"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert "everything is saved in parts" in ended.stderr
    assert "--resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(Path("parts/steps.csv").read_text().splitlines()) == 1 + 9
    assert not Path("parts/model.onnx").exists()
    result = run(*arguments, "--output", "parts", "--resume")
    assert result.code == 0, result.err
    whole, parts = parameters("whole/checkpoint"), parameters("parts/checkpoint")
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name])
    assert Path("whole/steps.csv").read_text() == Path("parts/steps.csv").read_text()


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way")
def test_resume_with_dropout_is_exact(run):
    classifier(dropout=0.4)
    write_npz()
    arguments = ["train", "model.onnx", "--data", "train.npz", *LOSS, "--batch-size", "16"]
    arguments += ["--epochs", "4", "--seed", "7"]
    assert run(*arguments, "--output", "whole").code == 0
    script = [sys.executable, "-c", SIGNAL_IN_STEP_9, str(int(signal.SIGTERM))]
    command = [*script, *arguments, "--output", "parts"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 143, ended.stderr
    assert run(*arguments, "--output", "parts", "--resume").code == 0
    whole, parts = parameters("whole/checkpoint"), parameters("parts/checkpoint")
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name])
    assert Path("whole/steps.csv").read_text() == Path("parts/steps.csv").read_text()
    random = CheckpointState.load_checkpoint("parts/checkpoint").training_state.random
    assert (random.seed, random.counter) == (7, 4 * 8)


SIGNAL_WHILE_PREPARING = """
import os, signal, sys
from onnxtrain.cli import main, run
number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
run._try_a_batch = lambda *_: os.kill(os.getpid(), number)
raise SystemExit(main())
"""
SIGNAL_TWICE = """
import os, sys, time
from onnxtrain.runtime.loop.trainer import Trainer
from onnxtrain.cli import main
number = int(sys.argv.pop(1))
def signalled(self, values):
    for _ in range(2):
        os.kill(os.getpid(), number)
    time.sleep(60)
Trainer._run_batch = signalled
raise SystemExit(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way")
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("script", [SIGNAL_WHILE_PREPARING, SIGNAL_TWICE], ids=["early", "twice"])
def test_a_signal_ends_the_command_without_a_trace(name, script):
    number, code = SIGNALS[name]
    classifier()
    write_npz()
    arguments = ["train", "model.onnx", "--data", "train.npz", *LOSS, "--output", "out"]
    command = [sys.executable, "-c", script, str(int(number)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.split() == ["Interrupted." if code == 130 else "Terminated."]
    if script == SIGNAL_WHILE_PREPARING:
        assert sorted(p.name for p in Path().iterdir()) == ["model.onnx", "train.npz"]


def test_runs_are_numbered(run):
    classifier()
    write_npz()
    for _ in range(2):
        assert run("train", "model.onnx", "--data", "train.npz", *LOSS, "--epochs", "1").code == 0
    assert {p.name for p in Path("runs").iterdir()} == {"model", "model-2"}
