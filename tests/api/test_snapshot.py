"""The public names and signatures are those of snapshot.txt: a change is seen in review."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("snapshot", ROOT / "tools" / "api_snapshot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections(text: str) -> dict[str, list[str]]:
    """Module → its lines."""
    parts = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)[1:]
    return {name: body.splitlines() for name, body in zip(parts[::2], parts[1::2])}


def test_nothing_public_has_changed(tool: ModuleType) -> None:
    written, fresh = tool.TARGET.read_text(encoding="utf-8"), tool.render()
    changed = difflib.unified_diff(written.splitlines(), fresh.splitlines(), lineterm="", n=0)
    assert written == fresh, (
        "The public API has changed. If that is meant, run `python3 dev.py api` and add a line to "
        "CHANGELOG.md:\n" + "\n".join(changed)
    )


def test_every_name_can_be_imported(tool: ModuleType) -> None:
    """The snapshot is read from the source; this is what Python says."""
    names = 0
    for title, lines in sections(tool.TARGET.read_text(encoding="utf-8")).items():
        try:
            module = importlib.import_module(title)
        except ImportError:
            continue  # an extra that is not installed
        for line in lines:
            found = re.match(r"(?:class |def |module )?(\w+)", line)
            if found and not line.startswith(" "):
                assert hasattr(module, found[1]), f"{title}.{found[1]}"
                names += 1
    assert names > 200


def test_the_front_door_is_complete(tool: ModuleType) -> None:
    import onnxtrain

    lines = sections(tool.TARGET.read_text(encoding="utf-8"))["onnxtrain"]
    listed = {re.match(r"(?:class |def |module )?(\w+)", line)[1] for line in lines if line}
    assert listed == {*onnxtrain._HOMES, *onnxtrain._MODULES}
