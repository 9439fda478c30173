"""Rows of a table that are taken, perhaps weighted, and added up by number: one node of ours.

A Gather, a Mul and a sum by number write and read all rows that are taken twice before the first
one is added. Both directions of a bag of embeddings are of this kind, and so are the messages of a
graph's edges (`fusion/taken_rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..fusion.operators import TAKEN_ROWS
from .own_nodes import Node
from .patterns import Nodes, Number, Opened, Pattern, Result, Value, Zeros, matches

TAKEN = Result("Gather", (Value("table"), Value("taken")), {"axis": 0})
WEIGHTS = [Result("Unsqueeze", (Value("weights"), Number((axis,)))) for axis in (1, -1)]


def _sources() -> Iterator[Pattern]:
    """What the rows that are added may be: weighted or not, and of one axis for all numbers."""
    for weights in WEIGHTS:
        yield Result("Mul", (TAKEN, weights))
        yield Result("Mul", (weights, TAKEN))
    yield TAKEN


SOURCES = tuple(_sources())
SCATTERED_ROWS = Result(
    "ScatterElements",
    (
        Zeros(Value("shape")),
        Result("Expand", (Result("Unsqueeze", (Value("rows"), Number((1,)))), Value("sizes"))),
        Value("source"),
    ),
    {"axis": 0, "reduction": "add"},
)
"""What a caller writes, who adds rows to zeros."""


def added_taken_rows(nodes: Nodes, node: Node) -> Node:
    """Rows added up by number; those of a table without a copy, where they come from one."""
    shape, rows, source = node.inputs
    width = nodes.constant(shape)
    if width is None or len(width.elements) != 2:
        return node
    flat, bound = Number((-1, width.elements[1])), dict[str, str]()
    if matches(nodes, source, Result("Reshape", (Value("before"), flat)), bound):
        source = bound["before"]
    for pattern in SOURCES:
        bound = {}
        if matches(nodes, source, pattern, bound):
            operands = (bound["table"], bound["taken"])
            weights = (bound["weights"],) if "weights" in bound else ()
            inputs = (shape, rows, *operands, *weights)
            return Node(TAKEN_ROWS[len(weights)], inputs, node.outputs, (len(weights),))
    return node


def scattered_rows(nodes: Nodes, node: Opened) -> tuple[str, str, str] | None:
    """The shape of the result, numbers and rows, if all that a node adds are whole rows."""
    bound = dict[str, str]()
    if not matches(nodes, node.outputs[0], SCATTERED_ROWS, bound):
        return None
    shape, sizes = nodes.constant(bound["shape"]), nodes.constant(bound["sizes"])
    if shape is None or sizes is None or len(shape.elements) != 2 or len(sizes.elements) != 2:
        return None
    is_whole = shape.elements[1] == sizes.elements[1]
    return (bound["shape"], bound["rows"], bound["source"]) if is_whole else None
