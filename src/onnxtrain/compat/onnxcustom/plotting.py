"""Graphs side by side, as text, SVG or PNG: nothing has to be installed for the first two."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...errors import OnnxTrainError
from .onnx_helper import as_proto

KINDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.DOUBLE: "double",
    onnx.TensorProto.FLOAT16: "half",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.STRING: "string",
}
FILL = {"input": "#dbeafe", "weight": "#fde68a", "output": "#bbf7d0", "node": "#f4f4f5",
        "constant": "#e4e4e7"}  # fmt: skip
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, TITLE = 190, 40, 18, 34, 24, 34


class DrawingError(OnnxTrainError, RuntimeError):
    """A picture cannot be made in the form that was asked for."""


@dataclass
class Box:
    """One rectangle: an input, a weight, a node or an output."""

    kind: str
    title: str
    detail: str
    level: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass
class Picture:
    """The boxes of one graph and the lines between them."""

    title: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[tuple[Box, Box, str]] = field(default_factory=list)

    @property
    def width(self) -> float:
        """Width with margins."""
        return max((b.x + WIDTH for b in self.boxes), default=WIDTH) + MARGIN

    @property
    def height(self) -> float:
        """Height with title and margins."""
        return max((b.y + HEIGHT for b in self.boxes), default=HEIGHT) + MARGIN


# -- from a model to boxes -------------------------------------------------------------------------


def _type_text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in
            tensor.shape.dim]  # fmt: skip
    kind = KINDS.get(tensor.elem_type, str(tensor.elem_type))
    return f"{kind}[{', '.join(dims)}]" if tensor.HasField("shape") else f"{kind}[…]"


def _types(model: onnx.ModelProto) -> dict[str, str]:
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # a picture without shapes is better than none
        return {}
    graph = model.graph
    return {v.name: _type_text(v) for v in (*graph.value_info, *graph.input, *graph.output)}


def picture(
    model: onnx.ModelProto, title: str = "", weights: Collection[str] | None = None
) -> Picture:
    """Boxes and lines of a graph, laid out from top to bottom.

    Args:
        model: the graph.
        title: what is written above it.
        weights: names that are shown as weights; by default the initializers.
    """
    graph = model.graph
    types = _types(model)
    made = Picture(title or graph.name)
    constants = {t.name: t for t in graph.initializer}
    source: dict[str, Box] = {}

    def add(kind: str, name: str, detail: str) -> Box:
        made.boxes.append(Box(kind, name, detail))
        return made.boxes[-1]

    for value in graph.input:
        if value.name not in constants:
            kind = "weight" if value.name in (weights or ()) else "input"
            source[value.name] = add(kind, value.name, _type_text(value))
    for name, tensor in constants.items():
        if len(tensor.dims) or tensor.data_type == onnx.TensorProto.FLOAT:
            dims = ", ".join(map(str, tensor.dims))
            kind = KINDS.get(tensor.data_type, str(tensor.data_type))
            shown = "weight" if weights is None or name in weights else "constant"
            source[name] = add(shown, name, f"{kind}[{dims}]")
    for node in graph.node:
        shown = next((types[o] for o in node.output if o in types), "")
        box = add("node", node.op_type, shown)
        for name in node.input:
            if name in source:
                made.lines.append((source[name], box, types.get(name, "")))
                box.level = max(box.level, source[name].level + 1)
        source.update((o, box) for o in node.output)
    bottom = max((b.level for b in made.boxes), default=0) + 1
    for value in graph.output:
        box = add("output", value.name, _type_text(value))
        box.level = bottom
        if value.name in source:
            made.lines.append((source[value.name], box, ""))
    _sink_constants(made)
    _place(made)
    return made


def _sink_constants(made: Picture) -> None:
    """Put inputs and weights just above the first node that reads them."""
    for box in made.boxes:
        if box.kind in {"input", "weight", "constant"}:
            below = [b.level for a, b, _ in made.lines if a is box]
            box.level = max(0, min(below) - 1) if below else 0


def _place(made: Picture) -> None:
    levels: dict[int, list[Box]] = {}
    for box in made.boxes:
        levels.setdefault(box.level, []).append(box)
    widest = max((len(b) for b in levels.values()), default=1)
    for level, boxes in levels.items():
        if level:  # below what they read, so that lines are short
            boxes.sort(key=lambda b: _mean([a.x for a, to, _ in made.lines if to is b], b.x))
        space = (widest - len(boxes)) * (WIDTH + GAP_X) / 2
        for i, box in enumerate(boxes):
            box.x = MARGIN + space + i * (WIDTH + GAP_X)
            box.y = TITLE + MARGIN + level * (HEIGHT + GAP_Y)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


# -- SVG -------------------------------------------------------------------------------------------


def _short(text: str, limit: int = 26) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _svg_graph(made: Picture, left: float) -> list[str]:
    parts = [f'<g transform="translate({left:g},0)">']
    parts.append(
        f'<text x="{MARGIN}" y="{TITLE - 8}" font-size="16" font-weight="bold">'
        f"{escape(made.title)}</text>"
    )
    for start, end, _ in made.lines:
        x1, y1 = start.x + WIDTH / 2, start.y + HEIGHT
        x2, y2 = end.x + WIDTH / 2, end.y
        bend = (y2 - y1) / 2
        parts.append(
            f'<path d="M{x1:g},{y1:g} C{x1:g},{y1 + bend:g} {x2:g},{y2 - bend:g} {x2:g},{y2:g}" '
            'fill="none" stroke="#71717a" marker-end="url(#tip)"/>'
        )
    for box in made.boxes:
        radius = 4 if box.kind == "node" else 16
        parts.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}" '
            f'fill="{FILL[box.kind]}" stroke="#3f3f46"><title>{escape(box.title)} '
            f"{escape(box.detail)}</title></rect>"
        )
        middle = box.x + WIDTH / 2
        parts.append(
            f'<text x="{middle:g}" y="{box.y + 17:g}" text-anchor="middle" font-size="13">'
            f"{escape(_short(box.title))}</text>"
        )
        parts.append(
            f'<text x="{middle:g}" y="{box.y + 32:g}" text-anchor="middle" font-size="10" '
            f'fill="#52525b">{escape(_short(box.detail, 34))}</text>'
        )
    parts.append("</g>")
    return parts


def svg(pictures: Sequence[Picture], title: str = "") -> str:
    """Pictures side by side as an SVG document."""
    top = 30 if title else 0
    width = sum(p.width for p in pictures) + MARGIN
    height = max((p.height for p in pictures), default=100) + top
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#71717a"/></marker>'
        "</defs>"
    )
    parts = [head, tip, f'<rect width="{width:g}" height="{height:g}" fill="white"/>']
    if title:
        parts.append(f'<text x="{MARGIN}" y="24" font-size="18">{escape(title)}</text>')
    parts.append(f'<g transform="translate(0,{top})">')
    left = 0.0
    for made in pictures:
        parts += _svg_graph(made, left)
        left += made.width
    parts += ["</g>", "</svg>"]
    return "\n".join(parts) + "\n"


# -- PNG -------------------------------------------------------------------------------------------


def _png(pictures: Sequence[Picture], path: Path, title: str, scale: float = 2.0) -> None:
    """Draw with Pillow, which needs no other program."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise DrawingError(
            "A PNG needs the package Pillow (pip install pillow). SVG needs nothing: choose a "
            "file name that ends in .svg."
        ) from error
    top = 30 if title else 0
    width = sum(p.width for p in pictures) + MARGIN
    height = max(p.height for p in pictures) + top
    image = Image.new("RGB", (int(width * scale), int(height * scale)), "white")
    draw = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size * scale) for size in (10, 13, 16)}
    if title:
        draw.text((MARGIN * scale, 6 * scale), title, "black", fonts[16])
    left = 0.0
    for made in pictures:
        at = partial(_at, left=left, top=top, scale=scale)
        draw.text(at(MARGIN, 8), made.title, "black", fonts[16])
        for start, end, _ in made.lines:
            ends = [at(start.x + WIDTH / 2, start.y + HEIGHT), at(end.x + WIDTH / 2, end.y)]
            draw.line(ends, "#71717a", int(scale))
        for box in made.boxes:
            corners = [*at(box.x, box.y), *at(box.x + WIDTH, box.y + HEIGHT)]
            radius = (4 if box.kind == "node" else 16) * scale
            draw.rounded_rectangle(corners, radius, FILL[box.kind], "#3f3f46")
            middle = box.x + WIDTH / 2
            draw.text(at(middle, box.y + 12), _short(box.title), "black", fonts[13], anchor="mm")
            detail = _short(box.detail, 34)
            draw.text(at(middle, box.y + 29), detail, "#52525b", fonts[10], anchor="mm")
        left += made.width
    image.save(path)


