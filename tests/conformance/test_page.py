"""docs/conformance.md tells what conformance/predecessors and conformance/results say now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "gen_conformance.py"
    spec = importlib.util.spec_from_file_location("gen_conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(**changes: Any) -> dict[str, Any]:
    return {
        "suite": "A suite", "script": "a.sh", "revision": "v1", "date": "2026-11-17", "passed": 2,
        "skipped": 0, "total": 3, "failing": [{"test": "t[a|b]", "reason": "needs a | GPU"}],
        **changes,
    }  # fmt: skip


def test_not_stale(tool: ModuleType) -> None:
    assert tool.records(), "there is no record"
    stale = "docs/conformance.md is stale: run `python tools/gen_conformance.py`"
    assert tool.TARGET.read_text("utf-8") == tool.render(), stale


def test_a_section_lists_every_failing_test_with_its_reason(tool: ModuleType) -> None:
    text = tool.section("a", tool.checked(record(), "a.json"))
    assert "| `t[a\\|b]` | needs a \\| GPU |" in text
    assert "Nothing fails" in tool.section("a", record(passed=3, failing=[]))


@pytest.mark.parametrize(
    "changes",
    [{"passed": 1}, {"failing": []}, {"failing": [{"test": "t", "reason": ""}]}, {"more": 1},
     {"passed": "2"}],
)  # fmt: skip
def test_a_record_that_does_not_add_up_is_refused(tool: ModuleType, changes: Any) -> None:
    with pytest.raises(ValueError, match=r"a\.json"):
        tool.checked(record(**changes), "a.json")


ROWS = [
    {"name": "a", "family": "f", "exporter": "dynamo", "outcome": "right", "gradients": "right",
     "nodes": 2, "nodes_after": 8, "to_eager": 0.5},
    {"name": "b", "family": "f", "exporter": "dynamo", "outcome": "right", "gradients": "kink",
     "reason": "kink: x: one-sided differences differ", "nodes": 2, "nodes_after": 4,
     "second": "refused: no rule"},
    {"name": "c|d", "family": "g", "exporter": "dynamo", "outcome": "refused", "reason": "no rule"},
    {"name": "e", "family": "g", "exporter": "dynamo", "outcome": "not exported",
     "reason": "No ONNX function found for aten::x"},
]  # fmt: skip


def test_a_list_has_its_score_its_refusals_and_its_figures(tool: ModuleType) -> None:
    assert tool.score(ROWS) == "| 4 | 1 | 0 | 0 | 3 | 2 | 1 | 0 | 0 | 0 | 66.7 |"
    text = tool.list_section("a list", ROWS)
    assert "| f, dynamo | 2 | 0 | 0 | 0 | 2 | 2 |" in text
    assert "| `c\\|d` | refused | no rule |" in text
    assert "| `b` | second order | no rule |" in text
    assert "one-sided differences differ" in text
    assert "Gradients: 1 right, 1 kink." in text
    assert "Nodes after ÷ before: 3 in the middle, 4 at most." in text
    assert "| not exported | No ONNX function found | 1 |" in text


def test_a_list_of_many_families_has_a_score_by_exporter(tool: ModuleType) -> None:
    rows = [
        {"name": f"n{i}", "family": f"f{i}", "exporter": exporter, "outcome": outcome}
        for i in range(8)
        for exporter, outcome in (("dynamo", "right"), ("torchscript", "wrong" if i else "right"))
    ]
    text = tool.list_section("a list", [*rows, {"name": "n9", "outcome": "not exported"}])
    assert "8 families count, 1 of them are right throughout." in text
    assert "| dynamo | 8 | 0 | 0 | 0 | 8 | 8 | 0 | 0 |" in text
    assert "| torchscript | 8 | 0 | 0 | 0 | 8 | 1 | 0 | 7 |" in text


def test_a_list_says_which_sessions_had_kernels(tool: ModuleType) -> None:
    timed = {"session_s": 0.36, "forward_session_s": 0.05, "step_ms": 5.0}
    rows = [
        {"name": "a", "outcome": "right", "kernels": 3, **timed},
        {"name": "b", "outcome": "right", "kernels": 0, "kernels_everywhere": 9,
         "everywhere": "right", **timed, "session_s": 0.1},
        {"name": "c", "outcome": "right", **timed, "session_s": 0.1},
        {"name": "d", "outcome": "refused", "reason": "no rule"},
    ]  # fmt: skip
    text = tool.list_section("a list", rows)
    assert "Sessions with kernels of our own: 1 of 2, 3 at most." in text
    assert "taken for a large one 1 have more, 9 at most: 1 right." in text
    assert "1 of 3 (their steps take 5 ms at most); the nearest is `a` at 1.20 of that" in text
    assert "2 of the 3 cases that have gradients; " in tool.taken_with_kernels({"a list": rows})
    assert "kernels: 1 of 3 of `a list`." in tool.taken_with_kernels({"a list": rows})
    assert tool.taken_with_kernels({"a list": rows[:2]}).endswith(
        "2 cases that have gradients: all."
    )


def test_an_outcome_that_nobody_knows_is_refused(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="fine"):
        tool.score([{"outcome": "fine"}])


def test_every_list_is_described_by_its_module(tool: ModuleType) -> None:
    for name in tool.lists():
        assert (tool.LISTS / f"{name}.py").is_file()
    assert tool.title("opinfo").startswith("PyTorch's own table of operators")
