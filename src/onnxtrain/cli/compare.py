"""The page of several runs: one chart per value with a line per run, and the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .charts import curves
from .output import count
from .pages import whole_page
from .report import html_table

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
    body = f'<div class="charts">{charts}</div>\n<h2>Runs</h2>\n{html_table(head, rows)}'
    return whole_page(title, f"<h2>Curves</h2>\n{body}")


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
