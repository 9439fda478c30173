"""Write the figures of the tutorial: run each page's code and draw the curves it leaves behind.

    python -m tools.make_tutorial_figures [page …]

A page's code may leave `curves` (label → losses) and `pictures` (name → SVG).
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
import warnings
from html import escape
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "tutorial"
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 320, 66, 44, 34


def blocks(text: str) -> list[tuple[str, bool]]:
    """The Python blocks of a page, and whether each is meant to be run."""
    found = re.findall(r"^```python( no-run)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(code, not skipped) for skipped, code in found]


def run_page(name: str) -> dict[str, Any]:
    """Run a page's blocks one after the other; gives the names they define."""
    space: dict[str, Any] = {"__name__": f"tutorial_{name}"}
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        for number, (code, runs) in enumerate(blocks(text), 1):
            if runs:
                exec(compile(code, f"{name}.md, block {number}", "exec"), space)
    return space


def chart(curves: dict[str, list[float]], title: str) -> str:
    """Curves over the passes, with a logarithmic axis, as SVG."""
    values = [v for losses in curves.values() for v in losses if v > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    longest = max(len(losses) for losses in curves.values())

    def place(i: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 16) * i / max(longest - 1, 1)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(max(value, 10**low))) / (high - low)
        return f"{x:.1f},{y:.1f}"

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>'
    )
    parts = [head]
    for power in range(low, high + 1):
        y = float(place(0, 10.0**power).split(",")[1])
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e7"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    for i in sorted({0, (longest - 1) // 2, longest - 1}):
        x = place(i, 10.0**low).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 24}" text-anchor="middle">{i + 1}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">pass</text>')
    for number, (label, losses) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(i, v) for i, v in enumerate(losses))
        dash = ' stroke-dasharray="6 4"' if number else ""  # curves may lie on each other
        y = TOP + 14 + 16 * number
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            f'<line x1="{WIDTH - 236}" x2="{WIDTH - 212}" y1="{y - 4}" y2="{y - 4}" '
            f'stroke="{colour}" stroke-width="2"{dash}/>'
            f'<text x="{WIDTH - 206}" y="{y}">{escape(label)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    names = sys.argv[1:] or sorted(p.stem for p in PAGES.glob("[0-9]*.md"))
    (PAGES / "figures").mkdir(exist_ok=True)
    for name in names:
        space = run_page(name)
        title = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        if "curves" in space:
            path = PAGES / "figures" / f"{name}.svg"
            path.write_text(chart(space["curves"], title), encoding="utf-8")
            print(path.name)
        for tag, picture in space.get("pictures", {}).items():
            path = PAGES / "figures" / f"{name}-{tag}.svg"
            path.write_text(picture, encoding="utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
