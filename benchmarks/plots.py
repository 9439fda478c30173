"""The plots of docs/performance.md as small SVG files, out of the stored runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import ALONE, BESIDE, Figures
from .race import OURS
from .report import NAMES, history
from .runs import Run, newest

COLOURS = {"eager": "#4477aa", "compiled": "#66ccee"}
BLACK = "#222222"
WAYS = dict(zip(OURS, ["#228833", "#4477aa", "#ee6677"]))


def draw(runs: Sequence[Run], growth: dict[str, Any], folder: Path) -> None:
    """All plots into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text (small files), and the same numbers give the same file.
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "onnxtrain", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif",
    })  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    _save(_ratios(Figures(newest(runs))), folder / "ratios.svg")
    _save(_versions(runs), folder / "versions.svg")
    if growth.get("curves"):
        _save(_growth(growth["curves"]), folder / "growth.svg")
    if growth.get("nodes"):
        _save(_nodes(growth["nodes"]), folder / "nodes.svg")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _ratios(figures: Figures) -> Any:
    """A point per workload and way with its quartiles: filled alone, hollow beside torch."""
    from matplotlib import pyplot

    rows = figures.names
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.5 * max(1, len(rows))))
    for i, (way, colour) in enumerate(WAYS.items()):
        for setting, shift, fill in ((ALONE, 0.0, colour), (BESIDE, 0.1, "white")):
            points = []
            for row, name in enumerate(rows):
                ratio = figures.against_torch(name, way, setting)
                if math.isfinite(ratio.median):
                    points.append((ratio, row + (i - 1) * 0.25 + shift))
            if points:
                middle = [r.median for r, _ in points]
                ends = [
                    [r.median - r.low for r, _ in points],
                    [r.high - r.median for r, _ in points],
                ]
                place = "" if setting == ALONE else ", beside torch"
                axes.errorbar(
                    middle, [y for _, y in points], xerr=ends, fmt="o", color=colour, mfc=fill,
                    markersize=4, elinewidth=1, label=f"{NAMES[way]}{place}",
                )  # fmt: skip
    axes.set_xscale("log")
    axes.axvline(1, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(rows)), [figures.last(n)["title"] for n in rows], fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    ticks = [0.5, 0.8, 1, 1.2, 1.5, 2, 5, 10]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("the better torch ÷ ours (right of the line: onnxtrain is faster)")
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _versions(runs: Sequence[Run]) -> Any:
    """The geometric mean of each way, by state of the sources."""
    from matplotlib import pyplot

    states = history(runs)
    figure, axes = pyplot.subplots(figsize=(8, 3.2))
    for way, colour in WAYS.items():
        known = [(i, m[way].value) for i, (_, m) in enumerate(states) if m[way].count]
        if known:
            axes.plot(*zip(*known), "o-", color=colour, markersize=4, label=NAMES[way])
    axes.axhline(1, color=BLACK, linewidth=1)
    axes.set_xticks(range(len(states)), [s for s, _ in states], rotation=20, ha="right", fontsize=7)
    axes.set_ylabel("the better torch ÷ ours")
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize=7, frameon=False)
    return figure


def _growth(curves: list[dict[str, Any]]) -> Any:
    """One panel per axis (batch, length, depth, width); models as line styles."""
    from matplotlib import pyplot

    axes_of = list(dict.fromkeys(c["axis"] for c in curves))
    figure, panels = pyplot.subplots(2, math.ceil(len(axes_of) / 2), figsize=(8, 6), squeeze=False)
    titles = list(dict.fromkeys(c["model"] for c in curves))
    lines = {"ours_parts": ("ours", BLACK), "eager": ("torch eager", COLOURS["eager"]),
             "compiled": ("torch compiled", COLOURS["compiled"])}  # fmt: skip
    for panel, axis in zip(panels.flat, axes_of):
        for curve in (c for c in curves if c["axis"] == axis):
            style = ["-", "--"][titles.index(curve["model"]) % 2]
            for peer, (label, colour) in lines.items():
                known = [(p["at"], p["ms"][peer]) for p in curve["points"] if p["ms"].get(peer)]
                if known:
                    panel.plot(
                        *zip(*known), style, marker="o", markersize=3, color=colour,
                        label=f"{curve['model']}, {label}",
                    )  # fmt: skip
        ticks = sorted({p["at"] for c in curves if c["axis"] == axis for p in c["points"]})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(ticks, [str(t) for t in ticks])
        panel.set_xlabel(axis)
        panel.set_ylabel("ms per step")
        panel.grid(alpha=0.25)
    for panel in list(panels.flat)[len(axes_of) :]:
        panel.set_visible(False)
    panels.flat[0].legend(fontsize=6, frameon=False)
    figure.tight_layout()
    return figure


def _nodes(points: list[dict[str, Any]]) -> Any:
    """Seconds against nodes, with a line of slope 1 through the first point."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.4))
    nodes = [p["nodes"] for p in points]
    for key, label, colour in (
        ("differentiate_s", "differentiate", BLACK),
        ("session_s", "one session (onnxruntime)", COLOURS["eager"]),
        ("module_s", "Module ready (in pieces)", COLOURS["compiled"]),
    ):
        times = [p[key] for p in points]
        axes.plot(nodes, times, marker="o", markersize=3, color=colour, label=label)
        axes.plot(nodes, [times[0] * n / nodes[0] for n in nodes], ":", color=colour, linewidth=0.8)
    axes.plot([], [], ":", color="grey", linewidth=0.8, label="linear")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(nodes, [f"{n:,}" for n in nodes], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel("nodes of the model")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, frameon=False)
    return figure
