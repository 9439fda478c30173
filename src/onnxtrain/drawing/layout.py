"""Place the nodes of a graph in layers, forward half above, backward half below, and draw it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from .boxes import (
    BACKWARD,
    EDGES,
    FILLS,
    GAP_X,
    GAP_Y,
    HEAD,
    HEIGHT,
    MARGIN,
    MARKS,
    NARROW,
    SOURCES,
    VALUE,
    WIDE,
    NodeBox,
    short,
)
from .edges import Route, exit_of, routes
from .facts import node_facts
from .kinds import captured, node_kinds
from .scene import Arrow, Box, Line, Scene, Text
from .scopes import Grouping, collapse, node_scopes


@dataclass
class Drawing:
    """Boxes in forward order.

    Attributes:
        boxes: each follows those that it reads.
        width: of a box.
        labels: what is written on the lines, by the name of the value.
    """

    boxes: list[NodeBox]
    width: float = NARROW
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def backward(self) -> int:
        """Number of nodes of the backward half."""
        return sum(b.nodes for b in self.boxes if b.backward)

    def lines(self) -> list[tuple[str, str]]:
        """The graph as text, and for each line the kind of its box."""
        lines = []
        for box in self.boxes:
            operands, results = ", ".join([*box.values, *box.constants]), ", ".join(box.outputs)
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
        for route in routes(self.boxes, self.width):
            scene.add(*self._line(route))
        read = {value for box in self.boxes for value in box.values}
        for i, box in enumerate(self.boxes):
            scene.add(*self._shapes(i, box), *self._labels(box, read))
        return scene

    def _line(self, route: Route) -> tuple[Line, Arrow]:
        colour = EDGES[BACKWARD] if self.boxes[route.target].backward else EDGES[VALUE]
        mark = f"{route.source} {route.target}"
        return Line(route.points, colour, 1.0, mark), Arrow(route.points[-1], colour)

    def _labels(self, box: NodeBox, read: Collection[str]) -> list[Text]:
        """Beside the beginning of the line of each value: its shape."""
        letters = max(6, int((self.width / (len(box.outputs) + 1) + GAP_X) / 5))
        return [
            Text(exit_of(box, value, self.width) + 4, box.top + HEIGHT + 11,
                 short(self.labels[value], letters), 9, colour="#64748b", halo=True)
            for value in box.outputs
            if value in self.labels and value in read
        ]  # fmt: skip

    def _shapes(self, number: int, box: NodeBox) -> tuple[Box, Text, Text]:
        x, y = box.left(self.width), box.top
        middle, letters = x + self.width / 2, int(self.width / 6.8)
        note = f"{box.label} {box.name}\n{', '.join(box.outputs)}"
        small = box.detail or (box.outputs[0] if box.outputs else "")
        radius = 6 if box.kind in MARKS else 16
        edge = EDGES[box.fill]
        return (
            Box(x, y, self.width, HEIGHT, box.fill, edge, radius, note, str(number)),
            Text(middle, y + 17, short(box.label, letters + 1), 12, "middle", bold=True),
            Text(middle, y + 32, short(small, letters), 10, "middle"),
        )


# --- from a model to boxes ------------------------------------------------------------------------


def arrange(
    model: onnx.ModelProto,
    results: Collection[str] | None = None,
    labels: Mapping[str, str] | None = None,
    group: Grouping | None = None,
) -> Drawing:
    """Boxes with layers and columns.

    Args:
        model: what to draw.
        results: outputs of the forward half: what they need is forward, the rest backward. None to
            tell the halves apart by the names that onnxtrain gives to nodes.
        labels: texts for the lines, by the name of the value.
        group: nodes that are drawn as one box; see `scopes`.
    """
    constants = {t.name for t in model.graph.initializer}
    texts = labels or {}
    sources = [
        NodeBox(value.name, "input", "input", outputs=[value.name], facts=[
            ("input", value.name), ("shape", texts.get(value.name, "?")),
        ])
        for value in model.graph.input
        if value.name not in constants
    ]  # fmt: skip
    boxes = _with_nodes(model, sources, results, {}, texts)
    if group is not None:
        boxes = collapse(boxes, group)
    _set_layers(boxes)
    _sink_sources(boxes)
    _set_columns(boxes)
    return Drawing(boxes, labels=texts)


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
    boxes = _with_nodes(model, sources, None, types, types)
    _set_layers(boxes)
    bottom = max((b.layer for b in boxes), default=0) + 1
    maker = {o: i for i, b in enumerate(boxes) for o in b.outputs}
    for value in graph.output:
        read = [value.name] if value.name in maker else []
        box = NodeBox(value.name, value.name, "output", [maker[n] for n in read], read)
        box.layer, box.detail = bottom, types.get(value.name, "")
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
    texts: Mapping[str, str],
) -> list[NodeBox]:
    """The sources, then a box for every node."""
    boxes = list(sources)
    for box in boxes:
        box.detail = types.get(box.name, "")
    maker = {box.name: i for i, box in enumerate(boxes)}
    constants = {t.name for t in model.graph.initializer}
    graph = model.graph
    for node, kind, scopes in zip(graph.node, node_kinds(graph, results), node_scopes(graph)):
        names = [n for n in dict.fromkeys([*node.input, *captured(node)]) if n in maker]
        box = NodeBox(
            node.name,
            node.op_type,
            kind,
            [maker[n] for n in names],
            names,
            [n for n in node.input if n in constants],
            [o for o in node.output if o],
            facts=node_facts(node, kind, texts),
            scopes=scopes,
        )
        box.detail = next((types[o] for o in box.outputs if o in types), "")
        for output in box.outputs:
            maker[output] = len(boxes)
        boxes.append(box)
    return boxes


# --- places ---------------------------------------------------------------------------------------


def _readers(boxes: Sequence[NodeBox]) -> dict[int, list[NodeBox]]:
    readers: dict[int, list[NodeBox]] = defaultdict(list)
    for box in boxes:
        for i in dict.fromkeys(box.inputs):
            readers[i].append(box)
    return readers


def _set_layers(boxes: list[NodeBox]) -> None:
    """The backward half starts below the forward half, and its nodes stand near their readers."""
    for box in boxes:
        box.layer = max((boxes[i].layer + 1 for i in box.inputs), default=0)
    start = max((b.layer + 1 for b in boxes if not b.below), default=0)
    for box in boxes:
        if box.below:
            box.layer = max([start, *(boxes[i].layer + 1 for i in box.inputs)])
    readers = _readers(boxes)
    for i in reversed(range(len(boxes))):
        if boxes[i].below and readers[i]:
            boxes[i].layer = min(b.layer for b in readers[i]) - 1


def _sink_sources(boxes: list[NodeBox]) -> None:
    """Put inputs and weights just above the first node that reads them."""
    readers = _readers(boxes)
    for i, box in enumerate(boxes):
        if box.kind in SOURCES:
            box.layer = max(0, min((b.layer for b in readers[i]), default=1) - 1)


def _set_columns(boxes: list[NodeBox]) -> None:
    """Below the middle of what it reads; what reads nothing, above the middle of its readers."""
    layers: dict[int, list[NodeBox]] = defaultdict(list)
    for box in boxes:
        layers[box.layer].append(box)
    readers = _readers(boxes)
    above = {id(b): [boxes[i] for i in b.inputs] for b in boxes}
    below = {id(b): readers[i] for i, b in enumerate(boxes)}
    for number in sorted(layers):
        _place(layers[number], above)
    for number in sorted(layers, reverse=True):
        _place(layers[number], below)
    for number in sorted(layers):
        _place(layers[number], above)
    first = min((b.column for b in boxes), default=0.0)
    for box in boxes:
        box.column -= first


def _place(members: list[NodeBox], neighbours: Mapping[int, list[NodeBox]]) -> None:
    """Each box of a layer as near to the middle of its neighbours as the others let it."""
    middles = {id(b): _middle(b, neighbours[id(b)]) for b in members}
    members.sort(key=lambda b: middles[id(b)])
    columns: list[float] = []
    for box in members:
        columns.append(max(columns[-1] + 1 if columns else -math.inf, middles[id(box)]))
    too_far = sum(columns) - sum(middles.values())
    for box, column in zip(members, columns):
        box.column = column - too_far / len(members)


def _middle(box: NodeBox, neighbours: list[NodeBox]) -> float:
    if not neighbours:
        return box.column
    return sum(b.column for b in neighbours) / len(neighbours)
