"""Pictures as lists of shapes, written as SVG with nothing installed, or as PNG with Pillow."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.sax import saxutils

import numpy as np
import numpy.typing as npt

from .inert import inert

Array = npt.NDArray[Any]
Point = tuple[float, float]
FONT = "Helvetica, Arial, sans-serif"
MOST_PIXELS = 80_000_000
"""Of a PNG; Pillow itself takes files from about twice as many on for an attack."""


@dataclass(frozen=True)
class Line:
    """Straight pieces through points."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.0
    mark: str = ""
    """What a page calls it."""


@dataclass(frozen=True)
class Arrow:
    """The head of an arrow that points down, by its tip."""

    tip: Point
    colour: str


@dataclass(frozen=True)
class Box:
    """A filled rectangle, with rounded corners if wanted."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = ""
    radius: float = 0.0
    note: str = ""
    mark: str = ""
    """What a page calls it."""
    dark: str = ""
    """Its fill on a page that is dark, for the style of that page: ``var(--dark)``."""


@dataclass(frozen=True)
class Text:
    """Text whose anchor ("start", "middle", "end") lies at a point of its base line."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    colour: str = "#1f2933"
    bold: bool = False
    halo: bool = False
    """Whether lines behind it are kept off its letters."""


Shape = Line | Arrow | Box | Text


@dataclass
class Scene:
    """A picture: shapes in the order in which they are drawn."""

    width: float
    height: float
    title: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Draw on top."""
        self.shapes.extend(shapes)

    def svg(self) -> str:
        """The picture as SVG text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" '
            f"aria-label={saxutils.quoteattr(inert(self.title))}>"
        )
        body = "\n".join(_svg(shape) for shape in self.shapes)
        title = f"<title>{escape(self.title)}</title>"
        return f'{head}\n{title}\n<g font-family="{FONT}">\n{body}\n</g>\n</svg>\n'

    def write(self, path: Path) -> list[Path]:
        """Write ``<path>.svg`` and, if Pillow is installed, ``<path>.png``."""
        svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
        for picture in (svg, png):
            picture.unlink(missing_ok=True)  # a link that somebody put there is not written through
        svg.write_text(self.svg(), encoding="utf-8")
        try:
            self.write_png(png)
        except ImportError:
            return [svg]
        return [svg, png]

    def write_png(self, path: Path) -> None:
        """Write the picture as PNG; raises what `png` raises."""
        path.write_bytes(self.png())

    def png(self) -> bytes:
        """The picture as PNG, at twice its size or, if it is large, at its own.

        Raises:
            ImportError: Pillow is not installed.
            ValueError: the picture is too large for pixels.
        """
        from PIL import Image, ImageDraw

        pixels = self.width * self.height
        if pixels > MOST_PIXELS:
            raise ValueError(
                f"{self.width:.0f} × {self.height:.0f} are more pixels than the {MOST_PIXELS:,} of "
                "a picture that programs open"
            )
        scale = 2 if 4 * pixels <= MOST_PIXELS else 1
        extent = (round(self.width * scale), round(self.height * scale))
        image = Image.new("RGB", extent, "white")
        draw = ImageDraw.Draw(image)
        for shape in self.shapes:
            _paint(draw, shape, scale)
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        return file.getvalue()

    def moved(self, right: float, down: float) -> list[Shape]:
        """The shapes, somewhere else."""
        return [_moved(shape, right, down) for shape in self.shapes]


def beside(scenes: Sequence[Scene], title: str = "") -> Scene:
    """Pictures side by side, below a headline."""
    top = 30.0 if title else 0.0
    width = sum(scene.width for scene in scenes)
    whole = Scene(width, max(scene.height for scene in scenes) + top, title)
    whole.add(Box(0, 0, whole.width, whole.height, "#ffffff"))
    if title:
        whole.add(Text(24, 22, title, 18))
    left = 0.0
    for scene in scenes:
        whole.add(*scene.moved(left, top))
        left += scene.width
    return whole


def _moved(shape: Shape, right: float, down: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))
    if isinstance(shape, Arrow):
        return replace(shape, tip=(shape.tip[0] + right, shape.tip[1] + down))
    return replace(shape, x=shape.x + right, y=shape.y + down)


def escape(text: str) -> str:
    """Text as XML holds it."""
    return saxutils.escape(inert(text))


