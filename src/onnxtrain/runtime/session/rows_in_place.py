"""Rows are added to what a product has written, where the gradient of a table lies.

A table that is looked up and multiplied with, as the words of a language model are, has two
gradients: a product, and one of the rows that were looked up. As standard operators the product is
made in memory of its own, waits there for the whole backward pass, and is copied with the rows
added: a tensor as large as the table more than there has to be. Here the product is the result of
the graph, and the last node adds the rows to it where it lies. onnxruntime does not know that this
node writes; it runs when all that it reads is there, and nobody else reads the result.
"""

from __future__ import annotations

from ...errors import ModelFileError
from ...operators import KERNEL
from ..files.outline import OUTPUT, Outline
from ..files.wire import Message
from ..fusion.library import is_available
from ..fusion.operators import ADD_ROWS_TO
from .edits import LONGEST, Connections, changed, connections_of, idle_after, marked
from .kernels import ONE_BY_ONE_TO, SORTED_SUMS_TO, is_shape_of
from .own_nodes import Node
from .patterns import Nodes, Opened, matches

PRODUCTS = frozenset({"Gemm", "MatMul"})
"""What makes the table: its result is memory of its own, and no view of anything else."""
READS = {"ScatterND": 2, "ScatterElements": 1}
"""How often the table is read for rows to be added to it."""


def with_rows_in_place(outline: Outline) -> bytes | None:
    """The model with rows added in place; None if there is nothing to do."""
    if len(outline.model) > LONGEST or not outline.mentions(KERNEL.encode()) or not is_available():
        return None
    try:
        nodes = marked(outline, KERNEL)
        places = [node.place for node in nodes if node.operator.decode() in READS]
        if not places:
            return None
        changes = _changes(outline, places, connections_of(outline))
        return changed(outline, changes, ADD_ROWS_TO.domain.encode()) if changes else None
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return None


def _changes(
    outline: Outline, places: list[int], connections: Connections
) -> dict[int, list[bytes]]:
    operands, makers, readers = connections
    nodes, results = Nodes(outline, makers), outline.outputs()
    changes, replaced, still_read = dict[int, list[bytes]](), list[int](), set[bytes]()
    for place in places:
        result = operands[place][1][0]
        node = nodes.maker(result.decode())
        if node is None or result not in results or readers.get(result):
            continue
        addition = _onto_product(nodes, node)
        if addition is None:
            continue
        product, rows, source = addition
        (table,) = product.outputs
        is_shared = readers[table.encode()] != READS[node.operator] or table.encode() in results
        if is_shared or product.place in changes:
            continue
        begin, end = outline.nodes[product.place]
        message = Message.parse(outline.model[begin:end])
        message.replace(OUTPUT, [result])
        changes[product.place] = [message.encode()]
        added = f"{node.outputs[0]}/added"
        changes[place] = [Node(ADD_ROWS_TO, (node.outputs[0], rows, source), (added,)).encode()]
        replaced.append(place)
        still_read |= {name.encode() for name in (table, rows, source)}
    idle = idle_after(outline, replaced, still_read, connections)
    return changes | {place: [] for place in idle}


def _onto_product(nodes: Nodes, node: Opened) -> tuple[Opened, str, str] | None:
    """The product that rows are added to, the numbers of the rows, and the rows."""
    bound = dict[str, str]()
    pattern = SORTED_SUMS_TO if node.operator == "ScatterND" else ONE_BY_ONE_TO
    if not matches(nodes, node.outputs[0], pattern, bound):
        return None
    if pattern is SORTED_SUMS_TO and not is_shape_of(nodes, bound):
        return None
    product = nodes.maker(bound["table"])
    if product is None or product.place < 0 or product.operator not in PRODUCTS:
        return None
    return product, bound["rows"], bound["source"]
