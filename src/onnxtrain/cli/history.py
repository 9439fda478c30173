"""The history of a run: by epoch in history.csv and history.json, by step in steps.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runtime.files.atomic import write_atomically
from .output import UserError

Step = tuple[int, float, float]
"""Number, loss and learning rate."""


def write_history(folder: Path, history: Mapping[str, Sequence[float]], steps: list[Step]) -> None:
    """Write all three files, each at once."""
    columns = ["epoch", *history]
    length = max((len(v) for v in history.values()), default=0)
    rows = [[i + 1, *(v[i] if i < len(v) else "" for v in history.values())] for i in range(length)]
    write_text(folder / "history.csv", _csv([columns, *rows]))
    plain = {name: list(values) for name, values in history.items()}
    write_text(folder / "history.json", json.dumps(plain, indent=2) + "\n")
    write_text(folder / "steps.csv", _csv([["step", "loss", "lr"], *steps]))


def read_steps(folder: Path, until: int) -> list[Step]:
    """Steps of a run that is resumed, up to the one its checkpoint was written at."""
    path = folder / "steps.csv"
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        steps = [(int(r[0]), float(r[1]), float(r[2])) for r in rows if len(r) == 3]
    except (ValueError, csv.Error) as error:
        raise UserError(
            f"{path} is damaged ({error}). Remove it to go on; the curve then begins here."
        ) from error
    return [s for s in steps if s[0] <= until]


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    write_atomically(path, [text.encode()])


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