def _at(x: float, y: float, *, left: float, top: float, scale: float) -> tuple[float, float]:
    return (x + left) * scale, (y + top) * scale


# -- text ------------------------------------------------------------------------------------------


def onnx_simple_text_plot(model: Any) -> str:
    """A graph as text: inputs, weights, nodes and outputs with types and shapes.

    Example:
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }
        ... ''')
        >>> print(onnx_simple_text_plot(model))
        opset: ai.onnx 18
        input:  X  float[N, 2]
        weight: w  float[2, 1]
        Y = MatMul(X, w)  float[N, 1]
        output: Y  float[N, 1]
    """
    proto = as_proto(model)
    graph, types = proto.graph, _types(proto)
    constants = {t.name for t in graph.initializer}
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in proto.opset_import)
    lines = [f"opset: {opsets}"]
    lines += [f"input:  {v.name}  {_type_text(v)}" for v in graph.input if v.name not in constants]
    for tensor in graph.initializer:
        dims = ", ".join(map(str, tensor.dims))
        kind = KINDS.get(tensor.data_type, str(tensor.data_type))
        value = ""
        if not tensor.dims or (len(tensor.dims) == 1 and tensor.dims[0] <= 4):
            value = f" = {onnx.numpy_helper.to_array(tensor).tolist()}"
        lines.append(f"weight: {tensor.name}  {kind}[{dims}]{value}")
    for node in graph.node:
        shown = next((f"  {types[o]}" for o in node.output if o in types), "")
        attributes = ", ".join(_attribute(a) for a in node.attribute)
        call = f"{node.op_type}<{attributes}>" if attributes else node.op_type
        lines.append(f"{', '.join(node.output)} = {call}({', '.join(node.input)}){shown}")
    lines += [f"output: {v.name}  {_type_text(v)}" for v in graph.output]
    return "\n".join(lines)


