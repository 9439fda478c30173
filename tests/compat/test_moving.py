"""docs/moving.md names everything that the aliases provide."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from onnxtrain import compat
from onnxtrain.compat.aliases import COMPOSED, PYBIND, SAME

TEXT = (Path(__file__).parents[2] / "docs" / "moving.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [*COMPOSED, *SAME])
def test_modules_are_documented(module: str) -> None:
    last = module.rsplit(".", 1)[-1]
    assert last in TEXT


def test_names_are_documented() -> None:
    names = {n for names in (*COMPOSED.values(), PYBIND) for n in names if not n.startswith("_")}
    assert sorted(n for n in names if f"`{n}`" not in TEXT and f".{n}`" not in TEXT) == []


# --- and nothing that they do not -----------------------------------------------------------------


def rows(heading: str) -> list[tuple[str, str]]:
    """The first two columns of the table below a heading."""
    part = TEXT.partition(heading)[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return [(c[0], c[1]) for c in cells[1:]]


def code(cell: str, pattern: str = r"[\w.]+") -> list[str]:
    return re.findall(rf"`({pattern})`", cell)


def lookup(path: str) -> Any:
    """A module, or an attribute of one."""
    parts = path.split(".")
    for i in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for name in parts[i:]:
            value = getattr(value, name)
        return value
    raise ImportError(path)


def test_full_names_exist() -> None:
    pytest.importorskip("torch")
    roots = r"(?:onnxruntime|onnxcustom|onnxtrain|torch_ort)(?:\.\w+)*"
    names = {n for line in TEXT.splitlines() if line.startswith("| ") for n in code(line, roots)}
    assert len(names) > 30
    with compat.activated():
        for name in names:
            assert lookup(name) is not None


def test_names_of_onnxcustom_exist() -> None:
    table = rows("## Old names and new ones: onnxcustom")
    assert len(table) > 10
    with compat.activated():
        for modules, names in table:
            for module in code(modules, r"onnxcustom[\w.]*"):
                missing = [n for n in code(names, r"\w+") if not hasattr(lookup(module), n)]
                assert not missing, f"{module}: {missing}"


def test_names_of_the_compiled_module_exist() -> None:
    pytest.importorskip("torch")
    table = rows("Names in `onnxruntime.capi._pybind_state`")
    with compat.activated():
        state = importlib.import_module("onnxruntime.capi._pybind_state")
        assert [n for old, _ in table for n in code(old, r"\w+") if not hasattr(state, n)] == []
