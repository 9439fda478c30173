"""What can be told of a serialized model at a glance, without opening its messages.

Before a session is made somebody wants to know how long a model is and which operators it has.
`Message.parse` takes five milliseconds for a model whose session takes thirty; this takes half of
one.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .wire import BYTES, FIXED32, FIXED64, MAX_FIELDS, VARINT

GRAPH, OPSET, METADATA, FUNCTION = 7, 8, 14, 25
"""Field numbers of a model's parts."""
NODE, INITIALIZER, RESULT, TYPE = 1, 5, 12, 13
"""Field numbers of a graph's nodes, constants, outputs, and of what it says of other values."""
CONSTANT_NAME = 8
"""Field number of an initializer's name."""
INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOCUMENTATION, DOMAIN = 1, 2, 3, 4, 5, 6, 7
"""Field numbers of a node's parts."""
MARKS = b"onnxtrain: "
"""How everything begins that passes say of nodes."""
Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
"""Begin and end of several parts."""
OPERATOR_TEXT = re.compile(rb'"([\x01-\x40])([A-Z]\w*)', re.ASCII)
"""Field 4 of a node, its size, and its text with what may follow it."""


class Node(NamedTuple):
    """What counts of a node that has a mark."""

    place: int
    name: bytes
    operator: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[bytes]
    mark: bytes


