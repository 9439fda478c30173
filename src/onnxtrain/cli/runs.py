"""``onnxtrain runs``: the runs in a folder as a table, and their curves in one page."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..errors import OnnxTrainError
from .app import common
from .output import UserError, count, current

EPILOG = """\b
Examples:
  onnxtrain runs
  onnxtrain runs runs/model-tune --sort val_loss
  onnxtrain runs --html compare.html
  onnxtrain runs --json | jq '.[0].last'
"""
SHOWN = {"loss": "loss function", "optimizer": "optimizer", "lr": "rate", "batch_size": "batch"}
"""Settings that the table shows, and its headings for them."""
MOST_CURVES = 12


@dataclass(frozen=True)
class FinishedRun:
    """What a run has left in its folder."""

    folder: Path
    settings: dict[str, Any]
    history: dict[str, list[float]]

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return max((len(v) for v in self.history.values()), default=0)

    @property
    def last(self) -> dict[str, float]:
        """The values of the last epoch, learning rate apart."""
        return {k: v[-1] for k, v in self.history.items() if v and k != "lr"}

    def sort_key(self, name: str) -> float:
        """By which runs are ordered, the best first."""
        from ..runtime.loop.callbacks import is_better

        value = self.last.get(name, math.nan)
        if math.isnan(value):
            return math.inf
        return -value if is_better(1.0, 0.0, name, None, 0.0) else value


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(), default="runs")
@click.option("--sort", help="Order by this value of the last epoch, the best first.")
@click.option("--html", type=click.Path(), help="Write one page with the curves of all runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@common
def command(folder: str, sort: str | None, html: str | None, as_json: bool) -> None:
    """Compare the runs in FOLDER: their settings, results and curves."""
    runs = find_runs(Path(folder))
    if sort is not None:
        known = sorted({name for run in runs for name in run.last})
        if sort not in known:
            raise UserError(f"--sort {sort!r}: the runs have {', '.join(known) or 'no values'}.")
        runs.sort(key=lambda run: run.sort_key(sort))
    if as_json:
        click.echo(json.dumps([_plain(run) for run in runs], indent=2))
        return
    screen = current()
    head, rows = table(runs)
    shared, shown_head, shown_rows = narrowed(head, rows, screen.out.width)
    if shared:
        screen.show(f"all of them: {shared}")
    screen.table("", shown_head, shown_rows, ",".join(head[2:]))
    if html is not None:
        from .compare import page
        from .history import write_text

        write_text(Path(html), page(runs[:MOST_CURVES], head, rows))
        more = f" of the first {MOST_CURVES}" if len(runs) > MOST_CURVES else ""
        screen.show(f"\n{html}  the curves{more} of {count(len(runs), 'run')}")


def find_runs(folder: Path) -> list[FinishedRun]:
    """The runs in a folder and the folders in it, by name; damaged ones are named and left out."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {str(folder)!r} with runs. onnxtrain train makes one.")
    files = [*folder.glob("run.json"), *folder.glob("*/run.json"), *folder.glob("*/*/run.json")]
    results = [_read_or_reason(file.parent) for file in sorted(set(files))]
    runs = [run for run in results if isinstance(run, FinishedRun)]
    damaged = [reason for reason in results if isinstance(reason, str)]
    if not runs:
        nothing = f"The folder {str(folder)!r} holds no runs (no run.json)."
        raise UserError(damaged[0] if damaged else nothing)
    for message in damaged:
        current().say(f"left out: {message}", "yellow")
    return runs


def _read_or_reason(folder: Path) -> FinishedRun | str:
    """A run, or what is wrong with what it has left."""
    from .run_folder import read_about

    try:
        settings = read_about(folder / "run.json")["settings"]
        return FinishedRun(folder, settings, read_history(folder / "history.json"))
    except OnnxTrainError as error:
        return str(error)


def read_history(path: Path) -> dict[str, list[float]]:
    """Values by epoch; none if the run has not come to the end of an epoch."""
    from ..runtime.files.readfile import read_regular

    if not path.is_file():
        return {}
    try:
        history = json.loads(read_regular(path, UserError))
    except (ValueError, RecursionError):
        history = None
    if isinstance(history, dict) and all(map(_is_curve, history.values())):
        return {name[:200]: [float(v) for v in values] for name, values in history.items()}
    raise UserError(f"{path} is damaged: it is not a history of a run. Remove its folder.")


def _is_curve(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def table(runs: list[FinishedRun]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what the runs were started with, and where they ended."""
    values = list(dict.fromkeys(name for run in runs for name in run.last))
    rows = []
    for run in runs:
        model = Path(str(run.settings.get("model", "?"))).name
        chosen = [_short(run.settings.get(name, "")) for name in SHOWN]
        last = [_short(run.last.get(name, "")) for name in values]
        rows.append([str(run.folder), model, *chosen, str(run.epochs), *last])
    return ["run", "model", *SHOWN.values(), "epochs", *values], rows


def narrowed(
    head: list[str], rows: list[list[str]], width: int
) -> tuple[str, list[str], list[list[str]]]:
    """Where a table is too wide: what all runs share, in words, and the table without it."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        return "", head, rows
    settings = range(1, 2 + len(SHOWN))
    equal = [i for i in settings if len({row[i] for row in rows}) == 1]
    rest = [i for i in range(len(head)) if i not in equal]
    shared = ", ".join(f"{head[i]} {rows[0][i]}" for i in equal)
    return shared, [head[i] for i in rest], [[row[i] for i in rest] for row in rows]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:60]


def _plain(run: FinishedRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "settings": run.settings,
        "epochs": run.epochs,
        "last": run.last,
        "history": run.history,
    }
