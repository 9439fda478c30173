"""docs/conformance.md tells what conformance/predecessors says now."""

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
