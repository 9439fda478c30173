"""The page of the networks in PyTorch's own lists, from rows as a run leaves them."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import network_steps, networks

EXACT = [4.0, 3.0, 2.0]


def row(name: str, eager: list[float], compiled: list[float], ours: list[float]) -> dict[str, Any]:
    times = {"eager": eager, "compiled": compiled, "ours": ours}
    firsts = {f"{side}_first": 1.0 for side, values in times.items() if values}
    losses = {side: EXACT for side, values in times.items() if values} | {"float64": EXACT}
    return {"name": name, "parameters": 1000, "losses": losses, **times, **firsts}


ROWS = [
    row("fast", [3.0, 3.0, 3.0], [4.0, 4.0, 4.0], [1.0, 1.5, 2.0]),
    row("slow", [4.0, 4.0, 4.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0]),
    {**row("uncompiled", [2.0, 2.0], [], [1.0, 1.0]), "compiled_error": "no `graph`"},
    {"name": "hangs", "error": "no result in 420 s", "losses": {}},
]


def test_the_better_torch_is_the_peer() -> None:
    assert networks.ratios(ROWS[0]) == [3.0, 2.0, 1.5]
    assert networks.ratios(ROWS[1]) == [0.5, 0.5, 0.5]
    assert networks.ratios(ROWS[1], ("eager",)) == [1.0, 1.0, 1.0]
    assert networks.ratios(ROWS[3]) == []


def test_the_page_leaves_no_network_out() -> None:
    text = networks.page({"about": {"day": "today", "note": "Not quiet."}, "rows": ROWS})
    lines = text.splitlines()
    table = [line for line in lines if line.startswith("| ") and "network" not in line]
    assert [line.split(" | ")[0] for line in table] == ["| slow", "| fast", "| uncompiled"]
    mean = (2.0 * 0.5 * 2.0) ** (1 / 3)
    assert f"3 networks, geometric mean **{mean:.2f}**, the least 0.50; 1 slower" in text
    assert "1 of them below 0.9; 1 without a ratio" in text
    assert "- hangs: `no result in 420 s`" in lines
    assert "Not quiet." in lines
    assert any(line.startswith("- uncompiled:") for line in lines)


@pytest.mark.parametrize(
    ("eager", "ours", "agree"),
    [
        ([4.0, 3.0, 2.0], [4.0, 3.0005, 2.001], True),
        ([4.0, 3.0, 2.0], [4.0, 3.0, 2.01], False),
        ([4.0, 3.0, 2.02], [4.0, 3.0, 2.03], True),  # torch itself is 1 % off
        ([4.0, 3.0, 2.02], [4.0, 3.0, 2.05], False),
        ([4.0, 3.0, 2.0], [4.1, 3.1, 2.1], False),  # the right steps from another loss
        ([4.01, 3.0, 1.3], [4.3, 3.3, 2.3], False),  # torch is far off, but not from the start
        ([4.0, 3.0, 2.0], [4.0, 4.0, 4.0], False),  # no step at all
        ([4.0, 3.0, 2.0], [4.0, float("nan"), 2.0], False),
    ],
)
def test_losses_are_compared_with_those_in_float64(
    eager: list[float], ours: list[float], agree: bool
) -> None:
    losses = {"eager": eager, "ours": ours, "float64": EXACT}
    assert networks.agrees({**ROWS[0], "losses": losses}) == agree


def test_losses_that_nothing_is_known_of_do_not_agree() -> None:
    losses = {"eager": EXACT, "ours": EXACT}
    assert not networks.agrees({**ROWS[0], "losses": losses})
    text = networks.page({"about": {}, "rows": [{**ROWS[0], "losses": losses}]})
    assert "Losses do not agree: fast" in text


def test_rows_of_other_sizes_are_no_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that were measured before a network got other sizes, or without saying which."""
    named = {**ROWS[0], "definition": "of today"}
    path = tmp_path / "networks.json"
    monkeypatch.setattr(networks, "RESULTS", path)
    assert networks.stored() == {"about": {}, "rows": []}
    path.write_text(json.dumps({"about": {"note": "Old."}, "rows": [ROWS[0]]}))
    assert networks.stored() == {"about": {}, "rows": []}
    path.write_text(json.dumps({"about": {"note": "New."}, "rows": [ROWS[1], named, ROWS[3]]}))
    assert networks.stored() == {"about": {"note": "New."}, "rows": [named, ROWS[3]]}
    assert networks.is_timed(named, tmp_path)
    assert not networks.is_timed(ROWS[3], tmp_path)
    notes = tmp_path / network_steps.NOTES
    notes.write_text(json.dumps({"definition": "of today"}))
    assert networks.is_timed(named, tmp_path)
    notes.write_text(json.dumps({"definition": "of tomorrow"}))
    assert not networks.is_timed(named, tmp_path)


def test_turns_change_their_order() -> None:
    order = list[str]()

    def noting(name: str) -> network_steps.Step:
        def step() -> float:
            order.append(name)
            return 0.0

        return step

    times = network_steps.in_turns({name: noting(name) for name in ("a", "b")}, 2)
    assert [len(t) for t in times.values()] == [2, 2]
    changes = [name for i, name in enumerate(order) if not i or order[i - 1] != name]
    assert changes == ["a", "b", "a"]


def test_a_process_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    options = Namespace(rounds=1, cache=tmp_path)
    found = networks.run_apart(sys.executable, "no such network", options)
    assert found["name"] == "no such network"
    assert "exit code" in found["error"]


def test_a_side_that_hangs_is_left_out_of_the_next_try(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Eager is done, ours hangs, and after it the compiler dies: both are named, and it ends."""
    place = network_steps.folder_of(tmp_path, "a/b")
    place.mkdir()
    notes = {"name": "a/b", "sources": network_steps.sources(), "losses": {"eager": EXACT}}
    (place / network_steps.NOTES).write_text(json.dumps(notes))
    reasons = iter(["no result in 1 s", "exit code 9", ""])

    def once(python: str, name: str, options: Namespace, *more: str) -> dict[str, Any]:
        if reason := next(reasons):
            return {"name": name, "error": reason}
        return network_steps.read_notes(place)

    monkeypatch.setattr(networks, "run_apart", once)
    said = networks.prepare_apart("python", "a/b", Namespace(cache=tmp_path))
    assert said == "compiled: exit code 9; ours: no result in 1 s"
    assert not network_steps.is_prepared(place)  # the losses in float64 are left
    assert network_steps.give_up(place, "no result")
    assert network_steps.is_prepared(place)
    assert not network_steps.give_up(place, "no result")


def test_a_network_that_cannot_be_made_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = list[str]()

    def fails(python: str, name: str, options: Namespace, *more: str) -> dict[str, Any]:
        tries.append(name)
        return {"name": name, "error": "exit code 1: no such class"}

    monkeypatch.setattr(networks, "run_apart", fails)
    said = networks.prepare_apart("python", "name", Namespace(cache=tmp_path))
    assert (said, tries) == ("exit code 1: no such class", ["name"])
