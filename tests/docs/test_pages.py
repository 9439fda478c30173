"""Every Python block of every page runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PYTHON, read_blocks, run_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OTHERS = ("tutorial", "moving.md")  # have tests of their own: test_tutorial.py, test_moving.py
PAGES = sorted(
    p.relative_to(DOCS).as_posix()
    for p in DOCS.rglob("*.md")
    if p.relative_to(DOCS).parts[0] not in OTHERS
    and any(b.language in PYTHON for b in read_blocks(p))
)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / page)


def test_the_differentiator_is_sixty_lines():
    block = next(b for b in read_blocks(DOCS / "how_it_works.md") if b.language == "python")
    assert len([line for line in block.code.splitlines() if line.strip()]) <= 60


def test_most_blocks_are_run():
    """The way out, ``skip``, is for the few that cannot run."""
    blocks = [b for p in PAGES for b in read_blocks(DOCS / p) if b.language in PYTHON]
    skipped = [b for b in blocks if "skip" in b.marks]
    assert len(skipped) <= len(blocks) // 10
    assert all(b.marks["skip"] for b in skipped), "say why a block cannot run"


# --- the extractor itself -------------------------------------------------------------------------


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_share_names_and_hidden_code_runs(tmp_path):
    text = (
        "<!-- setup\na = 1\n-->\n```python\nb = a + 1\n```\n1. item\n   ```py\n   c = b\n   ```\n"
    )
    assert run_page(page(tmp_path, text))["c"] == 2


def test_an_error_in_a_block_is_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run_page(page(tmp_path, "```python\n1 / 0\n```\n"))


def test_an_expected_error_must_come(tmp_path):
    run_page(page(tmp_path, "<!-- raises: ArithmeticError -->\n```python\n1 / 0\n```\n"))
    with pytest.raises(AssertionError, match="no KeyError was raised"):
        run_page(page(tmp_path, "<!-- raises: KeyError -->\n```python\npass\n```\n"))
    with pytest.raises(AssertionError, match="is no KeyError"):
        run_page(page(tmp_path, "<!-- raises: KeyError -->\n```python\n1 / 0\n```\n"))


def test_shown_output_is_compared(tmp_path):
    good = "```python\nprint(1 + 1)\n```\n<!-- output -->\n```text\n2\n```\n"
    run_page(page(tmp_path, good))
    with pytest.raises(AssertionError, match="another output"):
        run_page(page(tmp_path, good.replace("\n2\n", "\n3\n")))


def test_skipped_and_foreign_blocks_do_not_run(tmp_path):
    text = "<!-- skip: no network -->\n```python\n1 / 0\n```\n```bash\nexit 1\n```\n"
    run_page(page(tmp_path, text))


def test_an_open_block_is_reported(tmp_path):
    with pytest.raises(ValueError, match="never closed"):
        read_blocks(page(tmp_path, "```python\nx = 1\n"))
