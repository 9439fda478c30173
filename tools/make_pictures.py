"""Make the pictures of docs/images that show what onnxtrain does.

python -m tools.make_pictures [name …]       # without names all of them

Drawings are SVG and need nothing. `terminal` records a real session. `report`, `drawing` and `site`
are taken by a headless Chromium, and made small with Pillow.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from onnxtrain.drawing.scene import Arrow, Box, Line, Scene, Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
INK, GREY, EDGE = "#1f2933", "#52606d", "#94a3b8"
BLUE, ORANGE, GREEN, VIOLET, YELLOW = "#dbeafe", "#ffedd5", "#dcfce7", "#ede9fe", "#fef9c3"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


# --- drawn by hand --------------------------------------------------------------------------------


def pipeline() -> str:
    """From a file to a trained one: what happens once, and what happens wherever data are."""
    scene = Scene(900, 326, "From model.onnx to trained.onnx")
    scene.add(Box(0, 0, scene.width, scene.height, "#ffffff"))
    frame(scene, 12, 12, 876, 132, "once, on your machine: needs onnx")
    frame(scene, 12, 164, 876, 150, "wherever the data are: numpy and onnxruntime")
    names = ("model.onnx", "normalize", "loss", "differentiate", "passes", "artifacts")
    said = ("any exporter's", "one opset, typed", "added to the graph", "a rule per operator",
            "made fast", "a folder of files")  # fmt: skip
    fills = (YELLOW, BLUE, BLUE, ORANGE, BLUE, GREEN)
    for i, (name, text, fill) in enumerate(zip(names, said, fills)):
        box(scene, 30 + 143 * i, 56, 122, 62, fill, name, text)
        if i:
            across(scene, 30 + 143 * i - 21, 87, 21)
    scene.add(Line(((806, 118), (806, 232), (742, 232)), EDGE, 1.5))
    scene.add(Line(((750, 227), (742, 232), (750, 237)), EDGE, 1.5))
    steps = (
        ("step", "loss, gradients, update", VIOLET, 600),
        ("eval", "metrics, early stopping", VIOLET, 420),
        ("save", "one file, exact resume", VIOLET, 240),
        ("trained.onnx", "the same model, new weights", YELLOW, 30),
    )
    for name, text, fill, x in steps:
        wide = 190 if name == "trained.onnx" else 140
        box(scene, x, 202, wide, 62, fill, name, text)
    for x in (600, 420, 240):
        across(scene, x, 233, -(40 if x != 240 else 20))
    scene.add(Text(450, 292, "laptop · server · browser · phone · cluster · many devices", 13,
                   "middle", GREY))  # fmt: skip
    return scene.svg()


def frame(scene: Scene, x: float, y: float, width: float, height: float, title: str) -> None:
    scene.add(Box(x, y, width, height, "#f8fafc", "#e2e8f0", 10))
    scene.add(Text(x + 18, y + 25, title, 13, colour=GREY, bold=True))


def box(
    scene: Scene, x: float, y: float, width: float, height: float, fill: str, name: str, text: str
) -> None:
    scene.add(Box(x, y, width, height, fill, EDGE, 8))
    scene.add(Text(x + width / 2, y + height / 2 - 3, name, 14, "middle", INK, bold=True))
    scene.add(Text(x + width / 2, y + height / 2 + 16, text, 11, "middle", GREY))


def across(scene: Scene, x: float, y: float, length: float) -> None:
    """An arrow to the right, or with a negative length to the left."""
    side = -5 if length > 0 else 5
    end = x + length
    scene.add(Line(((x, y), (end, y)), EDGE, 1.5))
    scene.add(Line(((end + side, y - 4), (end, y), (end + side, y + 4)), EDGE, 1.5))


def artifacts() -> str:
    """What is in the folder, and what each file gives to the others in a step."""
    scene = Scene(900, 450, "What the files of a training do")
    scene.add(Box(0, 0, scene.width, scene.height, "#ffffff"))
    frame(scene, 240, 12, 420, 426, "the folder of artifacts")
    rows = (
        ("training_model.onnx", "loss and gradients", ORANGE),
        ("optimizer_model.onnx", "new parameters from gradients", VIOLET),
        ("eval_model.onnx", "loss without Dropout; exports", BLUE),
        ("checkpoint", "parameters, moments, step, seed", YELLOW),
        ("step_model.onnx", "if wanted: the first two in one run, the fastest", "#ffffff"),
    )
    for i, (name, text, fill) in enumerate(rows):
        box(scene, 300, 50 + 78 * i, 300, 58, fill, name, text)
    box(scene, 20, 50, 170, 58, "#ffffff", "a batch", "inputs and labels")
    across(scene, 190, 70, 110)
    scene.add(Line(((450, 108), (450, 128)), EDGE, 1.5), Arrow((450, 128), EDGE))
    scene.add(Text(458, 122, "gradients", 11, colour=GREY))
    scene.add(Line(((600, 157), (630, 157), (630, 313), (610, 313)), EDGE, 1.5))
    across(scene, 630, 313, -30)
    scene.add(Text(628, 286, "in place", 11, "end", GREY))
    scene.add(Line(((300, 313), (268, 313), (268, 90)), EDGE, 1.5))
    across(scene, 268, 90, 32)
    across(scene, 268, 235, 32)
    box(scene, 710, 206, 170, 58, "#ffffff", "trained.onnx", "for any onnxruntime")
    across(scene, 600, 235, 110)
    return scene.svg()


# --- drawn by commands ----------------------------------------------------------------------------


def gradient() -> str:
    """``onnxtrain draw --gradient`` of two layers and a loss."""
    return drawn("gradient.svg")


def gradient_page() -> str:
    """The same as a page."""
    return drawn("gradient.html")


def drawn(name: str) -> str:
    from onnxtrain.cli import main as onnxtrain

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        small_model(Path(folder) / "model.onnx")
        path = Path(folder) / name
        onnxtrain(["draw", f"{folder}/model.onnx", "--gradient", "-o", str(path)])
        return path.read_text(encoding="utf-8")


def small_model(path: Path) -> None:
    """Two layers, 20 numbers to the scores of three classes, and the loss."""
    import numpy as np
    import onnx.parser

    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        net (float[batch, 20] x, int64[batch] labels) => (float loss) {
            [fc1] h = Gemm (x, fc1_weight, fc1_bias)
            [relu] a = Relu (h)
            [fc2] logits = Gemm (a, fc2_weight, fc2_bias)
            [loss] loss = SoftmaxCrossEntropyLoss (logits, labels)
        }
    """)
    for name, shape in {
        "fc1_weight": (20, 32), "fc1_bias": (32,), "fc2_weight": (32, 3), "fc2_bias": (3,),
    }.items():  # fmt: skip
        array = np.full(shape, 0.1, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, path)