@dataclass(frozen=True)
class Outline:
    """Where things are in the bytes of a model.

    Attributes:
        model: the bytes.
        graph: begin and end of the graph.
        nodes: begin and end of each node.
        constants: the same of the initializers of the graph.
        results: the same of its outputs.
        types: where it says what it knows of other values; empty if in several places.
        opsets: the same of the operator sets of the model.
        entries: the same of the metadata.
        has_functions: whether the model brings operators of its own.
    """

    model: bytes
    graph: tuple[int, int]
    nodes: Ranges
    constants: Ranges
    results: Ranges
    types: tuple[int, int]
    opsets: Ranges
    entries: Ranges
    has_functions: bool

    @classmethod
    def of(cls, model: bytes) -> Outline | None:
        """The outline of a model; None if that is damaged."""
        try:
            parts = list(itertools.islice(fields(model, 0, len(model)), MAX_FIELDS))
            _, begin, end = [part for part in parts if part[0] == GRAPH][-1]
            return cls.of_graph(model, begin, end, parts)
        except IndexError:
            return None

    @classmethod
    def of_graph(
        cls, content: bytes, begin: int, end: int, parts: Sequence[tuple[int, int, int]] = ()
    ) -> Outline:
        """The outline of a graph in some bytes; an `IndexError` if that is damaged.

        Args:
            content: the bytes; the outline speaks of places in them.
            begin: where the graph begins.
            end: where it ends.
            parts: the fields of a model that the graph is in.
        """
        inner = list(fields(content, begin, end))
        return cls(
            content,
            (begin, end),
            nodes=_ranges(inner, NODE),
            constants=_ranges(inner, INITIALIZER),
            results=_ranges(inner, RESULT),
            types=_region(inner, TYPE, begin),
            opsets=_ranges(parts, OPSET),
            entries=_ranges(parts, METADATA),
            has_functions=bool(_ranges(parts, FUNCTION)),
        )

    @functools.cached_property
    def node_begins(self) -> list[int]:
        """Where the nodes begin."""
        return [begin for begin, _ in self.nodes]

    @functools.cached_property
    def marked(self) -> tuple[Node, ...]:
        """Nodes of ONNX that say something to us, or in which one does.

        Whoever looks for a mark finds its nodes here: each is read once.
        """
        read = (self.node(place) for place in self.mentioning(MARKS))
        return tuple([node for node in read if node is not None])

    def mentioning(self, text: bytes) -> Iterator[int]:
        """Places of the nodes that have a text anywhere in them."""
        if not self.nodes:
            return
        model, begins = self.model, self.node_begins
        at, end = begins[0], self.nodes[-1][1]
        while (at := model.find(text, at, end)) >= 0:
            index = bisect_right(begins, at) - 1
            place, at = at, max(at + len(text), self.nodes[index][1])
            if place < self.nodes[index][1]:  # else it stands between nodes
                yield index

    def text_of(self, place: int) -> bytes:
        """The bytes of a node."""
        return self.model[slice(*self.nodes[place])]

    def node(self, place: int) -> Node | None:
        """A node; None if it is not ONNX's own. An `IndexError` if it is damaged."""
        model, (at, end) = self.model, self.nodes[place]
        name = operator = mark = b""
        inputs, outputs, attributes = list[bytes](), list[bytes](), list[bytes]()
        for number, begin, stop in fields(model, at, end):
            if number == INPUT:
                inputs.append(model[begin:stop])
            elif number == OUTPUT:
                outputs.append(model[begin:stop])
            elif number == ATTRIBUTE:
                attributes.append(model[begin:stop])
            elif number == OPERATOR:
                operator = model[begin:stop]
            elif number == NAME:
                name = model[begin:stop]
            elif number == DOCUMENTATION:
                mark = model[begin:stop]
            elif number == DOMAIN and stop > begin:
                return None
        return Node(place, name, operator, inputs, outputs, attributes, mark)

    @functools.cached_property
    def constant_of_name(self) -> dict[bytes, tuple[int, int]]:
        """Begin and end of each initializer by its name; an `IndexError` if one is damaged."""
        places = dict[bytes, tuple[int, int]]()
        for place in self.constants:
            for number, begin, end in fields(self.model, *place):
                if number == CONSTANT_NAME:
                    places[self.model[begin:end]] = place
                    break
        return places

    def operators(self) -> set[str]:
        """The operators of all nodes, those of inner graphs included.

        A text that only looks like an operator may be among them.
        """
        if not self.nodes:
            return set()
        pairs = set(OPERATOR_TEXT.findall(self.model, self.nodes[0][0], self.nodes[-1][1]))
        return {text[: size[0]].decode() for size, text in pairs}

    def outputs(self) -> set[bytes]:
        """Names of the outputs of the graph; an `IndexError` if one is damaged."""
        described = (f for begin, end in self.results for f in fields(self.model, begin, end))
        return {self.model[begin:end] for number, begin, end in described if number == 1}

    def mentions(self, text: bytes) -> bool:
        """Whether a text occurs among the nodes."""
        begin, end = (self.nodes[0][0], self.nodes[-1][1]) if self.nodes else (0, 0)
        return self.model.find(text, begin, end) >= 0

    def domains(self) -> set[bytes]:
        """Where the operators of the model come from; an `IndexError` if one is damaged."""
        described = [dict(self._described(place)) for place in self.opsets]
        return {texts.get(1, b"") for texts in described}

    def has_constant_of(self, element_type: int) -> bool:
        """Whether an initializer has such elements; an `IndexError` if one is damaged."""
        needle = bytes([element_type])
        described = (field for place in self.constants for field in self._described(place))
        return any(number == 2 and value == needle for number, value in described)

    def _described(self, place: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        """Numbers and contents of the fields of a message."""
        for number, begin, end in fields(self.model, *place):
            yield number, self.model[begin:end]

    def metadata(self, key: str) -> str:
        """What the model says of itself under a key; nothing if it does not."""
        for begin, end in self.entries:
            try:
                texts = dict(self._described((begin, end)))
            except IndexError:
                return ""
            if texts.get(1) == key.encode():
                return texts.get(2, b"").decode(errors="replace")
        return ""


def _ranges(parts: Sequence[tuple[int, int, int]], number: int) -> Ranges:
    """Begin and end of each field with this number."""
    return tuple([(begin, end) for field, begin, end in parts if field == number])


def _region(parts: list[tuple[int, int, int]], number: int, begin: int) -> tuple[int, int]:
    """Where the fields with this number are, with their heads, if nothing is between them."""
    numbers = [field for field, _, _ in parts]
    count = numbers.count(number)
    first = numbers.index(number) if count else 0
    if not count or numbers[first + count - 1] != number:
        return begin, begin
    return (parts[first - 1][2] if first else begin), parts[first + count - 1][2]


def fields(data: bytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field of a message; an `IndexError` if it is damaged."""
    while at < end:
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _rest(key, data, at)
        kind = key & 7
        if kind == BYTES:
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = _rest(size, data, at)
        elif kind == VARINT:
            begin = at
            while data[at] > 0x7F:
                at += 1
            size, at = at + 1 - begin, begin
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise IndexError("an unknown kind of field")
        yield key >> 3, at, at + size
        at += size
    if at > end:
        raise IndexError("a field goes beyond its message")


def _rest(first: int, data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number of several bytes, of which the first has been read."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
