"""docs/moving.md names everything that the aliases provide."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxtrain.compat.aliases import COMPOSED, PYBIND, SAME

TEXT = (Path(__file__).parents[2] / "docs" / "moving.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", [*COMPOSED, *SAME])
def test_modules_are_documented(module: str) -> None:
    last = module.rsplit(".", 1)[-1]
    assert last in TEXT


def test_names_are_documented() -> None:
    names = {n for names in (*COMPOSED.values(), PYBIND) for n in names if not n.startswith("_")}
    assert sorted(n for n in names if f"`{n}`" not in TEXT and f".{n}`" not in TEXT) == []