# --- a terminal -----------------------------------------------------------------------------------

COLUMNS = 82
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SESSION = (["demo", "--epochs", "6"], ["draw", "runs/digits/model.onnx"])


def terminal() -> str:
    """A session as it was: the commands, what they wrote, in its colours."""
    from rich.text import Text as RichText

    lines: list[RichText] = []
    with tempfile.TemporaryDirectory() as folder:
        for arguments in SESSION:
            lines.append(
                RichText.assemble(("$ ", "green"), ("onnxtrain " + " ".join(arguments), "bold"))
            )
            said = record([sys.executable, "-m", "onnxtrain", *arguments], folder)
            lines += RichText.from_ansi(said).split("\n", allow_blank=True)
            while lines[-1].plain.strip() == "":
                lines.pop()
            lines.append(RichText())
    return terminal_svg(lines[:-1], "onnxtrain demo")


def record(command: Sequence[str], folder: str) -> str:
    """What a program writes: results as to a terminal, messages as to a file (no moving bar)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        command, cwd=folder, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        assert process.stderr is not None
        streams, written = [ours, process.stderr.fileno()], b""
        while streams:
            for stream in select.select(streams, [], [])[0]:
                data = b""
                with contextlib.suppress(OSError):  # a terminal that is closed ends so
                    data = os.read(stream, 65536)
                if not data:
                    streams.remove(stream)
                written += data
        os.close(ours)
    if process.returncode:
        raise SystemExit(written.decode())
    return written.decode().replace("\r\n", "\n").rstrip("\n")


def terminal_svg(lines: Sequence[object], title: str) -> str:
    """Lines of rich text as a window with a terminal in it."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    console = Console(width=200, color_system="truecolor", file=io.StringIO())
    size, step, left, top = 13, 18, 18, 54
    width, height = left * 2 + COLUMNS * 7.82, top + step * len(lines) + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#0f172a"/>',
        *(f'<circle cx="{22 + 20 * i}" cy="20" r="6" fill="{colour}"/>'
          for i, colour in enumerate(("#f87171", "#fbbf24", "#34d399"))),
        f'<g font-family="{MONOSPACE}" font-size="{size}" fill="#e2e8f0">',
    ]  # fmt: skip
    for number, line in enumerate(lines):
        spans = []
        for segment in line.render(console):  # type: ignore[attr-defined]
            style, text = segment.style, segment.text.rstrip("\n").replace(" ", "\u00a0")
            looks = ""
            if style is not None and style.color is not None and not style.color.is_default:
                looks += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
            if style is not None and style.bold:
                looks += ' font-weight="bold"'
            if style is not None and style.dim:
                looks += ' opacity="0.5"'
            spans.append(f"<tspan{looks}>{escape(text)}</tspan>" if looks else escape(text))
        y = top + step * number
        parts.append(f'<text x="{left}" y="{y}">{"".join(spans)}</text>')
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


