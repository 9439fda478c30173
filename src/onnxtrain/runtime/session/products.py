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
from collections.abc import Container
from typing import NamedTuple

from ...errors import ModelFileError
from ...operators import TRANSPOSED
from ..files.outline import ATTRIBUTE, DOMAIN, INPUT, NAME, OPERATOR, OUTPUT, Node, Outline, fields
from ..files.wire import Message, varint
from .edits import LONGEST, changed, field, marked, tag
from .layers import activated_layers

DIMS, DATA_TYPE, FLOAT_DATA, CONSTANT_NAME, RAW_DATA = 1, 2, 4, 8, 9
"""Fields of a constant."""
FLOAT = b"\x01"
"""The data type of single precision, as it is written."""
CONTRIBUTED = b"com.microsoft"
RANKS = range(2, 9)


def _flag(name: str) -> bytes:
    """An attribute that is the integer 1."""
    return field(ATTRIBUTE, Message().add(1, name).add(3, 1).add(20, 2))


def _swap(rank: int) -> bytes:
    """The attribute of a Transpose that swaps the last two axes, without its head."""
    attribute = Message().add(1, "perm")
    for axis in (*range(rank - 2), rank - 1, rank - 2):
        attribute.add(8, axis)
    return attribute.add(20, 7).encode()


INPUT_TAG, OUTPUT_TAG, NAME_TAG = tag(INPUT), tag(OUTPUT), tag(NAME)
FLAGS = (_flag("transA"), _flag("transB"))
FUSED = field(OPERATOR, b"FusedMatMul") + field(DOMAIN, CONTRIBUTED)
SWAPS = frozenset(map(_swap, RANKS))


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
    changes, without = fused_products(outline), outline.types if not with_types else (0, 0)
    if not changes and (without[0] == without[1] or not may_be_changed(outline)):
        return None
    try:
        return changed(outline, changes, CONTRIBUTED, without=without)
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def may_be_changed(outline: Outline) -> bool:
    """Whether a model has nodes, and is not too long to be in memory twice."""
    return len(outline.model) <= LONGEST and bool(outline.nodes)


def fused_products(outline: Outline, taken: Container[int] = ()) -> dict[int, list[bytes]]:
    """What stands in the places of marked products, and of what comes before and behind them.

    Layers with an activation behind them are such, too (`layers.py`). Nodes at places that are
    `taken` are none.
    """
    if not may_be_changed(outline):
        return {}
    try:
        products = [node for node in marked(outline, TRANSPOSED) if node.place not in taken]
        return _changes(outline, products) | activated_layers(outline, taken)
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return {}


def _changes(outline: Outline, nodes: list[Node]) -> dict[int, list[bytes]]:
    """What takes the place of which nodes; nothing for one that nobody reads then."""
    results = outline.outputs()
    products = {n.outputs[0]: n for n in nodes if n.operator == b"MatMul" and len(n.inputs) == 2}
    before, after = dict[bytes, Before](), dict[bytes, tuple[Node, float]]()
    for node in nodes:
        if node.operator == b"Transpose":
            if len(node.attributes) == 1 and node.attributes[0] in SWAPS:
                before[node.outputs[0]] = Before(node, is_turned=True, factor=1.0)
        elif node.outputs[0] not in products and (factor := _factor(outline, node)):
            if node.inputs[0] in products and node.inputs[0] not in results:
                after[node.inputs[0]] = node, factor
            else:
                before[node.outputs[0]] = Before(node, is_turned=False, factor=factor)
    changes = dict[int, list[bytes]]()
    for output, node in products.items():
        operands = [before.get(name) for name in node.inputs]
        last, factor = after.get(output, (node, 1.0))
        if any(operands) or last is not node:
            changes |= {
                o.node.place: [] for o in operands if o and o.node.outputs[0] not in results
            }
            changes |= {last.place: [], node.place: [_fused(node, operands, last, factor)]}
    return changes


def _factor(outline: Outline, node: Node) -> float | None:
    """What a node multiplies its first operand with: a number that is a constant of the graph."""
    if node.operator not in (b"Mul", b"Div") or len(node.inputs) != 2:
        return None
    number = number_of(outline, node.inputs[1])
    return number if node.operator == b"Mul" or not number else 1 / number


def number_of(outline: Outline, name: bytes) -> float | None:
    """A constant that is one single precision number."""
    described = constant_of(outline, name)
    if described is None or described.get(DATA_TYPE) != FLOAT or DIMS in described:
        return None
    data = described.get(RAW_DATA, described.get(FLOAT_DATA, b""))
    return struct.unpack("<f", data)[0] if len(data) == 4 else None


def constant_of(outline: Outline, name: bytes) -> dict[int, bytes] | None:
    """The fields of an initializer; None if there is none of that name."""
    place = outline.constant_of_name.get(name)
    if place is None:
        return None
    model = outline.model
    return {number: model[begin:end] for number, begin, end in fields(model, *place)}


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
        parts.append(field(ATTRIBUTE, alpha))
    return b"".join([*parts, FUSED])
