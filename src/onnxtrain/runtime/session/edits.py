"""Other nodes in the places of marked ones, in the bytes of a model.

A pass has marked nodes by their documentation. A search through the bytes finds them, and only they
are read: opening every message of a model would take as long as a third of its session.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...errors import ModelFileError
from ..files.onnxfile import Node as OpenNode
from ..files.onnxfile import uses
from ..files.outline import GRAPH, INITIALIZER, NODE, Outline, fields
from ..files.wire import BYTES, Message, varint

LONGEST = 2**26
"""Bytes of a model above which it is left alone: its weights would be in memory twice."""

INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOCUMENTATION, DOMAIN = 1, 2, 3, 4, 5, 6, 7
"""Fields of a node."""
BODY = 6
"""Field of an attribute that is a graph."""
OPSETS = 8
"""A field of a model."""
WITH_BODIES = (b"If", b"Loop", b"Scan", b"SequenceMap")
"""Operators whose inner graphs may read any value."""


def tag(number: int) -> bytes:
    """What a field of bytes begins with."""
    return bytes([number << 3 | BYTES])


def field(number: int, content: Message | bytes) -> bytes:
    """A field of bytes."""
    return Message().add(number, content).encode()


GRAPH_TAG, NODE_TAG = tag(GRAPH), tag(NODE)
OPERATOR_TAG = tag(OPERATOR)[0]
SHORT = 0x7F
"""The largest number that is written in one byte."""


class Node(NamedTuple):
    """What counts of a node that has a mark."""

    place: int
    name: bytes
    operator: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[bytes]
    mark: bytes


def marked(outline: Outline, mark: str) -> Iterator[Node]:
    """Nodes whose documentation begins with a mark; not those inside of other nodes."""
    needle = mark.encode()
    for index in nodes_mentioning(outline, needle):
        node = _read(outline, index)
        if node is not None and node.mark.startswith(needle):
            yield node


def marked_inside_too(outline: Outline, mark: str) -> Iterator[Node]:
    """The same, and nodes that have bodies in which the mark occurs."""
    needle = mark.encode()
    for index in nodes_mentioning(outline, needle):
        node = _read(outline, index)
        if node is not None and (node.mark.startswith(needle) or node.operator in WITH_BODIES):
            yield node


def nodes_mentioning(outline: Outline, needle: bytes) -> Iterator[int]:
    """Places of the nodes that have a text anywhere in them."""
    model, begins = outline.model, outline.node_begins
    at, end = begins[0], outline.nodes[-1][1]
    while (at := model.find(needle, at, end)) >= 0:
        index = bisect_right(begins, at) - 1
        place, at = at, max(at + len(needle), outline.nodes[index][1])
        if place < outline.nodes[index][1]:  # else it stands between nodes
            yield index


def _read(outline: Outline, index: int) -> Node | None:
    """A node; None if it is not ONNX's own."""
    node = Node(index, b"", b"", [], [], [], b"")
    lists = {INPUT: node.inputs, OUTPUT: node.outputs, ATTRIBUTE: node.attributes}
    texts = {NAME: b"", OPERATOR: b"", DOCUMENTATION: b"", DOMAIN: b""}
    for number, begin, end in fields(outline.model, *outline.nodes[index]):
        value = outline.model[begin:end]
        if number in lists:
            lists[number].append(value)
        elif number in texts:
            texts[number] = value
    if texts[DOMAIN]:
        return None
    return node._replace(name=texts[NAME], operator=texts[OPERATOR], mark=texts[DOCUMENTATION])


def changed(
    outline: Outline,
    changes: Mapping[int, Sequence[bytes]],
    *domains: bytes,
    constants: Iterable[bytes] = (),
    without: tuple[int, int] = (0, 0),
) -> bytes:
    """The model with other nodes in the places of some, none or several for each.

    Args:
        outline: of the model.
        changes: what stands in the places of which nodes.
        domains: of the operators that they bring.
        constants: more initializers.
        without: a part of the graph that is left out.
    """
    model, (begin, end) = outline.model, outline.graph
    edits = [(*without, b"")] if without[0] < without[1] else []
    for index, nodes in changes.items():
        start, stop = outline.nodes[index]
        written = b"".join([NODE_TAG + varint(len(node)) + node for node in nodes])
        edits.append((_start(model, NODE_TAG, start, stop), stop, written))
    more = b"".join([field(INITIALIZER, constant) for constant in constants])
    view = memoryview(model)  # slices of bytes would be copies, as long as the weights
    parts, at, size = list[bytes | memoryview]([b""]), begin, end - begin + len(more)
    for start, stop, written in sorted(edits):
        parts += [view[at:start], written]
        size += len(written) - (stop - start)
        at = stop
    parts[0] = model[: _start(model, GRAPH_TAG, begin, end)] + GRAPH_TAG + varint(size)
    parts += [view[at:end], more, view[end:]]
    known = outline.domains()
    new = [Message().add(1, domain).add(2, 1) for domain in domains if domain not in known]
    parts += [field(OPSETS, message) for message in new]
    return b"".join(parts)