# --- screenshots ----------------------------------------------------------------------------------


def report() -> bytes:
    """report.html of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onnxtrain", "demo", "--output", "run", "--quiet"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return screenshot((Path(folder) / "run" / "report.html").as_uri(), 1120, 1500)


def drawing() -> bytes:
    """The interactive drawing of the gradient, with a node chosen."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "gradient.html"
        text = drawn("gradient.html")
        policy, _, rest = text.partition('<meta http-equiv="Content-Security-Policy"')
        text = policy + rest.partition("\n")[2]  # so that the click below may be one more script
        click = (
            "<script>choose(boxes.find((b) => nodes[b.dataset.mark].some((f) => f[1] === 'fc2'))"
            ".dataset.mark); show({ x: -80, y: 150, width: 980, height: 631 });</script></body>"
        )
        page.write_text(text.replace("</body>", click), encoding="utf-8")
        return screenshot(page.as_uri(), 1180, 760)


def site() -> bytes:
    """The first page of the built documentation (``python3 dev.py docs``)."""
    page = ROOT / "site" / "index.html"
    if not page.is_file():
        raise SystemExit("build the site first: python3 dev.py docs")
    return screenshot(page.as_uri(), 1280, 1500)


def screenshot(address: str, width: int, height: int) -> bytes:
    """A page as a small PNG."""
    from PIL import Image

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no chromium or chrome is installed")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}"]
        flags += ["--virtual-time-budget=5000", f"--screenshot={shot}"]
        subprocess.run([browser, *flags, address], check=True, capture_output=True, timeout=180)
        with Image.open(shot) as image:
            small = image.convert("RGB").resize((width * 3 // 4, height * 3 // 4), Image.LANCZOS)
            colours = small.quantize(256, kmeans=2, dither=Image.Dither.NONE)
    file = io.BytesIO()
    colours.save(file, "PNG", optimize=True)
    return file.getvalue()


PICTURES: dict[str, Callable[[], str | bytes]] = {
    "pipeline.svg": pipeline,
    "artifacts.svg": artifacts,
    "gradient.svg": gradient,
    "gradient.html": gradient_page,
    "terminal.svg": terminal,
    "report.png": report,
    "drawing.png": drawing,
    "site.png": site,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PICTURES), help=", ".join(PICTURES))
    for name in parser.parse_args().names:
        picture = PICTURES[name]()
        path = IMAGES / name
        path.write_bytes(picture.encode() if isinstance(picture, str) else picture)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
