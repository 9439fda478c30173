"""Other nodes in the places of marked ones, in the bytes of a model.

A pass has marked nodes by their documentation. A search through the bytes finds them, and only they
are read: opening every message of a model would take as long as a third of its session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ...errors import ModelFileError
from ..files.onnxfile import MAX_NESTING
from ..files.outline import (
    ATTRIBUTE,
    CONSTANT_NAME,
    GRAPH,
    INITIALIZER,
    INPUT,
    NAME,
    NODE,
    OPERATOR,
    OUTPUT,
    Node,
    Outline,
    fields,
)
from ..files.wire import BYTES, Chunk, Message, varint

LONGEST = 2**26
"""Bytes of a model above which it is left alone: its weights would be in memory twice."""
BODY, BODIES = 6, 11
"""Fields of an attribute that are a graph, and graphs."""
INPUT_OF_GRAPH, OUTPUT_OF_GRAPH = 11, 12
VALUE_NAME = 1
"""The field with the name of an input or output of a graph."""
OPSETS = 8
"""A field of a model."""
WITH_BODIES = (b"If", b"Loop", b"Scan", b"SequenceMap")
"""Operators whose inner graphs may read any value."""


@functools.cache
def tag(number: int) -> bytes:
    """What a field of bytes begins with."""
    return bytes([number << 3 | BYTES])


def field(number: int, content: Message | bytes) -> bytes:
    """A field of bytes."""
    written = content.encode() if isinstance(content, Message) else content
    return tag(number) + varint(len(written)) + written


GRAPH_TAG, NODE_TAG, ATTRIBUTE_TAG, BODY_TAG = tag(GRAPH), tag(NODE), tag(ATTRIBUTE), tag(BODY)
INPUT_TAG, OUTPUT_TAG, OPERATOR_TAG = tag(INPUT)[0], tag(OUTPUT)[0], tag(OPERATOR)[0]
HEAD_TAGS = frozenset({INPUT_TAG, OUTPUT_TAG, tag(NAME)[0], OPERATOR_TAG})
"""Fields that come first in a node."""
SHORT = 0x7F
"""The largest number that is written in one byte."""


def marked(outline: Outline, mark: str) -> list[Node]:
    """Nodes whose documentation begins with a mark; not those inside of other nodes."""
    needle = mark.encode()
    return [node for node in outline.marked if node.mark.startswith(needle)]


def marked_inside_too(outline: Outline, mark: str) -> list[Node]:
    """The same, and nodes that have bodies in which the mark occurs."""
    needle = mark.encode()

    def has_mark(node: Node) -> bool:
        is_inside = node.operator in WITH_BODIES and needle in outline.text_of(node.place)
        return is_inside or node.mark.startswith(needle)

    return [node for node in outline.marked if has_mark(node)]


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
    parts, size = _graph_parts(outline, changes, constants, without)
    before = model[: _start(model, GRAPH_TAG, begin, end)] + GRAPH_TAG + varint(size)
    known = outline.domains()
    new = [Message().add(1, domain).add(2, 1) for domain in domains if domain not in known]
    opsets = [field(OPSETS, message) for message in new]
    return b"".join([before, *parts, memoryview(model)[end:], *opsets])


def _graph_parts(
    outline: Outline,
    changes: Mapping[int, Sequence[bytes]],
    constants: Iterable[bytes] = (),
    without: tuple[int, int] = (0, 0),
) -> tuple[list[Chunk], int]:
    """What a changed graph is made of, and how many bytes it has; see `changed`."""
    model, (begin, end) = outline.model, outline.graph
    edits = [(*without, b"")] if without[0] < without[1] else []
    for index, nodes in changes.items():
        start, stop = outline.nodes[index]
        written = b"".join([NODE_TAG + varint(len(node)) + node for node in nodes])
        edits.append((_start(model, NODE_TAG, start, stop), stop, written))
    more = b"".join([field(INITIALIZER, constant) for constant in constants])
    view = memoryview(model)  # slices of bytes would be copies, as long as the weights
    parts, at = list[Chunk](), begin
    for start, stop, written in sorted(edits):
        parts += [view[at:start], written]
        at = stop
    parts += [view[at:end], more]
    return parts, sum(map(len, parts))


Change: TypeAlias = "Callable[[Outline], Mapping[int, Sequence[bytes]]]"
"""What takes the places of which nodes of a graph."""


def with_bodies(content: bytes, change: Change) -> bytes | None:
    """A node whose bodies are changed, each outlined alone; None if nothing changes in any."""
    edits = list[tuple[int, int, bytes]]()
    for number, begin, end in fields(content, 0, len(content)):
        bodies = fields(content, begin, end) if number == ATTRIBUTE else ()
        for inner, start, stop in bodies:
            outline = Outline.of_graph(content, start, stop) if inner == BODY else None
            changes = change(outline) if outline is not None and outline.nodes else {}
            if outline is not None and changes:
                parts, size = _graph_parts(outline, changes)
                before = content[begin : _start(content, BODY_TAG, start, stop)]
                parts = [before, BODY_TAG, varint(size), *parts, content[stop:end]]
                written = ATTRIBUTE_TAG + varint(sum(map(len, parts))) + b"".join(parts)
                edits.append((_start(content, ATTRIBUTE_TAG, begin, end), end, written))
                break  # an attribute has one body
    parts, at = list[Chunk](), 0
    for start, stop, written in edits:
        parts += [content[at:start], written]
        at = stop
    return b"".join([*parts, content[at:]]) if edits else None


def _start(model: bytes, head_tag: bytes, begin: int, end: int) -> int:
    """Where the head of a field is whose content begins and ends there."""
    head = head_tag + varint(end - begin)
    if model[begin - len(head) : begin] != head:
        raise ModelFileError("a length is written in more bytes than it needs")
    return begin - len(head)


Connections: TypeAlias = (
    "tuple[list[tuple[list[bytes], list[bytes]]], dict[bytes, int], dict[bytes, int]]"
)
"""Operands and results of each node, who makes each value, and how often it is read."""


class Rewritten(NamedTuple):
    """What the first of several who change one model leaves to the next.

    Attributes:
        changes: what stands in the places of which nodes.
        constants: initializers that the new nodes read.
        domains: of their operators.
        read: names that they read.
        connections: of the model without the nodes that are gone; none if nobody has looked.
    """

    changes: Mapping[int, Sequence[bytes]] = MappingProxyType({})
    constants: Sequence[bytes] = ()
    domains: Sequence[bytes] = ()
    read: Collection[bytes] = frozenset()
    connections: Connections | None = None


NOTHING = Rewritten()


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


def connections_of(outline: Outline) -> Connections:
    """How the nodes of a model hang together; an `IndexError` if one is damaged."""
    model, operands = outline.model, list[tuple[list[bytes], list[bytes]]]()
    makers, readers = dict[bytes, int](), dict[bytes, int]()
    for index, (begin, end) in enumerate(outline.nodes):
        inputs, outputs, operator = _head_of(model, begin, end)
        if operator in WITH_BODIES:
            inputs += _captured_by(model, begin, end)
        operands.append((inputs, outputs))
        for name in inputs:
            readers[name] = readers.get(name, 0) + 1
        for name in outputs:
            makers[name] = index
    return operands, makers, readers


def _captured_by(model: bytes, begin: int, end: int, depth: int = 0) -> list[bytes]:
    """What the bodies of a node read from outside; a name as often as there are bodies that do."""
    return [name for body in _bodies(model, begin, end) for name in _captured(model, *body, depth)]


def _head_of(model: bytes, begin: int, end: int) -> tuple[list[bytes], list[bytes], bytes]:
    """Inputs, outputs and operator of a node.

    Usually names come first, each behind one byte of a tag and one of its length. `fields` would
    take three times as long, and this looks at all nodes of a model.
    """
    inputs, outputs, operator, at = list[bytes](), list[bytes](), b"", begin
    while at + 1 < end:
        key, size = model[at], model[at + 1]
        if size > SHORT or key not in HEAD_TAGS:
            break
        at += 2 + size
        if key == INPUT_TAG:
            inputs.append(model[at - size : at])
        elif key == OUTPUT_TAG:
            outputs.append(model[at - size : at])
        elif key == OPERATOR_TAG:
            operator = model[at - size : at]
            if outputs:
                return inputs, outputs, operator  # what follows is not names
    for number, start, stop in fields(model, at, end):
        if number == OPERATOR:
            operator = model[start:stop]
        elif number in (INPUT, OUTPUT):
            (inputs if number == INPUT else outputs).append(model[start:stop])
    return inputs, outputs, operator


def _bodies(model: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the graphs of a node begin and end."""
    for number, start, stop in fields(model, begin, end):
        if number == ATTRIBUTE:
            for inner, *place in fields(model, start, stop):
                if inner in (BODY, BODIES):
                    yield place[0], place[1]


def _captured(model: bytes, begin: int, end: int, depth: int) -> set[bytes]:
    """What a body reads from the graphs around it; `onnxfile.captures` without opening it."""
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    inside, read = {b""}, set[bytes]()
    for number, start, stop in fields(model, begin, end):
        if number == NODE:
            inputs, outputs, operator = _head_of(model, start, stop)
            read.update(inputs)
            inside.update(outputs)
            if operator in WITH_BODIES:
                read.update(_captured_by(model, start, stop, depth + 1))
        elif number == INITIALIZER:
            inside.add(_text_of(model, start, stop, CONSTANT_NAME))
        elif number == INPUT_OF_GRAPH:
            inside.add(_text_of(model, start, stop, VALUE_NAME))
        elif number == OUTPUT_OF_GRAPH:
            read.add(_text_of(model, start, stop, VALUE_NAME))
    return read - inside


def _text_of(model: bytes, begin: int, end: int, number: int) -> bytes:
    """The text of one field of a message."""
    texts = (model[start:stop] for n, start, stop in fields(model, begin, end) if n == number)
    return next(texts, b"")
