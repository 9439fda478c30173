"""Products that read transposed operands become one node each before onnxruntime sees the model.

A model of standard operators has a Transpose before such a product. onnxruntime puts the two
together (its operator `FusedMatMul`) while it makes a session, and then infers all shapes and looks
through all optimizers once more: a fifth of the time that a session takes. What it would write is
written here instead, into the bytes of the model. `passes/transposed.py` has marked the nodes, so
that one search through the bytes finds them and only those are read.

A model that was changed since then may read a transposed operand elsewhere. onnxruntime refuses it
then, and gets the model as it was (`devices.create_session`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...errors import ModelFileError
from ...operators import TRANSPOSED
from ..files.outline import GRAPH, NODE, Outline, fields
from ..files.wire import BYTES, Message, varint

LONGEST = 2**26
"""Bytes of a model above which it is left alone: its weights would be in memory twice."""

INPUT, OUTPUT, NAME, OPERATOR, ATTRIBUTE, DOCUMENTATION, DOMAIN = 1, 2, 3, 4, 5, 6, 7
"""Fields of a node."""
OPSETS = 8
"""A field of a model."""
CONTRIBUTED = b"com.microsoft"
RANKS = range(2, 9)


def _tag(number: int) -> bytes:
    return bytes([number << 3 | BYTES])


def _field(number: int, content: Message | bytes) -> bytes:
    return Message().add(number, content).encode()


def _flag(name: str) -> bytes:
    """An attribute that is the integer 1."""
    return _field(ATTRIBUTE, Message().add(1, name).add(3, 1).add(20, 2))


def _swap(rank: int) -> bytes:
    """The attribute of a Transpose that swaps the last two axes, without its head."""
    attribute = Message().add(1, "perm")
    for axis in (*range(rank - 2), rank - 1, rank - 2):
        attribute.add(8, axis)
    return attribute.add(20, 7).encode()


GRAPH_TAG, NODE_TAG = _tag(GRAPH), _tag(NODE)
INPUT_TAG, OUTPUT_TAG, NAME_TAG = _tag(INPUT), _tag(OUTPUT), _tag(NAME)
MARK = _field(DOCUMENTATION, TRANSPOSED.encode())
FLAGS = (_flag("transA"), _flag("transB"))
FUSED = _field(OPERATOR, b"FusedMatMul") + _field(DOMAIN, CONTRIBUTED)
OPSET = _field(OPSETS, Message().add(1, CONTRIBUTED).add(2, 1))
SWAPS = frozenset(map(_swap, RANKS))


class Node(NamedTuple):
    """What counts of a node that has the mark."""

    index: int
    name: bytes
    operator: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[bytes]


def fuse_transposed(outline: Outline) -> bytes | None:
    """The model with its marked products put together; None if there is nothing to do."""
    if len(outline.model) > LONGEST or not outline.nodes:
        return None
    try:
        changes = _changes(list(_marked(outline)), outline.outputs())
        return _with_nodes(outline, changes) if changes else None
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def _marked(outline: Outline) -> Iterator[Node]:
    """Nodes that have the mark; not those inside of other nodes."""
    model, begins = outline.model, [begin for begin, _ in outline.nodes]
    at, end = begins[0], outline.nodes[-1][1]
    while (at := model.find(MARK, at, end)) >= 0:
        index = bisect_right(begins, at) - 1
        at = outline.nodes[index][1]
        node = _read(outline, index)
        if node is not None:
            yield node


def _read(outline: Outline, index: int) -> Node | None:
    """A node; None if it is not ONNX's own or only has the mark somewhere inside."""
    node, is_marked = Node(index, b"", b"", [], [], []), False
    lists = {INPUT: node.inputs, OUTPUT: node.outputs, ATTRIBUTE: node.attributes}
    name = operator = b""
    for number, begin, end in fields(outline.model, *outline.nodes[index]):
        value = outline.model[begin:end]
        if number in lists:
            lists[number].append(value)
        elif number == NAME:
            name = value
        elif number == OPERATOR:
            operator = value
        elif number == DOMAIN and value:
            return None
        is_marked |= number == DOCUMENTATION
    return node._replace(name=name, operator=operator) if is_marked else None


def _changes(marked: list[Node], results: set[bytes]) -> dict[int, bytes]:
    """What takes the place of which nodes; nothing for a transposition that nobody reads then."""
    turned = {
        node.outputs[0]: node
        for node in marked
        if node.operator == b"Transpose" and len(node.attributes) == 1
        and node.attributes[0] in SWAPS
    }  # fmt: skip
    changes = dict[int, bytes]()
    for node in marked:
        operands = [name for name in node.inputs if name in turned]
        if node.operator == b"MatMul" and len(node.inputs) == 2 and operands:
            changes[node.index] = _fused(node, turned)
            changes |= {turned[n].index: b"" for n in operands if n not in results}
    return changes


def _fused(node: Node, turned: Mapping[bytes, Node]) -> bytes:
    sources = [turned[name].inputs[0] if name in turned else name for name in node.inputs]
    parts = [INPUT_TAG + varint(len(name)) + name for name in sources]
    parts += [OUTPUT_TAG, varint(len(node.outputs[0])), node.outputs[0]]
    parts += [NAME_TAG, varint(len(node.name)), node.name]
    parts += [flag for name, flag in zip(node.inputs, FLAGS) if name in turned]
    return b"".join([*parts, FUSED])


def _with_nodes(outline: Outline, changes: Mapping[int, bytes]) -> bytes:
    """The model with other nodes in the places of some; empty bytes leave a node out."""
    model, (begin, end) = outline.model, outline.graph
    parts, at, size = [b""], begin, end - begin
    for index in sorted(changes):
        first, last = outline.nodes[index]
        start = _start(model, NODE_TAG, first, last)
        node = changes[index]
        piece = NODE_TAG + varint(len(node)) + node if node else b""
        parts += [model[at:start], piece]
        size += len(piece) - (last - start)
        at = last
    parts[0] = model[: _start(model, GRAPH_TAG, begin, end)] + GRAPH_TAG + varint(size)
    parts += [model[at:]]
    if not any(CONTRIBUTED in model[i:j] for i, j in outline.opsets):
        parts.append(OPSET)
    return b"".join(parts)


def _start(model: bytes, tag: bytes, begin: int, end: int) -> int:
    """Where the head of a field is whose content begins and ends there."""
    head = tag + varint(end - begin)
    if model[begin - len(head) : begin] != head:
        raise ModelFileError("a length is written in more bytes than it needs")
    return begin - len(head)
