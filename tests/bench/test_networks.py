"""The page of the networks in PyTorch's own lists, from rows as a run leaves them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from benchmarks import networks


def row(name: str, eager: list[float], compiled: list[float], ours: list[float]) -> dict[str, Any]:
    times = {"eager": eager, "compiled": compiled, "ours": ours}
    firsts = {f"{side}_first": 1.0 for side, values in times.items() if values}
    return {"name": name, "parameters": 1000, **times, **firsts}


ROWS = [
    row("fast", [3.0, 3.0, 3.0], [4.0, 4.0, 4.0], [1.0, 1.5, 2.0]),
    row("slow", [4.0, 4.0, 4.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0]),
    {**row("uncompiled", [2.0, 2.0], [], [1.0, 1.0]), "compiled_error": "no `graph`"},
    {"name": "hangs", "error": "no result in 420 s"},
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


def test_turns_change_their_order() -> None:
    order = list[str]()

    def noting(name: str) -> networks.Step:
        def step() -> float:
            order.append(name)
            return 0.0

        return step

    times = networks.in_turns({name: noting(name) for name in ("a", "b")}, 2)
    assert [len(t) for t in times.values()] == [2, 2]
    changes = [name for i, name in enumerate(order) if not i or order[i - 1] != name]
    assert changes == ["a", "b", "a"]


def test_a_process_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    found = networks.run_apart(sys.executable, "no such network", 1)
    assert found["name"] == "no such network"
    assert "exit code" in found["error"]
