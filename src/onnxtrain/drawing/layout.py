"""Place the nodes of a graph in layers, forward half above, backward half below, and draw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx

from .scene import Box, Line, Scene, Text

HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 40.0, 20.0, 34.0, 24.0, 36.0
NARROW, WIDE = 132.0, 190.0
FORWARD, BACKWARD, VALUE = "#dbeafe", "#ffedd5", "#f1f5f9"
UPDATE, WEIGHT, OUTPUT = "#ede9fe", "#fde68a", "#bbf7d0"
FILLS = {
    "forward": FORWARD, "backward": BACKWARD, "update": UPDATE, "weight": WEIGHT, "output": OUTPUT,
}  # fmt: skip
EDGES = {
    FORWARD: "#2563eb", BACKWARD: "#ea580c", UPDATE: "#7c3aed", VALUE: "#94a3b8", WEIGHT: "#a16207",
    OUTPUT: "#15803d",
}  # fmt: skip
MARKS = {"forward": "▶", "backward": "◀", "update": "●"}
SOURCES = ("input", "weight", "constant")


@dataclass
class NodeBox:
    """A node, an input, a weight or an output, and its place."""

    name: str
    label: str
    kind: str
    inputs: list[int] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    detail: str = ""
    layer: int = 0
    column: float = 0.0

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward half."""
        return self.kind == "backward"

    @property
    def below(self) -> bool:
        """Whether it stands below the forward half."""
        return self.kind in {"backward", "update"}

    @property
    def fill(self) -> str:
        """The colour of its kind."""
        return FILLS.get(self.kind, VALUE)


@dataclass
class Drawing:
    """Boxes in forward order."""

    boxes: list[NodeBox]
    width: float = NARROW

    @property
    def backward(self) -> int:
        """Number of nodes of the backward half."""
        return sum(b.backward for b in self.boxes)

    def lines(self) -> list[tuple[str, str]]:
        """The graph as text, and for each line the kind of its box."""
        lines = []
        for box in self.boxes:
            names = [*(self.boxes[i].outputs[0] for i in box.inputs), *box.constants]
            operands, results = ", ".join(names), ", ".join(box.outputs)
            mark = MARKS.get(box.kind, " ")
            text = f"{mark} {results} = {box.label}({operands})" if box.kind != "input" else (
                f"  {results}: {box.label}"
            )  # fmt: skip
            lines.append((text, box.kind))
        return lines

    def svg(self, title: str) -> str:
        """The graph as SVG."""
        return self.scene(title).svg()

    def scene(self, title: str, legend: bool = True) -> Scene:
        """The graph as shapes, with a legend of the two halves if wanted."""
        across = max((b.column for b in self.boxes), default=0) + 1
        down = max((b.layer for b in self.boxes), default=0) + 1
        width = MARGIN * 2 + across * (self.width + GAP_X)
        scene = Scene(
            max(width, 420.0) if legend else width,
            MARGIN * 2 + HEAD + down * (HEIGHT + GAP_Y),
            title,
        )
        scene.add(Box(0, 0, scene.width, scene.height, "#ffffff"))
        scene.add(Text(MARGIN, 24, title, 14, bold=True))
        kinds = {"forward", "backward"} | {b.kind for b in self.boxes}
        for i, label in enumerate(kind for kind in MARKS if kind in kinds):
            x, fill = MARGIN + 110 * i, FILLS[label]
            if legend:
                scene.add(Box(x, 34, 14, 14, fill, EDGES[fill]), Text(x + 20, 46, label, 12))
        for box in self.boxes:
            for source in box.inputs:
                scene.add(self._edge(self.boxes[source], box))
        for box in self.boxes:
            scene.add(*self._shapes(box))
        return scene

    def _position(self, box: NodeBox) -> tuple[float, float]:
        x = MARGIN + box.column * (self.width + GAP_X)
        return x, MARGIN + HEAD + box.layer * (HEIGHT + GAP_Y)

    def _edge(self, source: NodeBox, target: NodeBox) -> Line:
        x0, y0 = self._position(source)
        x1, y1 = self._position(target)
        start, end = (x0 + self.width / 2, y0 + HEIGHT), (x1 + self.width / 2, y1)
        middle = ((start[0], start[1] + GAP_Y / 3), (end[0], end[1] - GAP_Y / 3))
        colour = EDGES[BACKWARD] if target.backward else EDGES[VALUE]
        return Line((start, *middle, end), colour, 1.0)

    def _shapes(self, box: NodeBox) -> tuple[Box, Text, Text]:
        x, y = self._position(box)
        middle, letters = x + self.width / 2, int(self.width / 6.8)
        note = f"{box.label} {box.name}\n{', '.join(box.outputs)}"
        small = box.detail or (box.outputs[0] if box.outputs else "")
        radius = 6 if box.kind in MARKS else 16
        return (
            Box(x, y, self.width, HEIGHT, box.fill, EDGES[box.fill], radius, note),
            Text(middle, y + 17, _short(box.label, letters + 1), 12, "middle", bold=True),
            Text(middle, y + 32, _short(small, letters), 10, "middle"),
        )


def _short(name: str, most: int) -> str:
    first = most // 2
    return name if len(name) <= most else f"{name[:first]}…{name[-(most - first - 1) :]}"


