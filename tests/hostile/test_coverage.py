"""The page that says which test shows what names tests that there are, and every promise."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (Path(__file__).parent / "README.md").read_text("utf-8")
ADVISORIES = (
    "2022-25882", "2024-27318", "2024-27319", "2024-5187", "2025-51480", "2026-27489",
    "2026-34445", "2026-34446", "2026-34447",
)  # fmt: skip


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_page_that_is_named_exists() -> None:
    pages = re.findall(r"`(docs/[\w/]+\.md)`", PAGE)
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_every_advisory_has_a_row() -> None:
    tables = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("test_*.py"))
    assert [a for a in ADVISORIES if a not in PAGE or f"CVE-{a}" not in tables] == []
