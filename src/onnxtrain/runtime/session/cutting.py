"""A model as consecutive pieces: which nodes each has, and what goes from one to the other.

Values that a later piece reads are passed on as they are, without a copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ModelFileError
from ...operators import IDLE_OPTIMIZERS, RANDOM
from ..files.onnxfile import ModelFile, Node, may_have_graph, tensor_type, uses
from ..files.outline import ATTRIBUTE, INPUT, OPERATOR, OUTPUT, Outline, fields
from ..files.wire import Message, Value, text_of

OWN = ".own"
"""Ending of a copy: a gradient that a later piece reads has left for the other ranks by then."""

ELEMENTS = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "string": 8, "bool": 9, "float16": 10, "double": 11, "uint32": 12, "uint64": 13,
    "bfloat16": 16, "float8e4m3fn": 17, "float8e5m2": 19,
}  # fmt: skip
"""onnxruntime's names of element types → ONNX numbers."""

MANY_NODES = 12_000
"""A longer model is cut into pieces: the time to create a session grows faster than its nodes."""

NODES_OF_A_PIECE = 1_000
"""Of NASNet's 12,500 nodes: 0.93 s to make the sessions, 1.16 with 2,500 nodes in a piece, 1.46 as
one; steps take as long (39 to 41 ms)."""


def is_long(model: ModelFile) -> bool:
    """Whether sessions of pieces are there sooner than one of the whole model."""
    return sum(number == 1 for number, _, _ in model.graph.fields) > MANY_NODES


def output_names(model: ModelFile) -> list[str]:
    """Names of the outputs, which are not opened: each piece writes them as they are."""
    return [_name_in(value, 1) for value in model.graph.values(12)]


def may_be_long(outline: Outline | None) -> bool:
    """The same of a serialized model; also if it is damaged."""
    return outline is None or len(outline.nodes) > MANY_NODES


@dataclass(frozen=True)
class Piece:
    """Some nodes of a model, by index, and what goes in and out of them."""

    nodes: frozenset[int]
    gradients: tuple[str, ...]
    """Gradients, or what else is not needed early, that this piece computes."""
    results: tuple[str, ...]
    """Other outputs of the whole model that it computes."""
    takes: tuple[str, ...]
    """Values of earlier pieces that it reads."""
    gives: tuple[str, ...]
    """Values that later pieces read."""


def cut(
    model: ModelFile, results: Sequence[str], gradients: Mapping[str, int], limit: float
) -> list[Piece]:
    """Cut a graph so that its gradients become complete in buckets of about equal size.

    There are fewer pieces than buckets if gradients come together.

    Args:
        model: the training model; gradients are outputs of nodes.
        results: outputs to be computed by the first piece: loss, running statistics.
        gradients: the values that are gradients, and their bytes.
        limit: bytes per bucket; a single gradient may have more.
    """
    graph = _Graph(model, results)
    total = sum(gradients.values())
    count = max(1, math.ceil(total / limit))
    rank = {index: at for at, index in enumerate(graph.order)}
    order_of = {g: rank.get(graph.maker[g], 0) for g in gradients}
    ends: dict[int, int] = {}
    at = 0.0
    for name in sorted(gradients, key=order_of.__getitem__):
        bucket = min(int((at + gradients[name] / 2) * count / total), count - 1) if total else 0
        ends[bucket] = order_of[name] + 1
        at += gradients[name]
    stops = [stop for stop in ends.values() if stop > graph.first]
    return graph.pieces([0, *stops[:-1], len(graph.order)], results, list(gradients))


def cut_by_nodes(
    model: ModelFile,
    results: Sequence[str],
    gradients: Sequence[str],
    most: int,
    nodes: Sequence[ReadNode] | None = None,
) -> list[Piece]:
    """Cut a graph into pieces of at most so many nodes.

    onnxruntime creates a session in a time that grows faster than the number of nodes; ten sessions
    of a tenth each are there sooner. Whoever has read the `nodes` already passes them on.
    """
    graph = _Graph(model, results, nodes)
    count = len(graph.order)
    return graph.pieces([*range(0, count, most), count], results, gradients)


class ReadNode(NamedTuple):
    """What a cut needs to know of a node.

    Attributes:
        content: the node, in bytes if nobody has opened it: most nodes are copied, not changed.
        op_type: the operator.
        outputs: names.
        reads: names of its inputs, and of what its graphs take from outside.
        has_graphs: whether it has branches or a body.
    """

    content: Value
    op_type: str
    outputs: list[str]
    reads: set[str]
    has_graphs: bool


def read_nodes(model: ModelFile) -> list[ReadNode]:
    """The nodes of a graph, none of which is opened in its file."""
    return [_read_node(content) for content in model.graph.values(1)]


def _read_node(content: Value) -> ReadNode:
    """A glance at the bytes of a node; one that is open, or has graphs, is looked into."""
    read = _glance(content) if isinstance(content, bytes) else None
    if read is not None:
        return read
    node = Node(_opened(content))
    return ReadNode(content, node.op_type, node.outputs, uses(node), bool(node.subgraphs()))


