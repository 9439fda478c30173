"""Crashes and hangs are rows, and a list is taken up where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conformance import results, run
from conformance.environment import lists, packages
from conformance.run import Limits

WORKER = """
import json, os, sys, time
if "--names" in sys.argv:
    names = ["fine", "crash", "hang", "busy", "early", "after"]
    names += ["absent"] * ("--absent" in sys.argv)
    print(json.dumps({"names": names, "batch": 9}), flush=True)
for line in sys.stdin:
    name = line.strip()
    say = lambda m: print(json.dumps(m), flush=True)
    say({"stage": "export", "exporter": "dynamo", "family": "f"})
    if name == "early":
        os.abort()
    say({"stage": "differentiate", "exporter": "dynamo", "family": "f"})
    if name == "crash":
        os._exit(3)
    if name == "hang":
        time.sleep(60)
    while name == "busy":
        pass
    if name != "absent":
        say({"row": {"name": name, "exporter": "dynamo", "outcome": "right", "pid": os.getpid()}})
    say({"done": name})
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch) -> Path:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(run, "_command", lambda _p, _n, *more: [sys.executable, script, *more])
    return tmp_path / "rows.jsonl"


def test_a_crash_and_a_hang_are_rows(path: Path) -> None:
    run.run("list", sys.executable, path, Limits(seconds=0.5))
    rows = {r["name"]: r for r in results.read(path)}
    assert [r["outcome"] for r in rows.values()] == [
        "right", "crash", "timeout", "timeout", "not exported", "right",
    ]  # fmt: skip
    assert rows["crash"]["reason"] == "crash in differentiate: exit code 3"
    assert rows["hang"]["reason"] == "timeout in differentiate: 2 s by the clock"
    assert "SIGABRT" in rows["early"]["reason"]
    assert rows["crash"]["exporter"] == "dynamo"
    assert json.loads((path.parent / results.TOTALS).read_text()) == {"rows": 6}


def test_seconds_are_those_of_the_processor(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 300.0)
    run.run("list", sys.executable, path, Limits(seconds=0.2), only="busy")
    (row,) = results.read(path)
    assert row["reason"] == "timeout in differentiate: 0.2 s of the processor"


def test_a_call_that_the_table_does_not_have_is_not_counted(path: Path, monkeypatch) -> None:
    command = run._command
    monkeypatch.setattr(run, "_command", lambda *a: [*command(*a), "--absent"])
    for name in ("crash", "hang", "busy", "early"):
        results.append(path, {"name": name, "exporter": "dynamo", "outcome": "crash"})
    run.run("list", sys.executable, path, Limits(seconds=9.0))
    assert json.loads((path.parent / results.TOTALS).read_text()) == {"rows": 6}
    run.run("list", sys.executable, path, Limits(seconds=9.0), only="absent")
    assert json.loads((path.parent / results.TOTALS).read_text()) == {"rows": 6}


def test_cases_with_a_row_are_not_tried_again(path: Path, capsys) -> None:
    results.append(path, {"name": "hang", "exporter": "dynamo", "outcome": "right"})
    run.run("list", sys.executable, path, Limits(seconds=2.0), only="[fh]*")
    assert [r["name"] for r in results.read(path)] == ["hang", "fine"]
    run.run("list", sys.executable, path, Limits(seconds=2.0), only="fine", again=True)
    assert "1 of 6 cases" in capsys.readouterr().out
    assert [r["name"] for r in results.read(path)] == ["hang", "fine"]


def test_an_exporter_alone_has_rows_of_its_own(path: Path) -> None:
    results.append(path, {"name": "fine", "exporter": "torchscript", "outcome": "right"})
    results.append(path, {"name": "after", "outcome": "not exported"})
    limits = Limits(seconds=2.0, exporter="dynamo")
    run.run("list", sys.executable, path, limits, only="[fa]*")
    keys = [(r["name"], r.get("exporter")) for r in results.read(path)]
    assert keys == [("fine", "torchscript"), ("after", None), ("fine", "dynamo")]


def test_a_line_cut_short_is_left_out(path: Path) -> None:
    results.append(path, {"name": "a", "outcome": "right", "reason": "", "step_ms": 1.23456})
    with path.open("a") as file:
        file.write('{"name": "b", "outc')
    assert results.read(path) == [{"name": "a", "outcome": "right", "step_ms": 1.23}]


def test_a_list_says_what_it_needs(tmp_path: Path) -> None:
    assert "scipy" in lists()["opinfo"]
    helper = tmp_path / "helper.py"
    helper.write_text("VALUE = 1\n")
    assert packages(helper) is None
    helper.write_text("PACKAGES: list[str] = []\n")
    assert packages(helper) == []


def test_a_case_that_could_not_be_made_has_one_row(path: Path) -> None:
    for outcome, exporter in [("not exported", ""), ("right", "a"), ("right", "b")]:
        results.append(path, {"name": "n", "exporter": exporter, "outcome": outcome})
    assert [r["exporter"] for r in results.read(path)] == ["a", "b"]
    results.append(path, {"name": "n", "outcome": "not exported"})
    assert [r["outcome"] for r in results.read(path)] == ["not exported"]
