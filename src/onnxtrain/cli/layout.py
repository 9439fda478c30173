"""Place the nodes of a graph in layers, forward half above, backward half below, and draw it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import onnx

from .scene import Box, Line, Scene, Text

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 132.0, 40.0, 20.0, 34.0, 24.0
FORWARD, BACKWARD, VALUE = "#dbeafe", "#ffedd5", "#f1f5f9"
EDGES = {FORWARD: "#2563eb", BACKWARD: "#ea580c", VALUE: "#94a3b8"}


@dataclass
class NodeBox:
    """A node, an input or an output, and its place."""

    name: str
    label: str
    kind: str
    inputs: list[int] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    layer: int = 0
    column: float = 0.0

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward half."""
        return self.kind == "backward"


@dataclass
class Drawing:
    """Boxes in forward order."""

    boxes: list[NodeBox]

    @property
    def backward(self) -> int:
        """Number of nodes of the backward half."""
        return sum(b.backward for b in self.boxes)

    def lines(self) -> list[tuple[str, bool]]:
        """The graph as text, and for each line whether it is backward."""
        found = []
        for box in self.boxes:
            names = [*(self.boxes[i].outputs[0] for i in box.inputs), *box.constants]
            given, made = ", ".join(names), ", ".join(box.outputs)
            mark = "◀" if box.backward else "▶" if box.kind == "forward" else " "
            text = f"{mark} {made} = {box.label}({given})" if box.kind != "input" else (
                f"  {made}: {box.label}"
            )  # fmt: skip
            found.append((text, box.backward))
        return found

    def svg(self, title: str) -> str:
        """The graph as SVG."""
        across = max((b.column for b in self.boxes), default=0) + 1
        down = max((b.layer for b in self.boxes), default=0) + 1
        width = max(MARGIN * 2 + across * (WIDTH + GAP_X), 420.0)
        scene = Scene(width, MARGIN * 2 + 36 + down * (HEIGHT + GAP_Y), title)
        scene.add(Box(0, 0, scene.width, scene.height, "#ffffff"))
        scene.add(Text(MARGIN, 24, title, 14, bold=True))
        for i, (label, fill) in enumerate((("forward", FORWARD), ("backward", BACKWARD))):
            x = MARGIN + 110 * i
            scene.add(Box(x, 34, 14, 14, fill, EDGES[fill]), Text(x + 20, 46, label, 12))
        for box in self.boxes:
            for source in box.inputs:
                scene.add(_edge(self.boxes[source], box))
        for box in self.boxes:
            scene.add(*_shapes(box))
        return scene.svg()


def _place(box: NodeBox) -> tuple[float, float]:
    return MARGIN + box.column * (WIDTH + GAP_X), MARGIN + 36 + box.layer * (HEIGHT + GAP_Y)


def _edge(source: NodeBox, target: NodeBox) -> Line:
    x0, y0 = _place(source)
    x1, y1 = _place(target)
    start, end = (x0 + WIDTH / 2, y0 + HEIGHT), (x1 + WIDTH / 2, y1)
    middle = ((start[0], start[1] + GAP_Y / 3), (end[0], end[1] - GAP_Y / 3))
    colour = EDGES[BACKWARD] if target.backward else EDGES[VALUE]
    return Line((start, *middle, end), colour, 1.0)


def _shapes(box: NodeBox) -> tuple[Box, Text, Text]:
    x, y = _place(box)
    fill = {"forward": FORWARD, "backward": BACKWARD}.get(box.kind, VALUE)
    note = f"{box.label} {box.name}\n{', '.join(box.outputs)}"
    return (
        Box(x, y, WIDTH, HEIGHT, fill, EDGES[fill], 6, note),
        Text(x + WIDTH / 2, y + 17, box.label[:20], 12, "middle", bold=True),
        Text(x + WIDTH / 2, y + 32, _short(box.outputs[0] if box.outputs else ""), 10, "middle"),
    )


def _short(name: str, most: int = 19) -> str:
    return name if len(name) <= most else f"{name[:9]}…{name[-(most - 10) :]}"


def arrange(model: onnx.ModelProto, forward: set[str] | None) -> Drawing:
    """Boxes with layers and columns.

    Args:
        model: what to draw.
        forward: names that nodes of the forward half compute; None to tell the halves apart by
            the names that onnxtrain gives to the nodes of a backward half.
    """
    boxes: list[NodeBox] = []
    maker: dict[str, int] = {}
    constants = {t.name for t in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in constants:
            maker[value.name] = len(boxes)
            boxes.append(NodeBox(value.name, "input", "input", outputs=[value.name]))
    for node in model.graph.node:
        names = [*node.input, *_captured(node)]
        sources = list(dict.fromkeys(maker[n] for n in names if n in maker))
        box = NodeBox(
            node.name,
            node.op_type,
            "backward" if _is_backward(node, forward) else "forward",
            sources,
            [n for n in node.input if n in constants],
            [o for o in node.output if o],
        )
        for output in box.outputs:
            maker[output] = len(boxes)
        boxes.append(box)
    _set_layers(boxes)
    _set_columns(boxes)
    return Drawing(boxes)


def _captured(node: onnx.NodeProto) -> list[str]:
    """Names that the node's subgraphs use (those of the outer graph are found in the table)."""
    return [
        name
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs])
        for inner in graph.node
        for name in (*inner.input, *_captured(inner))
    ]


def _is_backward(node: onnx.NodeProto, forward: set[str] | None) -> bool:
    if forward is not None:
        return not any(o in forward for o in node.output)
    scope = node.name.split("/")[0]
    return scope.endswith("_grad") or scope in {"gradient", "onnxtrain.accumulate"}


def _set_layers(boxes: list[NodeBox]) -> None:
    """The backward half starts below the forward half, and its nodes stand near their readers."""
    for box in boxes:
        box.layer = max((boxes[i].layer + 1 for i in box.inputs), default=0)
    start = max((b.layer + 1 for b in boxes if not b.backward), default=0)
    readers: dict[int, list[NodeBox]] = defaultdict(list)
    for box in boxes:
        if box.backward:
            box.layer = max([start, *(boxes[i].layer + 1 for i in box.inputs)])
        for i in box.inputs:
            readers[i].append(box)
    for i in reversed(range(len(boxes))):
        if boxes[i].backward and readers[i]:
            boxes[i].layer = min(b.layer for b in readers[i]) - 1


def _set_columns(boxes: list[NodeBox]) -> None:
    """Below the middle of what it reads, in the order of these middles."""
    layers: dict[int, list[NodeBox]] = defaultdict(list)
    for box in boxes:
        layers[box.layer].append(box)
    for number in sorted(layers):
        members = layers[number]
        middles = {id(b): _middle(b, boxes) for b in members}
        members.sort(key=lambda b: middles[id(b)])
        free = 0.0
        for box in members:
            box.column = max(free, middles[id(box)])
            free = box.column + 1


def _middle(box: NodeBox, boxes: list[NodeBox]) -> float:
    columns = [boxes[i].column for i in box.inputs]
    return sum(columns) / len(columns) if columns else 0.0
