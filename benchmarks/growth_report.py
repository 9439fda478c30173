"""The section of docs/performance.md about growth, out of `benchmarks/growth.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

SECTION = """## Growth

Step time against batch size, sequence length, depth and width; the other sizes stay as they are.
Measured {dates} ({statistic} of some rounds; `python3 -m benchmarks.growth`).

![Step time against batch size, length, depth and width]({images}/growth.svg)

{growth_table}

Differentiation (load, normalize, differentiate, optimize), the creation of one session of the
result by onnxruntime, and the time until a `Module` is ready, which cuts models of more than 12,000
nodes into pieces, against the number of nodes of the model:

![Seconds against the number of nodes]({images}/nodes.svg)

{node_table}

"""


def growth_section(growth: dict[str, Any], images: str) -> str:
    """The whole section, "" when nothing was measured."""
    if not growth:
        return ""
    curves = growth.get("curves", [])
    days = sorted({c["date"][:10] for c in curves if "date" in c})
    return SECTION.format(
        images=images,
        dates=" to ".join(dict.fromkeys(days[:1] + days[-1:])),
        statistic=" or ".join(sorted({c.get("statistic", "best") for c in curves})),
        growth_table=growth_table(growth),
        node_table=node_table(growth),
    )


def growth_table(growth: dict[str, Any]) -> str:
    """All points of all curves."""
    rows = []
    for curve in growth.get("curves", []):
        for point in curve["points"]:
            mine, theirs = point["ms"].get("ours_parts"), point["ms"].get("eager")
            quotient = theirs / mine if mine and theirs else None
            rows.append([
                curve["title"], f"{curve['axis']} {point['at']}", shown(mine), shown(theirs),
                shown(point["ms"].get("compiled")), shown(quotient),
            ])  # fmt: skip
    head = ["model", "at", "ours, ms", "torch eager, ms", "torch compiled, ms", "eager ÷ ours"]
    return rows_of(head, rows)


def node_table(growth: dict[str, Any]) -> str:
    """Differentiation, one session and a ready Module against the number of nodes."""
    rows, last = [], None
    for point in growth.get("nodes", []):
        times = [point[f"{kind}_s"] for kind in ("differentiate", "session", "module")]
        grown = [f"{b / a:.2f}×" for a, b in zip(last, times)] if last else [""] * len(times)
        cells = [c for time, more in zip(times, grown) for c in (shown(time), more)]
        rows.append([str(point["nodes"]), str(point["nodes_with_gradient"]), *cells])
        last = times
    kinds = ("differentiate", "one session", "Module ready")
    head = ["nodes", "with gradients", *(c for k in kinds for c in (f"{k}, s", "growth"))]
    return rows_of(head, rows)


def shown(value: float | None, digits: int = 2) -> str:
    """A number of a table, a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


def three_digits(value: float) -> str:
    """A time of a table: three digits, and no fewer than it has before the point."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def rows_of(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
