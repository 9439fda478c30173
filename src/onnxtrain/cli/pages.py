"""The frame of pages that need no other file: their style, light and dark as the reader's system.

The palette is the one of the page of ``onnxtrain serve`` (``js/page/style.css``).
"""

from __future__ import annotations

import html

from ..drawing.inert import inert
from .charts import DARK, GROUND

LIGHT_PALETTE = """\
  --ground: #f4f5f7; --card: #ffffff; --ink: #1b1f27; --quiet: #5a6372; --edge: #d9dde4;
  --bad: #b3261e; --good: #15803d;"""
DARK_PALETTE = """\
  --ground: #14171c; --card: #1d2128; --ink: #e9ecf1; --quiet: #a3acba; --edge: #343a45;
  --bad: #ff8a80; --good: #4ade80;"""

BASIC_STYLE = """
body { font: 15px/1.5 system-ui, Helvetica, Arial, sans-serif; color: var(--ink); margin: 0 auto;
       max-width: 1060px; padding: 24px; background: var(--ground); }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 12px; }
p.sub { color: var(--quiet); margin: 0 0 20px; }
.cards, .charts, .samples { display: flex; flex-wrap: wrap; gap: 12px; }
.card, .chart, table, .sample { background: var(--card); border: 1px solid var(--edge);
  border-radius: 8px; }
.card { padding: 12px 16px; min-width: 120px; }
.card b { display: block; font-size: 20px; } .card span { color: var(--quiet); font-size: 13px; }
.chart { padding: 8px; flex: 0 1 510px; box-sizing: border-box; }
.chart svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: 5px 12px;
  border-bottom: 1px solid var(--edge); font-variant-numeric: tabular-nums;
  word-break: break-word; }
tr:last-child td { border-bottom: 0; } th { color: var(--quiet); font-weight: 600; }
.sample { padding: 10px; width: 140px; font-size: 13px; }
.sample img { width: 100%; image-rendering: pixelated; border-radius: 4px; background: #000; }
.right { color: var(--good); } .wrong { color: var(--bad); }
.scroll { overflow-x: auto; }
"""


def escape(text: str) -> str:
    """Text as HTML holds it."""
    return html.escape(inert(text))


def whole_page(title: str, body: str) -> str:
    """A page as text; it needs no other file and no network."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _dark_charts() -> str:
    """What charts look like on a dark page: each of their colours has another there."""
    rules = [".chart rect[style] { fill: var(--dark); }"]
    for light, dark in DARK.items():
        # White is also the text on cells of full colour, which stays what it is.
        shapes = "rect" if light == GROUND else ""
        rules.append(f'.chart {shapes}[fill="{light}"] {{ fill: {dark}; }}')
        rules.append(f'.chart {shapes}[stroke="{light}"] {{ stroke: {dark}; }}')
    return "\n".join(rules)


STYLE = (
    f"\n:root {{ color-scheme: light dark;\n{LIGHT_PALETTE} }}{BASIC_STYLE}"
    f"@media (prefers-color-scheme: dark) {{\n:root {{\n{DARK_PALETTE} }}\n{_dark_charts()}\n}}\n"
)