Change: TypeAlias = "Callable[[Outline], Mapping[int, Sequence[bytes]]]"
"""What takes the places of which nodes of a graph."""


def with_bodies(content: bytes, change: Change, domain: bytes) -> bytes | None:
    """A node whose bodies are changed, each outlined alone; None if nothing changes in any."""
    node, is_changed = Message.parse(content), False
    for attribute in node.messages(ATTRIBUTE):
        body = attribute.message(BODY)
        outline = None if body is None else Outline.of(field(GRAPH, body))
        changes = change(outline) if outline is not None and outline.nodes else {}
        if outline is not None and changes:
            graph = Message.parse(changed(outline, changes, domain)).message(GRAPH)
            attribute.replace(BODY, [] if graph is None else [graph])
            is_changed = True
    return node.encode() if is_changed else None


def _start(model: bytes, head_tag: bytes, begin: int, end: int) -> int:
    """Where the head of a field is whose content begins and ends there."""
    head = head_tag + varint(end - begin)
    if model[begin - len(head) : begin] != head:
        raise ModelFileError("a length is written in more bytes than it needs")
    return begin - len(head)


def idle_after(
    outline: Outline,
    replaced: Collection[int],
    still_read: Collection[bytes],
    connections: Connections | None = None,
) -> set[int]:
    """Nodes whose results nobody reads any more, now that others do the work of some.

    Args:
        outline: of the model.
        replaced: places of the nodes whose operands are read by nobody, unless they are
            `still_read`.
        still_read: names that the new nodes read.
        connections: of the model, if somebody has looked at them already; they are used up.
    """
    operands, makers, readers = connections or connections_of(outline)
    needed = outline.outputs().union(still_read)
    idle, todo = set[int](), list(replaced)
    while todo:
        index = todo.pop()
        for name in operands[index][0]:
            readers[name] -= 1
            maker = makers.get(name, -1)
            if readers[name] or name in needed or maker < 0 or maker in idle:
                continue
            results = operands[maker][1]
            if maker not in replaced and not any(readers.get(r) or r in needed for r in results):
                idle.add(maker)
                todo.append(maker)
    return idle


Connections: TypeAlias = (
    "tuple[list[tuple[list[bytes], list[bytes]]], dict[bytes, int], dict[bytes, int]]"
)
"""Operands and results of each node, who makes each value, and how often it is read."""


def connections_of(outline: Outline) -> Connections:
    """How the nodes of a model hang together; an `IndexError` if one is damaged."""
    model, operands = outline.model, list[tuple[list[bytes], list[bytes]]]()
    makers, readers = dict[bytes, int](), dict[bytes, int]()
    for index, (begin, end) in enumerate(outline.nodes):
        inputs, outputs, operator = list[bytes](), list[bytes](), b""
        for number, text in texts_of(model, begin, end):
            if number == INPUT:
                inputs.append(text)
            elif number == OUTPUT:
                outputs.append(text)
            elif number == OPERATOR:
                operator = text
                break  # what follows is not names
        if operator in WITH_BODIES:
            opened = OpenNode(Message.parse(model[begin:end]))
            inputs += [name.encode() for name in uses(opened)]
        operands.append((inputs, outputs))
        for name in inputs:
            readers[name] = readers.get(name, 0) + 1
        for name in outputs:
            makers[name] = index
    return operands, makers, readers


def texts_of(model: bytes, begin: int, end: int) -> list[tuple[int, bytes]]:
    """Numbers and texts of the fields of a node, as far as they are texts of short length.

    `fields` would take three times as long, and this looks at all nodes of a model. Usually names
    come first, each behind one byte of a tag and one of its length.
    """
    texts, at = list[tuple[int, bytes]](), begin
    while at + 1 < end:
        key, size = model[at], model[at + 1]
        if key & 7 != BYTES or key > SHORT or size > SHORT:
            break
        texts.append((key >> 3, model[at + 2 : at + 2 + size]))
        at += 2 + size
        if key == OPERATOR_TAG:
            return texts
    texts += [(number, model[start:stop]) for number, start, stop in fields(model, at, end)]
    return texts
