"""Rows of results: one line of JSON per case and exporter, in `conformance/results`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
TOTALS = "totals.json"
OUTCOMES = (
    "right", "wrong", "refused", "crash", "timeout", "not run forward", "not exported",
    "no gradient",
)  # fmt: skip
"""The first five count; what cannot be exported, run or differentiated in torch does not."""

Row = dict[str, Any]


def path_of(name: str) -> Path:
    """The file of a list."""
    return FOLDER / f"{name}.jsonl"


def read(path: Path) -> list[Row]:
    """All rows; of a case and exporter that was tried again, the last.

    A row without an exporter is of a case that could not be made: what came before or comes after
    it is of another state of the list.
    """
    rows: dict[tuple[str, str], Row] = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # the process was ended while it wrote this line
            continue
        name, exporter = row["name"], row.get("exporter", "")
        for other in [key for key in rows if key[0] == name] if not exporter else [(name, "")]:
            rows.pop(other, None)
        rows[name, exporter] = row
    return list(rows.values())


def append(path: Path, row: Row) -> None:
    """Add a row, short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(tidy(row), ensure_ascii=False) + "\n")


def compact(path: Path) -> None:
    """Write the file again without rows that later ones replace."""
    rows = read(path)
    if rows:
        fresh = path.with_suffix(".tmp")
        fresh.unlink(missing_ok=True)
        for row in rows:
            append(fresh, row)
        fresh.replace(path)


def note_total(path: Path, total: int) -> None:
    """Remember how many cases a list has, beside its rows."""
    totals = path.parent / TOTALS
    known = json.loads(totals.read_text("utf-8")) if totals.is_file() else {}
    known[path.stem] = total
    path.parent.mkdir(parents=True, exist_ok=True)
    totals.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")


def tidy(row: Row) -> Row:
    """Without what is empty, and numbers with three digits."""
    return {k: _short(v) for k, v in row.items() if v not in ("", None)}


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value