def _glance(content: bytes) -> ReadNode | None:
    """What a node without graphs says; None if it may have some, or is damaged."""
    inputs, outputs, operator = list[str](), list[str](), ""
    try:
        for number, begin, end in fields(content, 0, len(content)):
            if number == INPUT:
                inputs.append(text_of(content[begin:end]))
            elif number == OUTPUT:
                outputs.append(text_of(content[begin:end]))
            elif number == OPERATOR:
                operator = text_of(content[begin:end])
            elif number == ATTRIBUTE and may_have_graph(content[begin:end]):
                return None
    except IndexError:
        return None
    reads = set(inputs)
    reads.discard("")
    return ReadNode(content, operator, outputs, reads, has_graphs=False)


def _opened(content: Value) -> Message:
    """A message to be read only: what it is opened from stays as it is."""
    if isinstance(content, Message):
        return content
    if not isinstance(content, bytes | memoryview):
        raise ModelFileError("damaged protobuf data: a message was expected")
    return Message.parse(content)


def _constant_names(graph: Message) -> set[str]:
    """Names of the constants, none of which is opened: it would be written field by field."""
    sparse = (message.message(1) for message in graph.messages(15))
    return {*_by_name(graph, 5, 8), *(values.string(8) for values in sparse if values is not None)}


def _by_name(graph: Message, number: int, name: int = 1) -> dict[str, Value]:
    """Messages of a graph, as they are, by the text in one of their fields."""
    return {_name_in(content, name): content for content in graph.values(number)}


def _name_in(content: Value, number: int) -> str:
    if isinstance(content, Message):
        return content.string(number)
    if not isinstance(content, bytes | memoryview):
        raise ModelFileError("damaged protobuf data: a message was expected")
    place = None
    try:
        for field, begin, end in fields(content, 0, len(content)):
            if field == number:
                place = begin, end
    except IndexError:
        raise ModelFileError("damaged protobuf data: a message ends too early") from None
    return "" if place is None else text_of(content[slice(*place)])


class _Graph:
    """Who makes what and who reads it, by index of the node, and an order to run the nodes in.

    Attributes:
        order: results first, then what nobody reads, that next to the inputs first, each with all
            it needs before it: as onnxruntime runs them (ADR 8). Constants are left out.
        first: how many nodes the results need.
    """

    def __init__(
        self,
        model: ModelFile,
        results: Sequence[str],
        nodes: Sequence[ReadNode] | None = None,
    ) -> None:
        self.nodes = read_nodes(model) if nodes is None else nodes
        self.maker = {n: i for i, node in enumerate(self.nodes) for n in node.outputs if n}
        self.reads = [node.reads for node in self.nodes]
        self.fixed = self._constants(_constant_names(model.graph))
        self.order: list[int] = []
        seen = set(self.fixed)
        for name in results:
            self._visit(self.maker.get(name, -1), seen)
        self.first = len(self.order)
        for index in self._last():
            self._visit(index, seen)

    def _sources(self, index: int) -> list[int]:
        """Nodes whose results a node reads."""
        return [self.maker[n] for n in self.reads[index] if n in self.maker]

    def _last(self) -> list[int]:
        """Nodes that nobody reads, by the longest way to them."""
        depth, read = list[int](), set[int]()
        for index in range(len(self.nodes)):
            sources = self._sources(index)
            depth.append(1 + max((depth[i] for i in sources), default=0))
            read.update(sources)
        return sorted(set(range(len(depth))) - read, key=lambda i: (depth[i], i))

    def _visit(self, index: int, seen: set[int]) -> None:
        """Append a node, after all it needs; of those the last in the file goes first."""
        waiting = [(index, False)] if index >= 0 else []
        while waiting:
            index, complete = waiting.pop()
            if complete:
                self.order.append(index)
            elif index not in seen:
                seen.add(index)
                waiting.append((index, True))
                waiting.extend((i, False) for i in sorted(self._sources(index)))

    def pieces(
        self, stops: Sequence[int], results: Sequence[str], gradients: Sequence[str]
    ) -> list[Piece]:
        """The order cut at these places, and what goes from one piece to the other."""
        parts = [frozenset(self.order[a:b]) for a, b in itertools.pairwise(stops)]
        piece_of = {i: p for p, part in enumerate(parts) for i in part}

        def takes(p: int) -> set[str]:
            read = set().union(*(self.reads[i] for i in parts[p])) & self.maker.keys()
            return {n for n in read if piece_of.get(self.maker[n], p) != p}

        def produced_by(names: Iterable[str], p: int) -> tuple[str, ...]:
            return tuple(n for n in names if piece_of.get(self.maker.get(n, -1), 0) == p)

        inputs = [tuple(sorted(takes(p))) for p in range(len(parts))]
        passed = sorted(set().union(*inputs))
        return [
            Piece(
                part | self.fixed,
                produced_by(gradients, p),
                produced_by(results, p),
                inputs[p],
                produced_by(passed, p),
            )
            for p, part in enumerate(parts)
        ]

    def _constants(self, values: set[str]) -> frozenset[int]:
        """Nodes that give the same in every run: each piece has its own, for ORT to fold."""
        constant: set[int] = set()
        for i, node in enumerate(self.nodes):
            known = all(n in values or self.maker.get(n, -1) in constant for n in self.reads[i])
            drawn = node.op_type in RANDOM or (not self.reads[i] and node.op_type != "Constant")
            if known and not drawn and not node.has_graphs:
                constant.add(i)
        return frozenset(constant)


