"""The lowest versions that are claimed: one list, one table of defects, one page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from .defects import DEFECTS, defect_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")


@pytest.fixture(scope="module")
def floors():
    spec = importlib.util.spec_from_file_location("floors", ROOT / "tools" / "floors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_versions_of_pyproject(floors) -> None:
    lowest = {canonicalize_name(r.name): floors.floor(r) for r in floors.claimed()}
    rows = dict(re.findall(r"^\| ([\w-]+)(?: \([^|]*\))? \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows.pop("Python") == "3.10"
    assert {name: Version(v) for name, v in rows.items()} == {n: lowest[n] for n in rows}
    assert {"onnxruntime", "onnx", "onnx-ir", "numpy", "torch"} <= rows.keys()


def test_every_dependency_has_a_lowest_version(floors) -> None:
    pinned = {canonicalize_name(r.name) for r in floors.lowest() if "==" in str(r.specifier)}
    assert {canonicalize_name(r.name) for r in floors.claimed()} <= pinned


def test_the_newest_is_not_held_back(floors) -> None:
    """requirements-test.txt pins versions for comparable runs; `--newest` must not."""
    named = {canonicalize_name(r.name): r for r in floors.newest()}
    for name in ("onnx", "onnxruntime", "torch"):
        assert "==" not in str(named[name].specifier)


def test_the_page_has_the_defects() -> None:
    rows = list(dict.fromkeys(f"| {d.package} before {d.before} | {d.reason} |" for d in DEFECTS))
    assert [line for line in PAGE.splitlines() if re.match(r"\| \S+ before ", line)] == rows


def test_a_defect_is_found_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tests/rules/test_rules.py::test_gradient[DeformConv-19(1x4x5x6)]"
    for installed, expected in (("1.24.4", True), ("1.25.0", False)):
        monkeypatch.setattr("tests.defects.version", lambda _, installed=installed: installed)
        monkeypatch.setattr("tests.defects._has", _uncached())
        assert (defect_of(name) is not None) is expected
    assert defect_of("tests/rules/test_rules.py::test_gradient[Add]") is None


def _uncached():
    from . import defects

    return defects._has.__wrapped__ if hasattr(defects._has, "__wrapped__") else defects._has
