"""Scripts in miniature: every public name used the way its documentation shows, by its old name."""

from __future__ import annotations

import os
import subprocess
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


NOT_IN_1_19 = {
    "old_onnx_model": "1.13 and 1.14",
    "state_indexing": "1.15",
    "weighted_losses": "a bug that is fixed here",
    "training_model_in_a_plain_session": "needs standard operators",
}
OLD_PYTHON = os.environ.get("ONNXTRAIN_OLD_PYTHON")


@pytest.mark.skipif(
    not OLD_PYTHON,
    reason="set ONNXTRAIN_OLD_PYTHON to a python that has onnxruntime-training-cpu 1.19.2",
)
@pytest.mark.parametrize(
    ("table", "name"),
    [c for c in CASES if c[0] in {"blocks", "device"} and c[1] not in NOT_IN_1_19],
)
def test_the_predecessor_runs_the_same_script(table: str, name: str) -> None:
    assert OLD_PYTHON is not None
    script = Path(__file__).parent / "scripts" / "on_old.py"
    done = subprocess.run(
        [OLD_PYTHON, script, table, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 40
