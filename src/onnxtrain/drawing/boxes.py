"""What a drawing consists of: a box per node, input, weight or output, with its place."""

from __future__ import annotations

from dataclasses import dataclass, field

HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 40.0, 22.0, 48.0, 24.0, 36.0
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
    """A node, an input, a weight or an output, and its place.

    Attributes:
        inputs: numbers of the boxes that it reads.
        values: names of the values that it reads from them, in the same order.
        facts: what an interactive drawing tells of it, as names and texts.
        nodes: how many nodes it stands for.
        scopes: the parts of the model around it, the outermost first.
    """

    name: str
    label: str
    kind: str
    inputs: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    detail: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    nodes: int = 1
    scopes: list[str] = field(default_factory=list)
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

    def left(self, width: float) -> float:
        """The x of its left side, if boxes are so wide."""
        return MARGIN + self.column * (width + GAP_X)

    @property
    def top(self) -> float:
        """The y of its upper side."""
        return top_of(self.layer)


def top_of(layer: int) -> float:
    """The y at which the boxes of a layer begin."""
    return MARGIN + HEAD + layer * (HEIGHT + GAP_Y)


def short(name: str, most: int) -> str:
    """A name of at most so many letters, cut in the middle."""
    first = most // 2
    return name if len(name) <= most else f"{name[:first]}…{name[-(most - first - 1) :]}"
