"""Where the text comes from: the folder that ONNXTRAIN_WIKITEXT names, or else drawn words."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

WORDS, LINES, WORDS_IN_LINE = 2000, 1500, 12


def download_from_url(url: str, root: str | None = None) -> str:
    """The folder with the text; nothing is downloaded."""
    return os.environ.get("ONNXTRAIN_WIKITEXT") or _drawn()


def extract_archive(folder: str, to_path: Any = None) -> list[str]:
    """Files to test, validate and train with; without the last the second serves for both."""
    names = ("test.txt", "valid.txt", "train.txt")
    paths = [Path(folder) / name for name in names]
    return [str(path if path.is_file() else paths[1]) for path in paths]


def _drawn() -> str:
    """A folder with text of two thousand words, some far more frequent than others."""
    folder = Path(tempfile.gettempdir()) / f"onnxtrain-drawn-text-{os.getpid()}"
    if (folder / "train.txt").is_file():
        return str(folder)
    folder.mkdir(exist_ok=True)
    draw = random.Random(0)
    for name in ("test.txt", "valid.txt", "train.txt"):
        rows = (
            " ".join(f"w{int(WORDS * draw.random() ** 3)}" for _ in range(WORDS_IN_LINE))
            for _ in range(LINES)
        )
        (folder / name).write_text("\n".join(rows), encoding="utf8")
    return str(folder)
