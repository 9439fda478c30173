"""The pictures of a run: curves and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..drawing.scene import Box, Line, Point, Scene, Text, nice_steps, thin

Array = npt.NDArray[Any]

COLOURS = (
    "#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c",
    "#a16207", "#4d7c0f", "#db2777", "#475569", "#7c2d12", "#0f766e",
)  # fmt: skip
"""Of the lines, as many as `onnxtrain runs` draws."""
GROUND, INK, GRID, GREY = "#ffffff", "#1f2933", "#e3e8ee", "#52606d"
DARK_COLOURS = (
    "#7fb0ff", "#ffae66", "#4ade80", "#d0a5ff", "#22d3ee", "#fb7185",
    "#facc15", "#a3e635", "#f9a8d4", "#cbd5e1", "#c8926a", "#5eead4",
)  # fmt: skip
DARK = {
    GROUND: "#1d2128",
    INK: "#e9ecf1",
    GRID: "#343a45",
    GREY: "#a3acba",
    **dict(zip(COLOURS, DARK_COLOURS, strict=True)),
}
"""What a page that is dark has in place of each colour."""


def curves(title: str, series: Mapping[str, Sequence[Point]], x_label: str) -> Scene:
    """Lines over a common axis; points that are not finite are left out."""
    width, height = 640.0, 360.0
    left, right, top, bottom = 64.0, 16.0, 40.0, 48.0
    scene = Scene(width, height, title)
    scene.add(Box(0, 0, width, height, GROUND), Text(left, 22, title, 14, bold=True))
    clean = {
        name: thin([p for p in points if math.isfinite(p[1])]) for name, points in series.items()
    }
    everything = [p for points in clean.values() for p in points]
    if not everything:
        scene.add(Text(width / 2, height / 2, "nothing to show yet", 12, "middle", GREY))
        return scene
    xs, ys = zip(*everything)
    across, up = nice_steps(min(xs), max(xs)), nice_steps(min(ys), max(ys))

    def place(point: Point) -> Point:
        x = (point[0] - across[0]) / (across[-1] - across[0])
        y = (point[1] - up[0]) / (up[-1] - up[0])
        return left + x * (width - left - right), height - bottom - y * (height - top - bottom)

    for x in across:
        at = place((x, up[0]))
        scene.add(Line((at, place((x, up[-1]))), GRID))
        scene.add(Text(at[0], at[1] + 18, f"{x:g}", 11, "middle", GREY))
    for y in up:
        at = place((across[0], y))
        scene.add(Line((at, place((across[-1], y))), GRID))
        scene.add(Text(at[0] - 8, at[1] + 4, f"{y:.4g}", 11, "end", GREY))
    scene.add(Text((left + width - right) / 2, height - 10, x_label, 12, "middle", GREY))
    for i, (name, points) in enumerate(clean.items()):
        colour = COLOURS[i % len(COLOURS)]
        line = tuple(place(p) for p in points)
        if len(line) > 1:
            scene.add(Line(line, colour, 1.0 if len(line) > 100 else 2.0))
        if len(line) <= 40:
            scene.add(*(Box(x - 2.5, y - 2.5, 5, 5, colour, radius=2.5) for x, y in line))
        y = top + 14 + 18 * i
        start = width - right - 130
        scene.add(Line(((start, y - 4), (start + 18, y - 4)), colour, 3))
        scene.add(Text(start + 24, y, name, 12))
    return scene


def confusion(matrix: Array, names: Sequence[str], title: str = "Confusion matrix") -> Scene:
    """Rows are the true classes, columns what the model said."""
    cell, left, top = 40.0, 84.0, 84.0
    extent = cell * len(names)
    scene = Scene(left + extent + 24, top + extent + 24, title)
    scene.add(Box(0, 0, scene.width, scene.height, GROUND), Text(16, 24, title, 14, bold=True))
    scene.add(Text(left + extent / 2, top - 32, "predicted", 12, "middle", GREY))
    scene.add(Text(16, top + extent / 2, "true", 12, "start", GREY))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for i, name in enumerate(names):
        middle = cell * (i + 0.5)
        scene.add(Text(left + middle, top - 10, name[:6], 12, "middle"))
        scene.add(Text(left - 10, top + middle + 4, name[:6], 12, "end"))
        for j, other in enumerate(names):
            share, number = float(shares[i, j]), int(matrix[i, j])
            note = f"{name} taken for {other}: {number}"
            x, y = left + cell * j, top + cell * i
            light, dark = _shades(share, i == j)
            scene.add(Box(x, y, cell - 2, cell - 2, light, note=note, dark=dark))
            if number:
                colour = GROUND if share > 0.5 else INK
                middle_y = y + cell / 2 + 3
                scene.add(Text(x + cell / 2 - 1, middle_y, str(number), 12, "middle", colour))
    return scene


def _shades(share: float, right: bool) -> tuple[str, str]:
    """From near white, or near black, to blue for what is right, to orange for what is wrong."""
    strength = math.sqrt(share)
    light, dark = ((37, 99, 235), (37, 99, 235)) if right else ((234, 88, 12), (194, 65, 12))
    return _mixed((243, 245, 248), light, strength), _mixed((38, 43, 52), dark, strength)


def _mixed(ground: tuple[int, ...], full: tuple[int, ...], strength: float) -> str:
    mixed = np.round(np.array(ground) * (1 - strength) + np.array(full) * strength).astype(int)
    return "#" + "".join(f"{v:02x}" for v in mixed)


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text."""
    marks = "▁▂▃▄▅▆▇█"
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    last = len(marks) - 1
    return "".join(
        marks[round((v - low) / span * last)] if math.isfinite(v) else " " for v in values
    )
