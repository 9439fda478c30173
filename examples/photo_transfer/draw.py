"""Small pictures of shapes in random colours, places and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 32
KNOWN = ("circle", "square", "triangle", "cross", "bar")
"""What the network is trained on first."""
NEW = ("ring", "diamond", "arrow")
"""What it learns afterwards, from a few pictures."""


def points(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    """The corners of a shape around a place."""
    corners = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1), (1, 1), (-1, 1)],
        "bar": [(-1, -0.3), (1, -0.3), (1, 0.3), (-1, 0.3)],
        "diamond": [(0, -1), (0.7, 0), (0, 1), (-0.7, 0)],
        "arrow": [(-1, -0.3), (0, -0.3), (0, -1), (1, 0), (0, 1), (0, 0.3), (-1, 0.3)],
    }[shape]
    return [(x + r * dx, y + r * dy) for dx, dy in corners]


def picture(shape: str, rng: np.random.Generator) -> Image.Image:
    """One shape on a noisy background."""
    ground = rng.integers(0, 110) + rng.integers(0, 50, (SIDE, SIDE, 3))
    image = Image.fromarray(ground.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    colour = tuple(int(c) for c in rng.integers(150, 256, 3))
    r = rng.uniform(6, 11)
    x, y = rng.uniform(r + 1, SIDE - r - 1, 2)
    box = (x - r, y - r, x + r, y + r)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "ring":
        draw.ellipse(box, outline=colour, width=3)
    elif shape == "cross":
        draw.line([(x - r, y - r), (x + r, y + r)], fill=colour, width=3)
        draw.line([(x - r, y + r), (x + r, y - r)], fill=colour, width=3)
    else:
        draw.polygon(points(shape, x, y, r), fill=colour)
    return image


def arrays(shapes: Sequence[str], each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures as numbers from 0 to 1, N×C×H×W, and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(len(shapes)), each)
    pixels = np.stack([np.asarray(picture(shapes[label], rng)) for label in labels])
    return (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32), labels


def write_folders(where: Path, shapes: Sequence[str], each: int, seed: int) -> None:
    """One folder of pictures per class."""
    rng = np.random.default_rng(seed)
    for shape in shapes:
        (where / shape).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            picture(shape, rng).save(where / shape / f"{number}.png")
