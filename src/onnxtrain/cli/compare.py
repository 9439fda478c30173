"""The page of several runs: one chart per value with a line per run, and the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .charts import curves
from .output import count
from .report import STYLE, escape, html_table

if TYPE_CHECKING:
    from .runs import FinishedRun


def page(runs: Sequence[FinishedRun], head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The whole page as text; it needs no other file and no network.

    Args:
        runs: those whose curves are drawn.
        head: of the table.
        rows: of the table, for all runs.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.history))
    charts = "".join(f'<div class="chart">{_chart(name, runs)}</div>' for name in names)
    title = f"{count(len(rows), 'run')} of onnxtrain"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<h2>Curves</h2>\n"
        f'<div class="charts">{charts}</div>\n<h2>Runs</h2>\n{html_table(head, rows)}\n'
        "</body>\n</html>\n"
    )


def _chart(name: str, runs: Sequence[FinishedRun]) -> str:
    common = os.path.commonpath([run.folder.parent for run in runs])
    lines = {
        os.path.relpath(run.folder, common): [
            (float(i + 1), value) for i, value in enumerate(run.history[name])
        ]
        for run in runs
        if name in run.history
    }
    return curves(name.replace("_", " "), lines, "epoch").svg()