def _svg(shape: Shape) -> str:
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return (
            f'<polyline points="{points}" fill="none" stroke="{shape.colour}" '
            f'stroke-width="{shape.width:g}" stroke-linejoin="round"{_mark(shape)}/>'
        )
    if isinstance(shape, Arrow):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _corners(shape))
        return f'<polygon points="{points}" fill="{shape.colour}"/>'
    if isinstance(shape, Box):
        edge = f' stroke="{shape.edge}"' if shape.edge else ""
        radius = f' rx="{shape.radius:g}"' if shape.radius else ""
        corner = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
        extent = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
        note = f"<title>{escape(shape.note)}</title>" if shape.note else ""
        dark = f' style="--dark: {shape.dark}"' if shape.dark else ""
        fill = f'fill="{shape.fill}"{dark}'
        return f"<rect {corner} {extent}{radius} {fill}{edge}{_mark(shape)}>{note}</rect>"
    bold = ' font-weight="bold"' if shape.bold else ""
    halo = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if shape.halo else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}" '
        f'text-anchor="{shape.anchor}" fill="{shape.colour}"{bold}{halo}>'
        f"{escape(shape.text)}</text>"
    )


def _mark(shape: Line | Box) -> str:
    return f" data-mark={saxutils.quoteattr(inert(shape.mark))}" if shape.mark else ""


def _corners(arrow: Arrow) -> tuple[Point, ...]:
    x, y = arrow.tip
    return (x - 3.5, y - 7.5), (x + 3.5, y - 7.5), (x, y)


def _paint(draw: Any, shape: Shape, scale: int) -> None:
    if isinstance(shape, Line):
        points = [(x * scale, y * scale) for x, y in shape.points]
        draw.line(
            points, fill=shape.colour, width=max(1, round(shape.width * scale)), joint="curve"
        )
    elif isinstance(shape, Arrow):
        draw.polygon([(x * scale, y * scale) for x, y in _corners(shape)], fill=shape.colour)
    elif isinstance(shape, Box):
        corners = (
            *(shape.x * scale, shape.y * scale),
            *((shape.x + shape.width) * scale, (shape.y + shape.height) * scale),
        )
        radius = shape.radius * scale
        edge = {"outline": shape.edge, "width": scale} if shape.edge else {}
        draw.rounded_rectangle(corners, radius, fill=shape.fill, **edge)
    else:
        _write_text(draw, shape, scale)


def _write_text(draw: Any, text: Text, scale: int) -> None:
    """One line: what would break it is spelled out, and what Pillow's own font lacks."""
    from PIL import ImageFont

    line = inert(text.text).replace("\n", "\\n").replace("\t", " ").replace("×", "x")
    looks: dict[str, Any] = {
        "fill": text.colour,
        "font": ImageFont.load_default(text.size * scale),
        "anchor": {"start": "ls", "middle": "ms", "end": "rs"}[text.anchor],
    }
    if text.halo:
        looks |= {"stroke_width": 2 * scale, "stroke_fill": "#ffffff"}
    for shift in (0, 1) if text.bold else (0,):
        draw.text((text.x * scale + shift, text.y * scale), line, **looks)


def png_bytes(pixels: Array) -> bytes:
    """A PNG of uint8 pixels, (height, width) grey or (height, width, 3) colours."""
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    rows = pixels.reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png_address(pixels: Array) -> str:
    """The same as a ``data:`` address for a page that needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode()


def nice_steps(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover an interval, at least two, which differ."""
    if not high - low > 1e-6 * max(abs(low), abs(high)):  # equal but for rounding
        high = low + (abs(low) or 1.0)
    rough = (high - low) / about
    power = 10.0 ** np.floor(np.log10(rough))
    step = float(min((m * power for m in (1, 2, 5, 10) if m * power >= rough), default=power))
    first = np.floor(low / step)
    last = np.ceil(high / step)
    return [float(i * step) for i in np.arange(first, last + 1)]


def thin(points: Sequence[Point], most: int = 1500) -> list[Point]:
    """At most so many points: means of equal runs."""
    if len(points) <= most:
        return list(points)
    runs = np.array_split(np.asarray(points, np.float64), most)
    return [(float(p[:, 0].mean()), float(p[:, 1].mean())) for p in runs]
