"""The interactive drawing, used in a real browser, and inert whatever the names are."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from onnxtrain.drawing.layout import arrange
from onnxtrain.drawing.page import SCRIPT, page
from tests.browser import BROWSER, browse

from .test_layout import graph, network

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='o'\">"
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")

USE = """
const out = {};
const event = (name, x, y, more) => svg.dispatchEvent(new PointerEvent(name, {
  bubbles: true, pointerId: 1, clientX: x, clientY: y, ...more }));
const box = boxes.find((b) => nodes[b.dataset.mark].some((f) => f[1].includes("layer.1/act")));
const at = box.getBoundingClientRect();
box.dispatchEvent(new MouseEvent("click", { bubbles: true }));
out.panel = panel.innerText;
out.near = document.querySelectorAll("polyline.near").length;
const before = svg.getAttribute("viewBox");
const wheel = { deltaY: -300, clientX: 200, clientY: 200, cancelable: true };
svg.dispatchEvent(new WheelEvent("wheel", wheel));
out.zoomed = svg.getAttribute("viewBox").split(" ")[2] / before.split(" ")[2];
const near = svg.getAttribute("viewBox");
event("pointerdown", 100, 100); event("pointermove", 140, 100); event("pointerup", 140, 100);
out.panned = svg.getAttribute("viewBox").split(" ")[0] - near.split(" ")[0];
svg.dispatchEvent(new MouseEvent("click", { bubbles: true }));
out.afterDrag = panel.hidden;
document.getElementById("fit").click();
out.fitted = svg.getAttribute("viewBox") === before;
find.value = "mul"; find.dispatchEvent(new Event("input"));
out.said = said.textContent;
out.found = document.querySelectorAll("rect.found").length;
find.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
out.chosen = panel.innerText;
dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
out.closed = panel.hidden;
out.title = document.title;
document.body.innerHTML = "<pre id=out></pre>";
document.getElementById("out").innerText = JSON.stringify(out);
"""


def use(text: str, folder: Path) -> dict:
    """What a person sees who clicks, zooms, drags and searches."""
    path = folder / "drawing.html"
    head, _, rest = text.partition('<meta http-equiv="Content-Security-Policy"')
    text = head + rest.partition("\n")[2]  # the policy would refuse this test's script too
    path.write_text(text.replace("</body>", f"<script>{USE}</script></body>"), encoding="utf-8")
    dom = browse(path.as_uri(), folder, "--window-size=1000,700", "--dump-dom")
    result = re.search(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)
    assert result is not None, dom[-2000:]
    return json.loads(html.unescape(result[1]))


@needs_browser
def test_a_person_clicks_zooms_drags_and_searches(tmp_path):
    saw = use(page(arrange(network(), labels={"c": "N×4"}), "net"), tmp_path)
    assert "/encoder/layer.1/act/Relu" in saw["panel"]
    assert "c N×4" in saw["panel"]
    assert saw["near"] == 4  # what it reads, and who reads it
    assert saw["zoomed"] == pytest.approx(0.638, abs=0.01)
    assert saw["panned"] < 0
    assert not saw["afterDrag"], "the end of a drag is no click"
    assert saw["fitted"]
    assert saw["said"] == "5 found"
    assert saw["found"] == 5
    assert "Mul" in saw["chosen"] or "MatMul" in saw["chosen"]
    assert saw["closed"]


@needs_browser
def test_hostile_names_do_nothing_in_a_browser(tmp_path):
    """Not even without the policy of the page, which would stop them too."""
    model = graph([(f"n{HOSTILE}", "Relu", "x", HOSTILE)], outputs=HOSTILE)
    text = page(arrange(model, labels={"x": HOSTILE}), f"t{HOSTILE}")
    path = tmp_path / "page.html"
    path.write_text(re.sub("<meta http-equiv.*\n", "", text), encoding="utf-8")
    dom = browse(path.as_uri(), tmp_path, "--dump-dom")
    assert "<title>owned</title>" not in dom
    assert "<img" not in dom
    assert dom.count("<script") == 2


def test_only_its_own_script_may_run():
    model = graph([(f"n{HOSTILE}", "Relu", "x", HOSTILE)], outputs=HOSTILE)
    text = page(arrange(model), HOSTILE)
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text
    assert text.count("</script>") == 2
    assert text.count(SCRIPT) == 1
    assert "<img" not in text
    assert not re.search(r"(src|href)=", text.replace("src=x", ""))
