"""report.html: one file, whole, and right to look at in a real browser."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.cli import main, report
from onnxtrain.cli.charts import curves
from onnxtrain.drawing.scene import nice_steps, png_bytes, thin
from tests.browser import BROWSER, browse

from .models import classifier, regressor, write_csv, write_npz

PROBE = """<script>
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const found = {
    charts: all("svg").map((s) => [s.getBoundingClientRect().width, s.getBBox().height]),
    texts: all("svg text").map((t) => t.textContent),
    images: all("img").map((i) => i.naturalWidth),
    samples: all(".sample").map((s) => s.innerText),
    headings: all("h2").map((h) => h.innerText),
    overflow: document.documentElement.scrollWidth - innerWidth,
    loaded: performance.getEntriesByType("resource").map((r) => r.name),
  };
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").innerText = JSON.stringify(found);
});
</script>"""


def look(page: Path, folder: Path, width: int) -> dict[str, list]:
    """What the browser made of a page."""
    probe = folder / "probe.html"
    probe.write_text(page.read_text().replace("</head>", PROBE + "</head>"))
    dom = browse(probe.as_uri(), folder, f"--window-size={width},900", "--dump-dom")
    match = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert match is not None, dom[:500]
    return json.loads(html.unescape(match[1]))


@pytest.fixture(scope="module")
def digits_report(tmp_path_factory) -> Path:
    """One short run, whose report all tests look at."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    assert main(["demo", "--epochs", "2", "--output", str(folder), "--quiet"]) == 0
    return folder / "report.html"


def test_needs_no_other_file(digits_report):
    text = digits_report.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "@import" not in text
    assert "url(" not in text
    assert "<script" not in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
@pytest.mark.parametrize("width", [1120, 500])
def test_in_a_browser(digits_report, tmp_path, width):
    found = look(digits_report, tmp_path, width)
    assert found["headings"] == [
        "Curves", "Confusion matrix", "Samples of predictions", "Settings", "Model", "Epochs",
    ]  # fmt: skip
    assert len(found["charts"]) == 4
    assert all(150 < w <= width and h > 200 for w, h in found["charts"])
    assert {"Loss", "Metric", "Learning rate", "training loss", "predicted"} <= set(found["texts"])
    assert found["images"] == [8] * 12
    assert all("predicted" in s and "true" in s for s in found["samples"])
    assert found["overflow"] <= 0
    assert all(address.startswith("data:") for address in found["loaded"])


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_picture_of_the_page(digits_report, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    browse(
        digits_report.as_uri(),
        tmp_path,
        "--window-size=1120,1600",
        f"--screenshot={tmp_path / 'shot.png'}",
    )
    with image.open(tmp_path / "shot.png") as shot:
        pixels = np.asarray(shot.convert("RGB")).reshape(-1, 3)
    for colour in ((37, 99, 235), (234, 88, 12)):  # the curves, and the diagonal of the matrix
        assert (np.abs(pixels - np.array(colour)).max(axis=1) < 8).sum() > 100


def test_regression_report(run):
    regressor()
    x = np.random.default_rng(0).standard_normal((30, 3))
    table = {"a": list(x[:, 0]), "b": list(x[:, 1]), "c": list(x[:, 2]), "y": list(x.sum(axis=1))}
    write_csv("d.csv", table)
    assert run("train", "regressor.onnx", "--data", "d.csv", "--loss", "mse").code == 0
    text = Path("runs/regressor/report.html").read_text()
    assert "Confusion matrix" not in text
    assert text.count('class="sample"') == 12
    assert "train_mae" in text


def test_names_are_escaped(run):
    classifier("<b>&.onnx")
    write_npz()
    assert (
        run(
            "train", "<b>&.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--output", "o"
        ).code
        == 0
    )
    text = Path("o/report.html").read_text()
    assert "Training of &lt;b&gt;&amp;.onnx" in text
    assert "<b>&" not in text


# --- the pieces of pictures -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 3)])
def test_png(shape):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    Path("p.png").write_bytes(png_bytes(pixels))
    with image.open("p.png") as opened:
        np.testing.assert_array_equal(np.asarray(opened), pixels)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (-3, 17),
        (1e-9, 2e-9),
        (5, 5),
        (0, 0),
        (-1e6, 1e-3),
        (0.9, 0.91),
        (0.001, 0.001 + 3e-19),
        (-1, -1 + 1e-15),
    ],
)
def test_steps_of_an_axis(low, high):
    steps = nice_steps(low, high)
    assert steps[0] <= low
    assert steps[-1] >= high
    assert 2 <= len(steps) <= 9
    assert np.all(np.diff(steps) > 0)


def test_a_constant_rate_over_many_steps():
    """Means of equal numbers differ in their last bits."""
    drawn = curves("Learning rate", {"lr": [(float(i), 0.001) for i in range(28_125)]}, "step")
    assert "nan" not in drawn.svg()


def test_a_drawing_problem_does_not_fail_a_run(run, monkeypatch):
    def broken(run):
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(report, "page", broken)
    classifier()
    write_npz()
    result = run("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy")
    assert result.code == 0
    assert "could not be drawn (ZeroDivisionError" in result.err
    assert Path("runs/model/model.onnx").is_file()
    assert not Path("runs/model/report.html").exists()


def test_thinning_keeps_the_mean():
    points = [(float(i), float(i % 7)) for i in range(10_000)]
    thinned = thin(points, 100)
    assert len(thinned) == 100
    assert np.mean(thinned, axis=0) == pytest.approx(np.mean(points, axis=0))
