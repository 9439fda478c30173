"""The tutorial's code runs as it stands, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.make_tutorial_figures import PAGES, blocks, run_page

FIGURES = PAGES / "figures"
NAMES = sorted(p.stem for p in PAGES.glob("*.md"))


@pytest.mark.parametrize("name", [n for n in NAMES if n[0].isdigit()])
def test_page_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("skl2onnx", "torch"):
        if re.search(rf"(import|from) {module}", (PAGES / f"{name}.md").read_text("utf-8")):
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    space = run_page(name)
    figure = f"figures/{name}.svg"
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert ("curves" in space) == (figure in text)
    for label, losses in space.get("curves", {}).items():
        assert len(losses) > 1, label
        assert losses[-1] < losses[0], label


@pytest.mark.parametrize("name", NAMES)
def test_links_and_figures_exist(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGES / target).exists(), target
    for code, runs in blocks(text):
        compile(code, name, "exec")
        assert runs or "gpu" in name
