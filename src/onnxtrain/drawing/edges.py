"""Lines between boxes: through the gaps of the layers between them, with an arrowhead each."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .boxes import GAP_X, GAP_Y, HEIGHT, NodeBox, top_of
from .scene import Point

SLOTS = (0.0, 4.0, -4.0, 7.0, -7.0)
"""Where lines that share a gap run, beside its middle."""
STUB = 12.0
"""Length of the vertical piece that carries the arrowhead."""


@dataclass(frozen=True)
class Route:
    """The way of a value from the box that makes it to one that reads it."""

    source: int
    target: int
    value: str
    points: tuple[Point, ...]


def routes(boxes: Sequence[NodeBox], width: float) -> list[Route]:
    """All lines of a drawing whose boxes have their places."""
    gaps = _Gaps(boxes, width)
    ends = {i: _entries(box, boxes, width) for i, box in enumerate(boxes)}
    return [
        Route(source, i, value, _points(boxes[source], box, exit_of(boxes[source], value, width),
              ends[i][at], gaps))
        for i, box in enumerate(boxes)
        for at, (source, value) in enumerate(zip(box.inputs, box.values))
    ]  # fmt: skip


def exit_of(box: NodeBox, value: str, width: float) -> float:
    """The x at which a value leaves its box: outputs stand side by side."""
    at = box.outputs.index(value) if value in box.outputs else 0
    return box.left(width) + width * (at + 1) / (max(1, len(box.outputs)) + 1)


def _entries(box: NodeBox, boxes: Sequence[NodeBox], width: float) -> list[float]:
    """The x at which each input arrives, from left to right as their sources stand."""
    starts = [exit_of(boxes[i], value, width) for i, value in zip(box.inputs, box.values)]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    step = width / (len(starts) + 1)
    rank = {input_: at for at, input_ in enumerate(order)}
    return [box.left(width) + step * (rank[i] + 1) for i in range(len(starts))]


class _Gaps:
    """Where a line may cross a layer."""

    def __init__(self, boxes: Sequence[NodeBox], width: float) -> None:
        self.width = width
        self.lefts: dict[int, list[float]] = defaultdict(list)
        for box in boxes:
            self.lefts[box.layer].append(box.left(width))
        for lefts in self.lefts.values():
            lefts.sort()
        self._used: Counter[tuple[int, int]] = Counter()

    def through(self, layer: int, x: float, goal: float) -> float:
        """An x near `x` where no box of the layer stands, rather on the side of the goal."""
        lefts = self.lefts.get(layer, [])
        at = bisect_right(lefts, x + GAP_X / 2) - 1
        if at < 0 or x > lefts[at] + self.width + GAP_X / 2:
            return x
        sides = (lefts[at] - GAP_X / 2, lefts[at] + self.width + GAP_X / 2)
        side = min(sides, key=lambda s: abs(s - x) + 0.5 * abs(s - goal))
        gap = (layer, round(side))
        self._used[gap] += 1
        return side + SLOTS[(self._used[gap] - 1) % len(SLOTS)]


def _points(
    source: NodeBox, target: NodeBox, start: float, end: float, gaps: _Gaps
) -> tuple[Point, ...]:
    points = [(start, source.top + HEIGHT)]
    for layer in range(source.layer + 1, target.layer):
        x = gaps.through(layer, points[-1][0], end)
        top = top_of(layer)
        points += [(x, top - GAP_Y / 6), (x, top + HEIGHT + GAP_Y / 6)]
    points += [(end, target.top - STUB), (end, target.top)]
    return tuple(_without_straight(points))


def _without_straight(points: list[Point]) -> list[Point]:
    """Leave out points between two that lie straight above and below."""
    inner = [
        now
        for before, now, after in zip(points, points[1:], points[2:])
        if not before[0] == now[0] == after[0]
    ]
    return [points[0], *inner, points[-1]]
