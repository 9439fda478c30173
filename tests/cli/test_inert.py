"""Names in a model are text, wherever they appear: no terminal, page or disk acts on them."""

from __future__ import annotations

import csv
import html
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import TensorProto, helper

from onnxtrain.drawing.inert import inert

from .models import save

TAGS = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
CODES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e"
OUTSIDE = "../../outside/\\evil"
X, W, B, Y = f"x{TAGS}", f"w{CODES}", f"{OUTSIDE}{TAGS}{CODES}", f"y{CODES}{TAGS}"


@pytest.fixture(autouse=True)
def model(folder):
    """Every name of it is hostile; the work is a folder deeper than the test's."""
    work = folder / "a" / "b"
    work.mkdir(parents=True)
    rng = np.random.default_rng(0)
    weights = {W: rng.standard_normal((4, 3)), B: np.zeros(3)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [X, W], [f"h{TAGS}{CODES}"], name=f"n{CODES}{TAGS}"),
            helper.make_node("Add", [f"h{TAGS}{CODES}", B], [Y], name=OUTSIDE),
        ],
        f"graph{TAGS}{CODES}",
        [helper.make_tensor_value_info(X, TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(Y, TensorProto.FLOAT, ["N", 3])],
        [onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
        doc_string=TAGS + CODES,
    )
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=TAGS + CODES)
    onnx.save(made, work / "model.onnx")
    x = rng.standard_normal((24, 4)).astype(np.float32)
    np.savez(work / "train.npz", x=x, labels=np.arange(24) % 3)
    return work


@pytest.fixture
def inside(model, monkeypatch):
    monkeypatch.chdir(model)
    return model


class Tags(HTMLParser):
    """The elements and handlers that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.sources = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources |= {str(value) for name, value in attrs if name == "src"}


def controls(text: str) -> list[str]:
    return [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")]


TRAIN = ("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--epochs", "1")
COMMANDS = {
    "inspect": ("inspect", "model.onnx"),
    "inspect json": ("inspect", "model.onnx", "--json"),
    "draw": ("draw", "model.onnx"),
    "draw svg": ("draw", "model.onnx", "--output", "drawn.svg"),
    "draw html": ("draw", "model.onnx", "--gradient", "--output", "drawn.html"),
    "draw png": ("draw", "model.onnx", "--output", "drawn.png"),
    "draw txt": ("draw", "model.onnx", "--output", "drawn.txt"),
    "draw scopes": ("draw", "model.onnx", "--collapse", "1", "--output", "drawn.svg"),
    "differentiate": ("differentiate", "model.onnx", "--explain"),
    "check": ("check", "model.onnx"),
    "artifacts": ("artifacts", "model.onnx", "--loss", "cross_entropy", "--output", "artifacts"),
    "training information": (
        "artifacts",
        "model.onnx",
        "--loss",
        "cross_entropy",
        "--output",
        "artifacts",
        "--training-info",
    ),
    "train": TRAIN,
    "train with a log": (*TRAIN, "--log", "csv"),
    "lora": ("lora", *TRAIN[1:], "--rank", "1"),
    "quantize": ("quantize", "model.onnx", "-o", "small.onnx"),
    "bench": (
        "bench",
        "model.onnx",
        "--loss",
        "cross_entropy",
        "--steps",
        "1",
        "--batch-size",
        "4",
    ),
    "bench json": ("bench", "model.onnx", "--loss", "cross_entropy", "--steps", "1", "--json"),
    "no folder to serve": ("serve", B),
    "no run": ("runs", B),
    "no checkpoint": ("export", B, "-o", "out.onnx"),
    "no model": ("inspect", B),
    "wrong name": ("train", "model.onnx", "--data", "train.npz", "--loss", "mse", "--freeze", "q"),
    "blocked": ("train", "model.onnx", "--data", "none.npz", "--loss", "mse"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_and_the_files(run, inside, folder, name):
    result = run(*COMMANDS[name])
    assert_inert(result, inside, folder)


def test_a_file_that_says_how_it_is_trained(run, inside, folder):
    assert run(*COMMANDS["training information"]).code == 0
    command = ("training-info", "artifacts/training_info.onnx")
    for options in ((), ("--data", "train.npz", "-o", "trained.onnx")):
        assert_inert(run(*command, *options), inside, folder)


@pytest.mark.parametrize("name", ["quantize"])
def test_a_terminal_of_its_own(inside, name):
    """What other packages log is seen there only: pytest has handlers of its own."""
    command = [sys.executable, "-m", "onnxtrain", *COMMANDS[name]]
    done = subprocess.run(command, capture_output=True, cwd=inside, check=True)
    assert controls((done.stdout + done.stderr).decode()) == []


def assert_inert(result, inside, folder):
    """Nothing acts on a name: not the terminal, no page and no picture, no path."""
    assert controls(result.out + result.err) == []
    for path in inside.rglob("*"):
        if path.suffix == ".svg":
            tree = ElementTree.fromstring(path.read_text(encoding="utf-8"))
            assert not {e.tag for e in tree.iter()} & {"script", "img"}
            assert controls(path.read_text(encoding="utf-8")) == []
        if path.suffix == ".txt":
            assert controls(path.read_text(encoding="utf-8")) == []
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            seen = Tags(text)
            assert text.count("<script") == (2 if path.name == "drawn.html" else 0)
            assert "iframe" not in seen.tags
            assert all(source.startswith("data:image/png;base64,") for source in seen.sources)
            assert not any(a.startswith("on") for a in seen.attributes)
            assert controls(text) == []
    assert sorted(p.name for p in folder.iterdir()) == ["a"]
    assert sorted(p.name for p in (folder / "a").iterdir()) == ["b"], "nothing was written outside"


def test_the_run_was_one(run, inside):
    """The table above would hold for commands that refuse everything."""
    result = run(*COMMANDS["train"])
    assert result.code == 0, result.err
    assert Path("runs/model/report.html").is_file()
    for name in ("draw svg", "draw html", "draw txt", "draw scopes"):
        assert run(*COMMANDS[name]).code == 0, name


def test_text_that_is_harmless_stays():
    text = "größe 重み\tü\n<b> α→β"
    assert inert(text) == text


# --- names that are not in the model: of files, columns, classes, runs and words -----------------

PICTURE = "<img src=x onerror=alert(3)>"
"""HTML that can be the name of a file."""
FILE = f"{PICTURE}{CODES}"
CLASSES = [f"{letter}{TAGS}{CODES}" for letter in "abc"]


def test_columns_classes_and_files_of_a_table(run, inside, folder):
    """The page of the run and the table of all runs show them; no folder is made of them."""
    Path("model.onnx").rename(f"{FILE}.onnx")
    with open(f"{FILE}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"{n}{TAGS}{CODES}" for n in range(4)), f"{OUTSIDE}{TAGS}"])
        writer.writerows([n % 3, n % 2, 1, 0.5, CLASSES[n % 3]] for n in range(30))
    options = ("--loss", "cross_entropy", "--epochs", "1", "--val", "0.3", "--output", f"run{FILE}")
    result = run("train", f"{FILE}.onnx", "--data", f"{FILE}.csv", *options)
    assert result.code == 0, result.err
    assert_inert(result, inside, folder)
    page = Path(f"run{FILE}", "report.html").read_text(encoding="utf-8")
    assert html.escape(TAGS) in page, "the names of classes are shown"
    for command in (("runs", "."), ("runs", ".", "--html", "all.html"), ("runs", ".", "--json")):
        result = run(*command)
        assert result.code == 0, result.err
        assert_inert(result, inside, folder)
    assert html.escape(PICTURE) in Path("all.html").read_text(encoding="utf-8")
    training = ("train", f"{FILE}.onnx", "--data", f"{FILE}.csv", "--loss", "cross_entropy")
    for command in (("runs", ".", "--sort", B), (*training, "--target", B)):
        result = run(*command)
        assert result.code == 1
        assert_inert(result, inside, folder)


def test_a_run_that_somebody_else_made(run, inside, folder):
    """Settings and histories of a stranger's run are read by `onnxtrain runs`."""
    stranger = Path("runs", "stranger")
    stranger.mkdir(parents=True)
    settings = {"model": B, "loss": TAGS, "optimizer": CODES, "lr": OUTSIDE, TAGS: TAGS}
    (stranger / "run.json").write_text(json.dumps({"model_sha256": "0", "settings": settings}))
    history = {"loss": [0.5, 0.4], f"{TAGS}{CODES}": [1.0, 2.0]}
    (stranger / "history.json").write_text(json.dumps(history))
    for command in (("runs",), ("runs", "--html", "all.html"), ("runs", "--json")):
        result = run(*command)
        assert result.code == 0, result.err
        assert_inert(result, inside, folder)
    assert html.escape(TAGS) in Path("all.html").read_text(encoding="utf-8")


