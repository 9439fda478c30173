"""Scripts in miniature: every public name used the way its documentation shows, by its old name."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxtrain import compat

from .scripts import blocks, custom, device, lowlevel, pytorch
from .scripts.prelude import MAKE_ARTIFACTS, ready

TABLES = {
    "blocks": blocks.SCRIPTS,
    "device": {name: MAKE_ARTIFACTS + code for name, code in device.SCRIPTS.items()},
    "lowlevel": lowlevel.SCRIPTS,
    "pytorch": pytorch.SCRIPTS,
    "custom": custom.SCRIPTS,
}
CASES = [(table, name) for table, scripts in TABLES.items() for name in scripts]


@pytest.mark.parametrize(("table", "name"), CASES, ids=[f"{t}-{n}" for t, n in CASES])
def test_script(table: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if table == "pytorch":
        pytest.importorskip("torch")
    if table == "custom":
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    with compat.activated():
        exec(compile(TABLES[table][name], f"<{name}>", "exec"), {"__name__": "script", **ready()})


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 40
