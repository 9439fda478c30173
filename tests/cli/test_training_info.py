"""`onnxtrain training-info`: a model is trained as its own file says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain import losses, optim, training_info

from .models import classifier, write_npz

TRUTH = np.array([[1.0], [2.0], [3.0]], np.float32)
X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def line(rows: str = "N") -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[{rows}, 3] x) => (float[{rows}, 1] y) <float[3, 1] w = {{0, 0, 0}}>
        {{ y = MatMul(x, w) }}
    """)
    return training_info.add(model, losses.MSELoss(), optim.adam(), learning_rate=0.1)


@pytest.fixture
def described(folder):
    onnx.save(line(), "model.onnx")
    np.savez("train.npz", x=X, target=X @ TRUTH)
    return folder


def weight(path: str) -> np.ndarray:
    (tensor,) = (t for t in onnx.load(path).graph.initializer if t.name == "w")
    return onnx.numpy_helper.to_array(tensor)


TRAIN = ("training-info", "model.onnx", "-o", "trained.onnx", "--epochs", "15", "--data")


def test_without_data_it_is_described(described, run):
    result = run("training-info", "model.onnx")
    assert result.code == 0, result.err
    for text in ("target", "N×3", "y, loss", "w.first_order_moments", "--initialize sets back"):
        assert text in result.out
    assert [p.name for p in described.iterdir() if p.suffix == ".onnx"] == ["model.onnx"]