def _attribute(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = "…" if isinstance(value, (onnx.GraphProto, onnx.TensorProto)) else str(value)
    return f"{attribute.name}={text}"


# -- what is called --------------------------------------------------------------------------------


def _pictures(graphs: Mapping[str, Any], weights: Collection[str]) -> list[Picture]:
    return [picture(as_proto(model), title, weights) for title, model in graphs.items()]


def plot_onnxs(
    *onx: Any,
    ax: Any = None,
    dpi: int = 300,
    temp_dot: Any = None,
    temp_img: Any = None,
    show: bool = False,
    title: str | Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw graphs side by side.

    Args:
        onx: models.
        ax: one matplotlib axis, or one per model, to draw on.
        dpi: accepted; SVG has no resolution.
        temp_dot: accepted; no other program draws.
        temp_img: an older name of `path`.
        show: show the figure, with `ax`.
        title: one title, or one per model.
        path: a file: ``.svg``, ``.png`` (with Pillow) or ``.txt``.

    Returns:
        The axis when one is given, else the SVG as a string.
    """
    if not onx:
        raise DrawingError("There is no model to draw.")
    titles = [title] if isinstance(title, str) else list(title or [])
    names = [titles[i] if i < len(titles) else f"graph {i + 1}" for i in range(len(onx))]
    pictures = [picture(as_proto(m), n) for m, n in zip(onx, names)]
    target = path if path is not None else temp_img
    if target is not None:
        _write(pictures, {n: as_proto(m) for n, m in zip(names, onx)}, Path(target), "")
    if ax is not None:
        return _on_axes(pictures, ax, show)
    return svg(pictures)


def _write(pictures: list[Picture], graphs: Mapping[str, Any], path: Path, title: str) -> None:
    kind = path.suffix.lower()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} does not exist.")
    if kind == ".svg":
        path.write_text(svg(pictures, title), encoding="utf-8")
    elif kind == ".png":
        _png(pictures, path, title)
    elif kind == ".txt":
        path.write_text(graphs_text(graphs), encoding="utf-8")
    else:
        raise DrawingError(f"{path.name!r}: use .svg, .png or .txt.")


def graphs_text(graphs: Mapping[str, Any]) -> str:
    """Several graphs as text, one below the other."""
    rule = "-" * 60
    return "\n".join(
        f"{rule}\n{name}\n{rule}\n{onnx_simple_text_plot(model)}\n"
        for name, model in graphs.items()
    )


def _on_axes(pictures: list[Picture], ax: Any, show: bool) -> Any:
    axes = list(ax.ravel()) if isinstance(ax, np.ndarray) else ax if isinstance(ax, list) else [ax]
    if len(axes) not in {1, len(pictures)}:
        raise DrawingError(f"There are {len(pictures)} graphs and {len(axes)} axes.")
    left = 0.0
    for i, made in enumerate(pictures):
        one = axes[i] if len(axes) > 1 else axes[0]
        left = 0.0 if len(axes) > 1 else left
        for start, end, _ in made.lines:
            xs = [left + start.x + WIDTH / 2, left + end.x + WIDTH / 2]
            one.plot(xs, [-start.y - HEIGHT, -end.y], color="#71717a", linewidth=0.8, zorder=1)
        for box in made.boxes:
            label = f"{_short(box.title)}\n{_short(box.detail, 34)}"
            style = {"boxstyle": "round", "facecolor": FILL[box.kind], "edgecolor": "#3f3f46"}
            middle = (left + box.x + WIDTH / 2, -box.y - HEIGHT / 2)
            one.text(*middle, label, ha="center", va="center", fontsize=6, bbox=style, zorder=2)
        one.text(left + MARGIN, -TITLE / 2, made.title, fontsize=9, fontweight="bold")
        one.set_axis_off()
        left += made.width
    if show:
        axes[0].figure.show()
    return ax


def four_graphs(trained: Any) -> dict[str, onnx.ModelProto]:
    """The graphs of a forward–backward optimizer by what they do, in the order of a step.

    Args:
        trained: an `OrtGradientForwardBackwardOptimizer` that was fitted or built.
    """
    engine = trained.engine_
    graphs = {
        "model and its gradient": engine_gradient(trained),
        "loss and its gradient": engine.loss_onnx_,
        "penalty and its gradient": engine.penalty_onnx_,
        "weight update": engine.update_onnx_,
    }
    return {name: graph for name, graph in graphs.items() if graph is not None}


def engine_gradient(trained: Any) -> onnx.ModelProto:
    """The gradient graph without the halves that its metadata carries."""
    model = as_proto(trained.train_session_._trained_onnx)
    del model.metadata_props[:]
    return model


def plot_four_graphs(
    trained: Any, path: str | os.PathLike[str] | None = None, title: str = "", ax: Any = None
) -> Any:
    """Draw the four graphs of the second API side by side, with shapes and parameter names.

    Args:
        trained: an `OrtGradientForwardBackwardOptimizer` that was fitted or built.
        path: a file: ``.svg``, ``.png`` (with Pillow) or ``.txt``.
        title: headline of the picture.
        ax: matplotlib axes to draw on.

    Returns:
        The axis when one is given, else the SVG as a string.
    """
    graphs = four_graphs(trained)
    pictures = _pictures(graphs, {*trained.train_session_.weights_to_train, "params"})
    if path is not None:
        _write(pictures, graphs, Path(path), title)
    return _on_axes(pictures, ax, False) if ax is not None else svg(pictures, title)
