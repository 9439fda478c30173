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

import struct
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
DIMS, DATA_TYPE, FLOAT_DATA, CONSTANT_NAME, RAW_DATA = 1, 2, 4, 8, 9
"""Fields of a constant."""
FLOAT = b"\x01"
"""The data type of single precision, as it is written."""
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
CONSTANT_NAME_TAG = _tag(CONSTANT_NAME)
INPUT_TAG, OUTPUT_TAG, NAME_TAG = _tag(INPUT), _tag(OUTPUT), _tag(NAME)
MARK = _field(DOCUMENTATION, TRANSPOSED.encode())
FLAGS = (_flag("transA"), _flag("transB"))
FUSED = _field(OPERATOR, b"FusedMatMul") + _field(DOMAIN, CONTRIBUTED)
OPSET = _field(OPSETS, Message().add(1, CONTRIBUTED).add(2, 1))
SWAPS = frozenset(map(_swap, RANKS))


class Node(NamedTuple):
    """What counts of a node that has the mark."""

    place: int
    name: bytes
    operator: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[bytes]


class Before(NamedTuple):
    """A node whose work a product does when it reads its result."""

    node: Node
    is_turned: bool
    factor: float


def fuse_transposed(outline: Outline, *, with_types: bool = True) -> bytes | None:
    """The model with its marked products put together; None if there is nothing to do.

    Args:
        outline: of the model.
        with_types: whether it goes on saying what it knows of values that are no outputs.
    """
    if len(outline.model) > LONGEST or not outline.nodes:
        return None
    try:
        changes = _changes(outline, list(_marked(outline)))
        begin, end = outline.types if not with_types else (0, 0)
        return _changed(outline, changes, begin, end) if changes or begin < end else None
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


def _changes(outline: Outline, marked: list[Node]) -> dict[int, bytes]:
    """What takes the place of which nodes; nothing for one that nobody reads then."""
    results = outline.outputs()
    products = {n.outputs[0]: n for n in marked if n.operator == b"MatMul" and len(n.inputs) == 2}
    before, after = dict[bytes, Before](), dict[bytes, tuple[Node, float]]()
    for node in marked:
        if node.operator == b"Transpose":
            if len(node.attributes) == 1 and node.attributes[0] in SWAPS:
                before[node.outputs[0]] = Before(node, is_turned=True, factor=1.0)
        elif node.outputs[0] not in products and (factor := _factor(outline, node)):
            if node.inputs[0] in products and node.inputs[0] not in results:
                after[node.inputs[0]] = node, factor
            else:
                before[node.outputs[0]] = Before(node, is_turned=False, factor=factor)
    changes = dict[int, bytes]()
    for output, node in products.items():
        operands = [before.get(name) for name in node.inputs]
        last, factor = after.get(output, (node, 1.0))
        if any(operands) or last is not node:
            changes |= {
                o.node.place: b"" for o in operands if o and o.node.outputs[0] not in results
            }
            changes |= {last.place: b"", node.place: _fused(node, operands, last, factor)}
    return changes


def _factor(outline: Outline, node: Node) -> float | None:
    """What a node multiplies its first operand with: a number that is a constant of the graph."""
    if node.operator not in (b"Mul", b"Div") or len(node.inputs) != 2 or not outline.constants:
        return None
    number = _number(outline, node.inputs[1])
    return number if node.operator == b"Mul" or not number else 1 / number


def _number(outline: Outline, name: bytes) -> float | None:
    """A constant that is one single precision number."""
    model, begins = outline.model, [begin for begin, _ in outline.constants]
    needle = CONSTANT_NAME_TAG + varint(len(name)) + name
    at = model.find(needle, begins[0], outline.constants[-1][1])
    if at < 0:
        return None
    place = outline.constants[bisect_right(begins, at) - 1]
    described = {number: model[begin:end] for number, begin, end in fields(model, *place)}
    data = described.get(RAW_DATA, described.get(FLOAT_DATA, b""))
    fits = described.get(CONSTANT_NAME) == name and described.get(DATA_TYPE) == FLOAT
    return (
        struct.unpack("<f", data)[0] if fits and len(data) == 4 and DIMS not in described else None
    )


def _fused(node: Node, operands: list[Before | None], last: Node, factor: float) -> bytes:
    """One node that does the work of a product, what comes before, and what comes last."""
    parts = list[bytes]()
    for name, operand in zip(node.inputs, operands):
        source = operand.node.inputs[0] if operand else name
        parts += [INPUT_TAG, varint(len(source)), source]
        factor *= operand.factor if operand else 1.0
    parts += [OUTPUT_TAG, varint(len(last.outputs[0])), last.outputs[0]]
    parts += [NAME_TAG, varint(len(node.name)), node.name]
    parts += [flag for operand, flag in zip(operands, FLAGS) if operand and operand.is_turned]
    if factor != 1.0:
        alpha = Message().add(1, "alpha").add_fixed32(2, struct.pack("<f", factor)).add(20, 1)
        parts.append(_field(ATTRIBUTE, alpha))
    return b"".join([*parts, FUSED])


def _changed(outline: Outline, changes: Mapping[int, bytes], first: int, last: int) -> bytes:
    """The model with other nodes in the places of some, and without a part of its graph.

    Empty bytes leave a node out.
    """
    model, (begin, end) = outline.model, outline.graph
    edits = [(first, last, b"")] if first < last else []
    for index, node in changes.items():
        start, stop = outline.nodes[index]
        written = NODE_TAG + varint(len(node)) + node if node else b""
        edits.append((_start(model, NODE_TAG, start, stop), stop, written))
    parts, at, size = [b""], begin, end - begin
    for start, stop, written in sorted(edits):
        parts += [model[at:start], written]
        size += len(written) - (stop - start)
        at = stop
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
