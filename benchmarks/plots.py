"""The plots of docs/performance.md as small SVG files, out of the stored results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .report import NAMES, ratio

COLOURS = dict(zip(
    ["eager", "compiled", "old", "jax", "onnxsim", "sklearn"],
    ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"],
))  # fmt: skip
OURS = "#222222"


def draw(results: dict[str, Any], growth: dict[str, Any], folder: Path) -> None:
    """All plots into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text (small files), and the same numbers give the same file.
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "onnxtrain", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif",
    })  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    _save(_ratios(results), folder / "ratios.svg")
    if growth.get("curves"):
        _save(_growth(growth["curves"]), folder / "growth.svg")
    if growth.get("nodes"):
        _save(_nodes(growth["nodes"]), folder / "nodes.svg")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _ratios(results: dict[str, Any]) -> Any:
    """A bar per workload and peer, on a logarithmic axis that starts at 1."""
    from matplotlib import pyplot

    entries = list(results.values())
    peers = [p for p in NAMES if any(math.isfinite(ratio(e, p)) for e in entries)]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.62 * max(1, len(entries))))
    height = 0.8 / max(1, len(peers))
    for i, peer in enumerate(peers):
        values = [ratio(e, peer) for e in entries]
        rows = [(row + i * height, v) for row, v in enumerate(values) if math.isfinite(v)]
        if rows:
            places, widths = zip(*rows)
            axes.barh(
                places, [w - 1 for w in widths], height, left=1, color=COLOURS[peer],
                label=NAMES[peer],
            )  # fmt: skip
        for place, value in rows:
            axes.annotate(
                f"{value:.2f}", (value, place), (3 if value >= 1 else -3, 0),
                textcoords="offset points", va="center", ha="left" if value >= 1 else "right",
                fontsize=6,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.axvline(1, color=OURS, linewidth=1)
    axes.set_yticks([r + 0.4 - height / 2 for r in range(len(entries))])
    axes.set_yticklabels([e["title"] for e in entries], fontsize=7)
    axes.invert_yaxis()
    ticks = [0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_xlabel("time of the peer ÷ ours (right of the line: onnxtrain is faster)")
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _growth(curves: list[dict[str, Any]]) -> Any:
    """One panel per axis (batch, length, depth, width); models as line styles."""
    from matplotlib import pyplot

    axes_of = list(dict.fromkeys(c["axis"] for c in curves))
    figure, panels = pyplot.subplots(2, math.ceil(len(axes_of) / 2), figsize=(8, 6), squeeze=False)
    titles = list(dict.fromkeys(c["model"] for c in curves))
    lines = {"ours_parts": ("ours", OURS), "eager": ("torch eager", COLOURS["eager"]),
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
        ("differentiate_s", "differentiate", OURS),
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