class Template:
    """A model from which pieces are made; it is read once, however many there are.

    Args:
        model: the whole.
        own: outputs of which a piece also makes a copy, ``<name>.own``, if later pieces read them.
        nodes: its nodes, if somebody has read them already.
    """

    def __init__(
        self,
        model: ModelFile,
        own: Collection[str] = (),
        nodes: Sequence[ReadNode] | None = None,
    ) -> None:
        graph = model.graph
        self._own = frozenset(own)
        self.nodes = read_nodes(model) if nodes is None else nodes
        self.reads = [node.reads for node in self.nodes]
        self._model, self._graph = _fields_but(model.message, {7}), _fields_but(graph, CONTENTS)
        self._bare = [f for f in self._model if f[0] != METADATA or _is_of_optimizers(f[2])]
        self._inputs = _by_name(graph, 11)
        self._outputs, self._values = _by_name(graph, 12), _by_name(graph, 13)
        self._constants = {name: (5, tensor) for name, tensor in _by_name(graph, 5, 8).items()}
        for sparse in graph.messages(15):
            self._constants[(sparse.message(1) or sparse).string(8)] = (15, sparse)

    def _type(self, name: str) -> Value | None:
        """The type of a value, as far as the model tells."""
        for described in (self._inputs, self._outputs, self._values):
            kinds = _opened(described[name]).values(TYPE) if name in described else []
            if kinds:
                return kinds[-1]
        return None

    def piece(self, piece: Piece, types: Mapping[str, Message]) -> bytes:
        """The model of one piece, with types of what earlier pieces gave."""
        chosen = sorted(piece.nodes)
        copied = {f"{g}{OWN}": g for g in piece.gradients if g in self._own and g in piece.gives}
        names = list(dict.fromkeys([*piece.results, *piece.gradients, *copied, *piece.gives]))
        chosen = self._needed(chosen, {*names, *copied.values()})
        read = set(names).union(*(self.reads[i] for i in chosen))
        graph = Message(list(self._graph))
        for i in chosen:
            graph.add(1, self.nodes[i].content)
        for own, gradient in copied.items():
            graph.add(1, Message().add(1, gradient).add(2, own).add(4, "Identity"))
        for name in read & self._constants.keys():
            graph.add(*self._constants[name])
        for name, info in self._inputs.items():
            if name in read:
                graph.add(11, info)
        for name in piece.takes:
            graph.add(11, Message().add(1, name).add(2, types[name]))
        for name in names:
            kind = self._type(copied.get(name, name))
            output = Message().add(1, name)
            graph.add(12, output if kind is None else output.add(2, kind))
        inner = {o for i in chosen for o in self.nodes[i].outputs} - set(names)
        for name in sorted(inner & self._values.keys()):
            graph.add(13, self._values[name])
        for name in sorted(inner & self._outputs.keys()):
            graph.add(13, self._outputs[name])
        fields = self._bare if piece.takes else self._model
        return Message([*fields, (7, 2, graph)]).encode()

    def _needed(self, chosen: Sequence[int], names: set[str]) -> list[int]:
        """Those nodes that something depends on."""
        live, needed = list[int](), set(names)
        for i in reversed(chosen):
            if not needed.isdisjoint(self.nodes[i].outputs):
                live.append(i)
                needed |= self.reads[i]
        return live[::-1]


METADATA = 14
"""Field of a model: what it says about itself, which may be long. Only the first piece says it, but
for what there is no use for: that goes for every piece."""

KEY = 1
"""Field of an entry of the metadata."""

TYPE = 2
"""Field of what describes a value."""

CONTENTS = {1, 5, 11, 12, 13, 15}
"""Fields of a graph: nodes, constants, inputs, outputs, types of values, sparse constants."""


def _fields_but(message: Message, numbers: set[int]) -> list[Any]:
    return [f for f in message.fields if f[0] not in numbers]


def _is_of_optimizers(entry: Value) -> bool:
    """Whether an entry of the metadata says which optimizers have nothing to do."""
    return _name_in(entry, KEY) == IDLE_OPTIMIZERS


def type_proto(text: str, shape: Sequence[Any]) -> Message:
    """A TypeProto from what onnxruntime tells of a value, such as ``tensor(float)``.

    An empty shape is a scalar or an unknown one, and is left open.
    """
    kind, _, inner = text[:-1].partition("(")
    if kind == "tensor" and inner in ELEMENTS:
        return tensor_type(ELEMENTS[inner], list(shape) or None)
    if kind in {"seq", "optional"}:
        return Message().add(4 if kind == "seq" else 9, Message().add(1, type_proto(inner, [])))
    raise ModelFileError(f"A value of type {text!r} cannot be passed on.")