def arrange(model: onnx.ModelProto, results: Collection[str] | None = None) -> Drawing:
    """Boxes with layers and columns.

    Args:
        model: what to draw.
        results: outputs of the forward half: what they need is forward, the rest backward. None to
            tell the halves apart by the names that onnxtrain gives to nodes.
    """
    constants = {t.name for t in model.graph.initializer}
    sources = [
        NodeBox(value.name, "input", "input", outputs=[value.name])
        for value in model.graph.input
        if value.name not in constants
    ]
    boxes = _with_nodes(model, sources, results, {})
    _set_layers(boxes)
    _set_columns(boxes)
    return Drawing(boxes)


def arrange_with_types(
    model: onnx.ModelProto, types: Mapping[str, str], weights: Collection[str] | None = None
) -> Drawing:
    """Boxes for weights and outputs too, with the types and shapes of all values.

    Args:
        model: what to draw.
        types: texts for inputs, initializers, outputs and, where known, the values between.
        weights: names that are shown as weights; by default the initializers.
    """
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    shown = constants if weights is None else weights
    names = [i.name for i in graph.input if i.name not in constants]
    names += [n for n, t in constants.items() if t.dims or t.data_type == t.FLOAT]
    sources = [
        NodeBox(name, name, _source_kind(name, shown, constants), outputs=[name])
        for name in names
    ]  # fmt: skip
    boxes = _with_nodes(model, sources, None, types)
    _set_layers(boxes)
    bottom = max((b.layer for b in boxes), default=0) + 1
    for value in graph.output:
        maker = [i for i, b in enumerate(boxes) if value.name in b.outputs]
        box = NodeBox(value.name, value.name, "output", maker, layer=bottom)
        box.detail = types.get(value.name, "")
        boxes.append(box)
    _sink_sources(boxes)
    _set_columns(boxes)
    return Drawing(boxes, WIDE)


def _source_kind(name: str, weights: Collection[str], constants: Collection[str]) -> str:
    if name in weights:
        return "weight"
    return "constant" if name in constants else "input"


def _with_nodes(
    model: onnx.ModelProto,
    sources: list[NodeBox],
    results: Collection[str] | None,
    types: Mapping[str, str],
) -> list[NodeBox]:
    """The sources, then a box for every node."""
    boxes = list(sources)
    for box in boxes:
        box.detail = types.get(box.name, "")
    maker = {box.name: i for i, box in enumerate(boxes)}
    constants = {t.name for t in model.graph.initializer}
    kinds = _kinds(model.graph, results)
    for node, kind in zip(model.graph.node, kinds):
        names = [*node.input, *_captured(node)]
        box = NodeBox(
            node.name,
            node.op_type,
            kind,
            list(dict.fromkeys(maker[n] for n in names if n in maker)),
            [n for n in node.input if n in constants],
            [o for o in node.output if o],
        )
        box.detail = next((types[o] for o in box.outputs if o in types), "")
        for output in box.outputs:
            maker[output] = len(boxes)
        boxes.append(box)
    return boxes


def _sink_sources(boxes: list[NodeBox]) -> None:
    """Put inputs and weights just above the first node that reads them."""
    for i, box in enumerate(boxes):
        if box.kind in SOURCES:
            readers = [b.layer for b in boxes if i in b.inputs]
            box.layer = max(0, min(readers) - 1) if readers else 0


def _captured(node: onnx.NodeProto) -> list[str]:
    """Names that the node's subgraphs use (those of the outer graph are found in the table)."""
    return [
        name
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs])
        for inner in graph.node
        for name in (*inner.input, *_captured(inner))
    ]


def _kinds(graph: onnx.GraphProto, results: Collection[str] | None) -> list[str]:
    """Of each node whether it is forward, backward or update.

    A node that the forward half needs is forward whatever its name: a pass may have joined it with
    one of the backward half.
    """
    by_name = [_kind_by_name(node) for node in graph.node]
    if results is None:
        halves = zip(graph.node, by_name)
        others = {o for node, kind in halves if kind != "forward" for o in node.output}
        results = {o.name for o in graph.output} - others
    else:
        by_name = ["backward"] * len(by_name)
    needed, kinds = set(results), []
    for node, kind in zip(reversed(graph.node), reversed(by_name)):
        if needed.intersection(node.output):
            needed.update(node.input, _captured(node))
            kinds.append("forward")
        else:
            kinds.append(kind)
    return kinds[::-1]


def _kind_by_name(node: onnx.NodeProto) -> str:
    scope = node.name.split("/")[0]
    if scope.endswith("_grad") or scope in {"gradient", "onnxtrain.accumulate"}:
        return "backward"
    return "update" if scope == "update" else "forward"


def _set_layers(boxes: list[NodeBox]) -> None:
    """The backward half starts below the forward half, and its nodes stand near their readers."""
    for box in boxes:
        box.layer = max((boxes[i].layer + 1 for i in box.inputs), default=0)
    start = max((b.layer + 1 for b in boxes if not b.below), default=0)
    readers: dict[int, list[NodeBox]] = defaultdict(list)
    for box in boxes:
        if box.below:
            box.layer = max([start, *(boxes[i].layer + 1 for i in box.inputs)])
        for i in box.inputs:
            readers[i].append(box)
    for i in reversed(range(len(boxes))):
        if boxes[i].below and readers[i]:
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
