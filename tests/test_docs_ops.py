"""docs/ops.md tells what the registry and the tables say now."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_ops", ROOT / "tools" / "gen_ops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_ops"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """(operator, domain) → the other cells but the versions, which depend on the onnx package."""
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    return {(c[0], c[1]): c[3:] for c in cells if len(c) == 6 and c[0] not in ("operator", "---")}


def test_not_stale(tool: ModuleType) -> None:
    written, fresh = tool.TARGET.read_text(encoding="utf-8"), tool.render()
    if f"Made with onnx {onnx.__version__}." in written:
        assert written == fresh, "docs/ops.md is stale: run `python tools/gen_ops.py`"
    old, new = rows(written), rows(fresh)
    changed = {key for key in old.keys() & new.keys() if old[key] != new[key]}
    assert not changed, "docs/ops.md is stale: run `python tools/gen_ops.py`"


def test_every_operator_has_a_status(tool: ModuleType) -> None:
    standard = tool.standard_rows()
    live = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    assert {r.operator for r in standard} == live
    known = {tool.RULE, tool.BODY, tool.REWRITTEN, tool.STOPS, tool.MISSING}
    assert {r.status for r in standard} <= known
    assert all(r.note for r in standard if r.status == tool.MISSING), "a refusal has a reason"


def test_the_readme_counts_the_same(tool: ModuleType) -> None:
    standard = tool.standard_rows()
    if f"Made with onnx {onnx.__version__}." not in tool.TARGET.read_text(encoding="utf-8"):
        pytest.skip("another onnx has other operators")
    counts = Counter(row.status for row in standard)
    assert counts[tool.MISSING] == 0
    assert (
        f"all {len(standard)} of ai.onnx: {counts[tool.RULE]} have a gradient rule, "
        f"{counts[tool.STOPS]} stop the gradient by nature, "
        f"{counts[tool.REWRITTEN] + counts[tool.BODY]} are rewritten or expanded"
    ) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_rules_show_their_cases(tool: ModuleType) -> None:
    bare = [r.operator for r in tool.standard_rows() if r.status == tool.RULE and not r.cases]
    assert not bare, f"rules without a test: {bare}"