def test_folders_of_pictures(run, inside, folder):
    image = pytest.importorskip("PIL.Image")
    save(
        "g (float[N, 1, 4, 4] x) => (float[N, 2] y) <float[1, 2] w = {0.1, 0.2}>"
        "{ p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w) }"
    )
    for name in ("a", "b"):
        Path("images", f"{name}{FILE}").mkdir(parents=True)
        for number in range(4):
            image.new("L", (4, 4), number).save(
                Path("images", f"{name}{FILE}", f"{FILE}{number}.png")
            )
    result = run(
        "train", "model.onnx", "--data", "images", "--loss", "cross_entropy", "--epochs", "1"
    )
    assert result.code == 0, result.err
    assert_inert(result, inside, folder)
    assert html.escape(PICTURE) in Path("runs/model/report.html").read_text(encoding="utf-8")


def test_words_of_a_tokenizer(run, inside, folder):
    pytest.importorskip("tokenizers")
    from tests.text.models import WORDS, decoder, tokenizer_json, write_jsonl

    onnx.save(decoder(), "lm.onnx")
    tokenizer_json(words=[f"{word}{TAGS}{CODES}" for word in WORDS])
    write_jsonl()
    result = run(
        "train", "lm.onnx", "--data", "text.jsonl", "--task", "causal-lm", "--tokenizer",
        "tokenizer.json", "--epochs", "1", "--prompt", f"the{TAGS}{CODES}", "--output", "lm",
        "--max-length", "16",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert_inert(result, inside, folder)
    assert controls(Path("lm/samples.txt").read_text(encoding="utf-8")) == []


@pytest.mark.filterwarnings("ignore::UserWarning:optuna")
def test_a_search(run, inside, folder):
    pytest.importorskip("optuna")
    options = ("--val", "0.25", "--trials", "1", "--output", f"study{FILE}")
    result = run("tune", *TRAIN[1:], *options)
    assert result.code == 0, result.err
    assert_inert(result, inside, folder)
    result = run("tune", *TRAIN[1:], "--search", f"{B}=1..2")
    assert result.code == 1
    assert_inert(result, inside, folder)


def test_a_model_that_says_how_it_is_trained(inside):
    """Names of training info appear in errors only, spelled out."""
    from onnxtrain import losses, training_info
    from onnxtrain.errors import OnnxTrainError

    model = training_info.add("model.onnx", losses.MSELoss())
    training_info.Training(model)
    model.training_info[0].update_binding[0].value = B
    with pytest.raises(OnnxTrainError) as error:
        training_info.Training(model)
    assert controls(str(error.value)) == []
