"""`onnxtrain runs`: several runs side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from onnxtrain.cli.runs import MOST_CURVES, SHOWN, narrowed


def write_run(folder: str, lr: float, losses: list[float], **settings: object) -> None:
    path = Path(folder)
    path.mkdir(parents=True)
    about = {
        "model_sha256": "0",
        "settings": {
            "model": "a/net.onnx",
            "loss": "mse",
            "optimizer": "adamw",
            "lr": lr,
            **settings,
        },
    }
    (path / "run.json").write_text(json.dumps(about))
    history = {"loss": losses, "lr": [lr] * len(losses), "val_accuracy": [1 - v for v in losses]}
    (path / "history.json").write_text(json.dumps(history))


@pytest.fixture
def runs(folder):
    write_run("runs/one", 0.1, [0.9, 0.5, 0.3], batch_size=8)
    write_run("runs/two", 0.01, [0.9, 0.4], batch_size=16)
    write_run("runs/study/trial-0", 0.5, [0.8, 0.1], batch_size="<script>")


def test_table_and_order(run, runs):
    result = run("runs", "--sort", "val_accuracy")
    assert result.code == 0, result.err
    lines = [line.split()[0] for line in result.out.splitlines()]
    assert lines == ["run", "runs/study/trial-0", "runs/one", "runs/two"]
    assert "net.onnx" in result.out
    printed = json.loads(run("runs", "--json", "--sort", "loss").out)
    assert [p["last"]["loss"] for p in printed] == [0.1, 0.3, 0.4]


def test_one_page_with_all_curves(run, runs):
    result = run("runs", "--html", "all.html")
    assert result.code == 0, result.err
    page = Path("all.html").read_text()
    assert page.count("<svg") == 3
    for name in ("one", "two", "study/trial-0"):
        assert f">{name}</text>" in page
    assert "<script>" not in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)  # it needs no network
    assert "prefers-color-scheme: dark" in page


def test_each_run_has_a_colour_of_its_own(run, folder):
    for i in range(MOST_CURVES):
        write_run(f"runs/{i}", 0.1, [0.9, 0.5])
    assert run("runs", "--html", "all.html").code == 0
    first = Path("all.html").read_text().split("</svg>")[0]
    assert len(set(re.findall(r'stroke="(#\w+)" stroke-width="2"', first))) == MOST_CURVES


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is damaged"),
        ('{"loss": 3}', "is damaged"),
        ('{"loss": [true]}', "is damaged"),
        ('{"loss": ["x"]}', "is damaged"),
    ],
)
def test_a_damaged_history_is_named_and_left_out(run, runs, content, says):
    Path("runs/one/history.json").write_text(content)
    result = run("runs")
    assert result.code == 0
    assert says in result.err
    assert "runs/one/history.json" in result.err
    assert "runs/two" in result.out
    assert "runs/one" not in result.out
    alone = run("runs", "runs/one")
    assert alone.code == 1
    assert says in alone.err


def test_a_damaged_run_is_left_out(run, runs):
    Path("runs/one/run.json").write_text("{")
    result = run("runs", "--json")
    assert result.code == 0
    assert "runs/one/run.json" in result.err
    assert {Path(r["folder"]).name for r in json.loads(result.out)} == {"two", "trial-0"}


def test_mistakes(run, runs):
    assert "There is no folder 'none'" in run("runs", "none").err
    assert "the runs have" in run("runs", "--sort", "accuracy").err
    Path("empty").mkdir()
    assert "holds no runs" in run("runs", "empty").err


def test_a_narrow_terminal_is_told_once_what_all_runs_share():
    head = ["run", "model", *SHOWN.values(), "epochs", "loss"]
    rows = [[f"runs/m-{i}", "m.onnx", "mse", "adamw", f"0.{i}", "32", "5", "0.1"] for i in (1, 2)]
    assert narrowed(head, rows, 200) == ("", head, rows)
    shared, few, cells = narrowed(head, rows, 60)
    assert shared == "model m.onnx, loss function mse, optimizer adamw, batch 32"
    assert few == ["run", "rate", "epochs", "loss"]
    assert cells[1] == ["runs/m-2", "0.2", "5", "0.1"]
