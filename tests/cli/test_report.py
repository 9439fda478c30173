"""report.html: one file, whole, and right to look at in a real browser."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.cli import main, pages, report
from onnxtrain.cli.charts import COLOURS, DARK, GROUND, curves
from onnxtrain.drawing.scene import nice_steps, png_bytes, thin
from tests.browser import BROWSER, browse, in_dark

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


def picture(page: Path, folder: Path, *arguments: str) -> np.ndarray:
    """The pixels of a page, (all of them, 3)."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    shot = folder / "shot.png"
    browse(page.as_uri(), folder, "--window-size=1120,1600", f"--screenshot={shot}", *arguments)
    with image.open(shot) as opened:
        return np.asarray(opened.convert("RGB")).reshape(-1, 3).astype(int)


def how_many(pixels: np.ndarray, colour: str) -> int:
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels - channels).max(axis=1) < 8).sum())


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_picture_of_the_page(digits_report, tmp_path):
    pixels = picture(digits_report, tmp_path)
    for colour in ("#2563eb", "#ea580c"):  # the curves, and the diagonal of the matrix
        assert how_many(pixels, colour) > 100
    assert how_many(pixels, "#f4f5f7") > 100_000


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_picture_of_the_page_in_the_dark(digits_report, tmp_path):
    pixels = picture(digits_report, tmp_path, in_dark())
    for colour in ("#7fb0ff", "#ffae66", "#2563eb"):  # two curves, the diagonal of the matrix
        assert how_many(pixels, colour) > 100
    for colour in ("#14171c", "#1d2128"):  # the page and its cards
        assert how_many(pixels, colour) > 100_000
    bright = pixels.min(axis=1) > 200
    assert bright.mean() < 0.05  # text and the digits alone


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("light", COLOURS)
def test_lines_are_seen_on_both_grounds(light):
    assert contrast(light, GROUND) > 3
    assert contrast(DARK[light], DARK[GROUND]) > 5


def test_every_colour_of_a_chart_has_another_in_the_dark(digits_report):
    charts = re.findall(r"<svg.*?</svg>", digits_report.read_text(), re.DOTALL)
    shapes = re.findall(r"<(?:rect|text|polyline) [^>]*>", "".join(charts))
    plain = [s for s in shapes if "--dark" not in s]
    used = {c for shape in plain for c in re.findall(r'(?:fill|stroke)="(#\w+)"', shape)}
    assert used
    assert used <= set(DARK)


def test_the_palette_is_that_of_the_served_page():
    style = (files("onnxtrain") / "serve/static/style.css").read_text()
    served = [dict(re.findall(r"(--\w+): (#\w+)", part)) for part in style.split("prefers-color")]
    for mine, theirs in zip((pages.LIGHT_PALETTE, pages.DARK_PALETTE), served, strict=True):
        own = dict(re.findall(r"(--\w+): (#\w+)", mine))
        assert {**theirs, "--good": own["--good"]}.items() >= own.items()


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
