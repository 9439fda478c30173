"""Names in a model are text, wherever they appear: no terminal, page or disk acts on them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import TensorProto, helper

from onnxtrain.drawing.inert import inert

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
            helper.make_node("MatMul", [X, W], [f"h{TAGS}{CODES}"], name=f"n{TAGS}{CODES}"),
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
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def controls(text: str) -> list[str]:
    return [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")]


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
    "train": ("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy"),
    "wrong name": ("train", "model.onnx", "--data", "train.npz", "--loss", "mse", "--freeze", "q"),
    "blocked": ("train", "model.onnx", "--data", "none.npz", "--loss", "mse"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_and_the_files(run, inside, folder, name):
    result = run(*COMMANDS[name])
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
            assert not seen.tags & {"img"}, "the report of these data has no pictures"
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