def test_trains_and_the_file_runs_elsewhere(described, run):
    result = run(*TRAIN, "train.npz")
    assert result.code == 0, result.err
    assert "epoch 15/15  loss" in result.err
    np.testing.assert_allclose(weight("trained.onnx"), TRUTH, atol=0.05)
    session = onnxruntime.InferenceSession("trained.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ TRUTH, atol=0.2)


def test_it_is_what_the_api_does_and_goes_on_in_place(described, run):
    assert run(*TRAIN, "train.npz").code == 0
    training = training_info.Training("model.onnx")
    training.fit({"x": X, "target": X @ TRUTH}, 15)
    np.testing.assert_array_equal(weight("trained.onnx"), training.state["w"])
    again = run("training-info", "trained.onnx", "--data", "train.npz", "-o", "trained.onnx")
    assert again.code == 0, again.err
    training.fit({"x": X, "target": X @ TRUTH})
    np.testing.assert_array_equal(weight("trained.onnx"), training.state["w"])
    fresh = run(
        "training-info", "trained.onnx", "--data", "train.npz", "-o", "2.onnx", "--initialize"
    )
    assert fresh.code == 0, fresh.err
    assert training_info.read("2.onnx").state["step"] == 7  # 200 rows, 32 at a time


def as_arrays() -> str:
    np.save("x.npy", X)
    np.save("y.npy", X @ TRUTH)
    return "x.npy,y.npy"


def as_table() -> str:
    rows = ["a,b,price,c"]
    rows += [f"{x[0]},{x[1]},{(x @ TRUTH)[0]},{x[2]}" for x in X]
    Path("t.csv").write_text("\n".join(rows))
    return "t.csv"


def as_batches() -> str:
    code = "import numpy as np\nwith np.load('train.npz') as data:\n"
    code += "    x, y = data['x'], data['target']\n"
    code += "def rows():\n    parts = [slice(i, i + 32) for i in range(0, 200, 32)]\n"
    code += "    return [{'x': x[rows], 'target': y[rows]} for rows in parts]"
    Path("batches_of_mine.py").write_text(code)
    return "batches_of_mine:rows"


@pytest.mark.parametrize(
    ("data", "options"),
    [(as_arrays, ()), (as_table, ("--target", "price")), (as_batches, ()),
     (as_table, ("--target", "price", "--features", "a,b,c"))],
)  # fmt: skip
def test_every_form_of_data(described, run, data, options):
    result = run(*TRAIN, data(), *options)
    assert result.code == 0, result.err
    np.testing.assert_allclose(weight("trained.onnx"), TRUTH, atol=0.05)


def test_classes_from_a_file_that_artifacts_wrote(folder, run):
    classifier()
    write_npz()
    made = run(
        "artifacts", "model.onnx", "--loss", "cross_entropy", "-o", "made", "--training-info",
        "--learning-rate", "0.01",
    )  # fmt: skip
    assert made.code == 0, made.err
    command = ("training-info", "made/training_info.onnx", "-o", "t.onnx", "--epochs", "8")
    result = run(*command, "--data", "train.npz")
    assert result.code == 0, result.err
    losses_ = [float(row.split("loss ")[1].split()[0]) for row in result.err.splitlines()]
    assert losses_[-1] < 0.5 * losses_[0]
    with np.load("train.npz") as data:
        arrays = dict(data)
    arrays["labels"] = arrays["labels"].copy()
    arrays["labels"][3] = -1
    np.savez("wrong.npz", **arrays)
    Path("t.onnx").unlink()
    wrong = run(*command, "--data", "wrong.npz")
    assert wrong.code == 1
    assert "-1" in wrong.err
    assert not Path("t.onnx").exists()


def test_two_targets_are_taken_by_name(folder, run):
    model = line()
    info = model.training_info[0].algorithm
    info.input.append(onnx.helper.make_tensor_value_info("factor", 1, ["N", 1]))
    info.node.append(onnx.helper.make_node("Mul", ["target", "factor"], ["scaled"]))
    info.output.append(onnx.helper.make_tensor_value_info("scaled", 1, ["N", 1]))
    onnx.save(model, "model.onnx")
    np.savez("train.npz", x=X, target=X @ TRUTH, factor=np.ones((200, 1), np.float32))
    assert run(*TRAIN, "train.npz").code == 0
    np.savez("less.npz", x=X, target=X @ TRUTH)
    result = run(*TRAIN, "less.npz")
    assert result.code == 1
    assert "has no 'factor'" in result.err
    result = run(*TRAIN, as_arrays())
    assert "a step takes 3: x, target, factor" in " ".join(result.err.split())
    assert "one target" in run(*TRAIN, "train.npz", "--target", "target").err


def test_a_file_with_batches_of_one_size(folder, run):
    onnx.save(line("64"), "model.onnx")
    np.savez("train.npz", x=X, target=X @ TRUTH)
    result = run(*TRAIN, "train.npz")
    assert result.code == 0, result.err
    assert "exactly 64 rows" in result.err
    np.savez("few.npz", x=X[:9], target=(X @ TRUTH)[:9])
    assert "9 in all" in run(*TRAIN, "few.npz").err


MISTAKES = {
    "no training information": (("plain.onnx",), "no training_info"),
    "no such algorithm": (("model.onnx", "--index", "2"), "number 2"),
    "data without output": (("model.onnx", "--data", "train.npz"), "--data needs -o"),
    "output without data": (("model.onnx", "-o", "t.onnx"), "no --data"),
    "no folder": (("model.onnx", "--data", "train.npz", "-o", "no/t.onnx"), "folder that exists"),
    "no file": (("missing.onnx",), "missing.onnx"),
    "epochs": (("model.onnx", "--data", "train.npz", "-o", "t.onnx", "--epochs", "0"), "--epochs"),
    "other names": (("model.onnx", "--data", "names.npz", "-o", "t.onnx"), "'x'"),
    "other sizes": (("model.onnx", "--data", "wide.npz", "-o", "t.onnx"), "size 4 on axis 1"),
    "other lengths": (("model.onnx", "--data", "uneven.npz", "-o", "t.onnx"), "numbers of rows"),
    "no initialization": (("by_hand.onnx", "--initialize"), "no initialization"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(described, run, mistake):
    plain = line()
    del plain.training_info[:]
    onnx.save(plain, "plain.onnx")
    by_hand = line()
    by_hand.training_info[0].ClearField("initialization")
    del by_hand.training_info[0].initialization_binding[:]
    onnx.save(by_hand, "by_hand.onnx")
    np.savez("names.npz", a=X, b=X, target=X @ TRUTH)
    np.savez("wide.npz", x=np.ones((5, 4), np.float32), target=np.ones((5, 1), np.float32))
    np.savez("uneven.npz", x=X, target=(X @ TRUTH)[:7])
    arguments, text = MISTAKES[mistake]
    result = run("training-info", *arguments)
    assert result.code in (1, 2)
    assert text in result.err
    assert "Traceback" not in result.err
    assert "report it" not in result.err
    assert not Path("t.onnx").exists()


def test_a_bad_batch_changes_nothing(described, run):
    huge = X @ TRUTH
    huge[150:] = 3e38
    np.savez("huge.npz", x=X, target=huge)
    result = run(*TRAIN, "huge.npz")
    assert result.code == 1
    assert "NaN or infinite" in result.err
    assert not Path("trained.onnx").exists()
    assert run(*TRAIN, "huge.npz", "--no-check-finite").code == 0


SLOW = """
import os, signal, sys
import numpy as np

class Rows:
    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for _ in range(4):
            yield {"x": np.ones((8, 3), np.float32), "target": np.ones((8, 1), np.float32)}
        if self.passes == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            yield {"x": np.ones((8, 3), np.float32), "target": np.ones((8, 1), np.float32)}

def rows():
    return Rows()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_signal_leaves_the_last_whole_epoch(described):
    Path("slow_rows.py").write_text(SLOW)
    command = [sys.executable, "-m", "onnxtrain", *TRAIN, "slow_rows:rows"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 143, result.stderr
    assert "after 2 epochs" in result.stderr
    assert training_info.read("trained.onnx").state["step"] == 8
