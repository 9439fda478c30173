"""A drawing as one page: pan, zoom, find a node, and click it for its attributes.

Names out of a model are text there: they reach the page through JSON and ``textContent``, and its
policy lets no other script run than the one below.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence

from .boxes import NodeBox
from .inert import inert
from .layout import Drawing

STYLE = """
html, body { margin: 0; height: 100%; overflow: hidden; background: #fff; color: #1f2933;
  font: 14px/1.45 system-ui, Helvetica, Arial, sans-serif; }
svg { display: block; width: 100vw; height: 100vh; cursor: grab; touch-action: none; }
svg.moving { cursor: grabbing; }
svg text { pointer-events: none; user-select: none; }
rect[data-mark] { cursor: pointer; }
rect[data-mark]:hover, rect.near { stroke-width: 2.5; }
rect.chosen { stroke-width: 4; }
rect.found { stroke: #be123c; stroke-width: 4; }
polyline.near { stroke-width: 3; }
#tools { position: fixed; left: 12px; bottom: 12px; display: flex; gap: 6px; align-items: center; }
#tools > * { font: inherit; padding: 5px 10px; border: 1px solid #cbd5e1; border-radius: 6px;
  background: #fff; color: inherit; }
#tools output { border: 0; background: none; color: #52606d; }
#panel { position: fixed; right: 12px; top: 12px; width: min(380px, calc(100vw - 24px));
  max-height: calc(100vh - 24px); overflow: auto; box-sizing: border-box; padding: 12px 16px;
  background: #fff; border: 1px solid #cbd5e1; border-radius: 8px;
  box-shadow: 0 4px 18px rgb(15 23 42 / 15%); }
#panel[hidden] { display: none; }
#panel button { float: right; border: 0; background: none; font-size: 18px; cursor: pointer; }
dl { margin: 0; } dt { color: #52606d; font-size: 12px; margin-top: 8px; }
dd { margin: 0; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 13px; }
"""

SCRIPT = """
"use strict";
const nodes = JSON.parse(document.getElementById("nodes").textContent);
const svg = document.querySelector("svg");
const panel = document.getElementById("panel");
const find = document.getElementById("find");
const said = document.getElementById("said");
const boxes = [...svg.querySelectorAll("rect[data-mark]")];
const lines = [...svg.querySelectorAll("polyline[data-mark]")];
const whole = svg.viewBox.baseVal;
const first = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
let view = { ...first };

function show(next) {
  view = next;
  svg.setAttribute("viewBox", [view.x, view.y, view.width, view.height].join(" "));
}

function place(event) {
  const point = new DOMPoint(event.clientX, event.clientY);
  return point.matrixTransform(svg.getScreenCTM().inverse());
}

function zoom(factor, at) {
  const width = Math.min(first.width * 4, Math.max(40, view.width * factor));
  const scale = width / view.width;
  show({
    x: at.x - (at.x - view.x) * scale,
    y: at.y - (at.y - view.y) * scale,
    width,
    height: view.height * scale,
  });
}

const middle = () => ({ x: view.x + view.width / 2, y: view.y + view.height / 2 });

svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(event.deltaY * 0.0015), place(event));
}, { passive: false });

const fingers = new Map();
let moved = 0;
svg.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  moved = 0;
});
svg.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const a = place(before), b = place(event);
  moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
  if (moved > 4) svg.classList.add("moving");
  const other = [...fingers.values()].find((f) => f.pointerId !== event.pointerId);
  if (other) {
    const c = place(other), span = (p) => Math.hypot(p.x - c.x, p.y - c.y);
    zoom(span(a) / Math.max(1e-6, span(b)), c);
  } else {
    show({ ...view, x: view.x + a.x - b.x, y: view.y + a.y - b.y });
  }
  fingers.set(event.pointerId, event);
});
for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
  svg.addEventListener(name, (event) => {
    fingers.delete(event.pointerId);
    svg.classList.remove("moving");
  });
}

function choose(number) {
  for (const element of [...boxes, ...lines]) element.classList.remove("chosen", "near");
  panel.hidden = number === null;
  if (number === null) return;
  const near = new Set();
  for (const line of lines) {
    const [from, to] = line.dataset.mark.split(" ");
    if (from !== number && to !== number) continue;
    line.classList.add("near");
    near.add(from).add(to);
  }
  for (const box of boxes) {
    box.classList.toggle("near", near.has(box.dataset.mark));
    box.classList.toggle("chosen", box.dataset.mark === number);
  }
  const list = document.createElement("dl");
  for (const [name, text] of nodes[number]) {
    list.append(Object.assign(document.createElement("dt"), { textContent: name }));
    list.append(Object.assign(document.createElement("dd"), { textContent: text }));
  }
  panel.querySelector("dl").replaceWith(list);
  panel.scrollTop = 0;
}

svg.addEventListener("click", (event) => {
  if (moved > 4) return;
  const box = event.target.closest("rect[data-mark]");
  choose(box ? box.dataset.mark : null);
});
panel.querySelector("button").addEventListener("click", () => choose(null));

let found = [];
find.addEventListener("input", () => {
  const word = find.value.trim().toLowerCase();
  const has = (box) => nodes[box.dataset.mark].some((f) => f[1].toLowerCase().includes(word));
  found = word ? boxes.filter(has) : [];
  for (const box of boxes) box.classList.toggle("found", found.includes(box));
  said.textContent = word ? `${found.length} found` : "";
});
find.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !found.length) return;
  const box = found[0];
  found.push(found.shift());
  const { x, y, width, height } = box.getBBox();
  const wide = Math.min(view.width, 900), tall = view.height * wide / view.width;
  show({ x: x + width / 2 - wide / 2, y: y + height / 2 - tall / 2, width: wide, height: tall });
  choose(box.dataset.mark);
});

document.getElementById("in").addEventListener("click", () => zoom(0.7, middle()));
document.getElementById("out").addEventListener("click", () => zoom(1 / 0.7, middle()));
document.getElementById("fit").addEventListener("click", () => show({ ...first }));
addEventListener("keydown", (event) => {
  if (event.target === find) return;
  const step = view.width / 10;
  const moves = {
    "+": () => zoom(0.7, middle()), "-": () => zoom(1 / 0.7, middle()),
    0: () => show({ ...first }), Escape: () => choose(null),
    ArrowLeft: () => show({ ...view, x: view.x - step }),
    ArrowRight: () => show({ ...view, x: view.x + step }),
    ArrowUp: () => show({ ...view, y: view.y - step }),
    ArrowDown: () => show({ ...view, y: view.y + step }),
  };
  if (moves[event.key]) moves[event.key]();
});
"""

TOOLS = """<div id="tools">
<button id="in" title="nearer (+)">+</button><button id="out" title="farther (-)">−</button>
<button id="fit" title="all of it (0)">fit</button>
<input id="find" type="search" placeholder="find a node" aria-label="find a node">
<output id="said"></output></div>
<aside id="panel" hidden><button title="close (Esc)">×</button><dl></dl></aside>"""


def page(drawing: Drawing, title: str) -> str:
    """The whole page as text; it needs no other file and no network."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(inert(title))}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{drawing.svg(title)}{TOOLS}\n"
        f'<script type="application/json" id="nodes">{_json(drawing.boxes)}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _json(boxes: Sequence[NodeBox]) -> str:
    """What a click tells of each box; no text in it can end the element that holds it."""
    facts = [[(inert(name), inert(text)) for name, text in box.facts] for box in boxes]
    return json.dumps(facts).replace("<", "\\u003c").replace(">", "\\u003e")
