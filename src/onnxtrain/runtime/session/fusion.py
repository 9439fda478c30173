"""Marked groups of elementwise nodes become one node each, of an operator of our own.

`passes/fusion.py` has chosen the groups and marked their nodes. What a node computes is read from
the node itself, so a mark that is wrong makes a model that onnxruntime refuses, or no change; never
other numbers. The file stays as it is, of standard operators.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...errors import ModelFileError
from ...operators import COMPARISONS, FUSED, OUTSIDE
from ..files.outline import Node, Outline, fields
from ..files.wire import Message
from ..fusion.library import DOMAIN, OPERATOR, is_available
from ..fusion.opcodes import ANY_SHAPE, FLAGS, PER_CHANNEL, PER_ROW, REDUCTIONS, SINGLE
from ..fusion.program import MOST_AXES, ProgramError, Step, assemble, lower
from .edits import LONGEST, changed, marked_inside_too, with_bodies
from .products import constant_of, number_of

COMPARING = COMPARISONS | {"And", "Not", "Or", "Xor"}
"""Operators whose results are truth values, of which a kernel makes numbers."""
MARK = FUSED.encode()
BOOL, INT64 = 9, b"\x07"
HINTS = {"-": ANY_SHAPE, "r": PER_ROW, "n": SINGLE, "b": FLAGS, "c": PER_CHANNEL}
NORMALIZATION = "BatchNormalization"
"""What a mark says of the shapes of operands; the kernel checks it."""


def fused(outline: Outline) -> bytes | None:
    """The model with its marked groups as one node each; None if there is nothing to do."""
    changes = fused_groups(outline)
    try:
        return changed(outline, changes, DOMAIN.encode()) if changes else None
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def fused_groups(outline: Outline, taken: Collection[int] = ()) -> dict[int, list[bytes]]:
    """What stands in the places of marked groups.

    Args:
        outline: of the model.
        taken: places of nodes that something else stands for already.
    """
    if len(outline.model) > LONGEST or not outline.mentions(MARK) or not is_available():
        return {}
    try:
        return _changes(outline, taken)
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return {}


def _changes(outline: Outline, taken: Collection[int] = ()) -> dict[int, list[bytes]]:
    groups, changes = dict[str, list[tuple[Node, list[str]]]](), dict[int, list[bytes]]()
    for node in marked_inside_too(outline, FUSED):
        if node.place in taken:
            continue  # without it, its group is incomplete
        if node.mark.startswith(MARK):
            number, *words = node.mark[len(FUSED) :].decode().split()
            groups.setdefault(number, []).append((node, words))
        else:
            begin, end = outline.nodes[node.place]
            content = with_bodies(outline.model[begin:end], _changes)
            if content is not None:
                changes[node.place] = [content]
    for members in groups.values():
        changes |= _change(outline, members)
    return changes


def _change(outline: Outline, members: Sequence[tuple[Node, list[str]]]) -> dict[int, list[bytes]]:
    """What stands in the places of a group's nodes; nothing if it is incomplete or has no form."""
    if any(int(words[0]) != len(members) for _, words in members):
        return {}  # the rest of it is in another piece, half or branch
    numbers = {b"": 0}
    row_axes = int(members[0][1][2])
    try:
        group = tuple(
            _described(outline, node, words, row_axes, numbers) for node, words in members
        )
    except ProgramError:
        return {}
    plan = _plan(group, row_axes)
    if plan is None:
        return {}
    names = [name.decode() for name in numbers]
    outside = [node for node, words in members if OUTSIDE in words[4:]]
    behind = {name: content for node in outside for name, content in _behind(node).items()}
    message = Message()
    for number in plan.read:
        message.add(1, names[number])
    for node in outside:
        name = node.outputs[0].decode()
        message.add(2, _inside(name) if name in behind else name)
    message.add(3, members[-1][0].name).add(4, OPERATOR)
    message.add(5, Message().add(1, "program").add(4, plan.text).add(20, 3)).add(7, DOMAIN)
    changes: dict[int, list[bytes]] = {member.place: [] for member, _ in members}
    changes[max(changes)] = [message.encode(), *behind.values()]
    return changes


class Described(NamedTuple):
    """A node of a group, with numbers for the names of its values; that of no value is 0.

    Attributes:
        operator: its type.
        operands: which values it reads.
        result: which it makes.
        attributes: those that are numbers, and constants that a program has in it.
        hints: what its mark says of the shapes of its operands.
        is_read_outside: whether others than nodes of the group read it.
        drops_axes: whether it is a reduction without the axes of its operand.
        rank: how many axes its mark says that it has.
    """

    operator: str
    operands: tuple[int, ...]
    result: int
    attributes: tuple[tuple[str, float], ...]
    hints: str
    is_read_outside: bool
    drops_axes: bool
    rank: int


class Plan(NamedTuple):
    """The program of a group, and the numbers of the values that it reads, in their order."""

    text: str
    read: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _plan(group: tuple[Described, ...], row_axes: int) -> Plan | None:
    """The program of a group; None if it has none. The layers of a network have the same ones."""
    steps, outputs, hints = list[Step](), list[str](), dict[str, int]()
    ranks = dict[str, int]()
    try:
        for node in group:
            operands = [str(number) if number else "" for number in node.operands]
            steps += lower(node.operator, str(node.result), operands, dict(node.attributes))
            for name, hint in zip(operands, node.hints):
                if hints.setdefault(name, HINTS[hint]) != HINTS[hint]:
                    raise ProgramError("an operand is taken for two things")
            if node.operator == NORMALIZATION:
                if node.hints[1:] != "cccc" or row_axes != node.rank - 2:
                    raise ProgramError("a row is not what is normalized with the same numbers")
                ranks[operands[0]] = node.rank
            if node.is_read_outside:
                outputs.append(str(node.result))
        results = {step.result for step in steps}
        names = [name for step in steps for name in step.operands if isinstance(name, str)]
        dropping = {str(node.result) for node in group if node.drops_axes}
        if not dropping.isdisjoint(names):
            raise ProgramError("a sum that has lost its axes is no number of a row")
        if not results.isdisjoint(ranks):
            raise ProgramError("the axes of what is computed inside are not known")
        read = dict.fromkeys(name for name in names if name not in results)
        program = assemble(steps, list(read), outputs, hints, row_axes, ranks, dropping)
    except ProgramError:
        return None
    return Plan(program.text(), tuple(map(int, read)))


def _inside(name: str) -> str:
    return f"{name}/inside"


def _behind(node: Node) -> dict[str, bytes]:
    """By the name of a result, the node that makes it of what the kernel has, if there is one.

    Truth values are numbers in a kernel.
    """
    if not _is_flag(node):
        return {}
    name = node.outputs[0].decode()
    to = Message().add(1, "to").add(3, BOOL).add(20, 2)
    cast = Message().add(1, _inside(name)).add(2, name).add(4, "Cast").add(5, to)
    return {name: cast.encode()}


def _drops_axes(node: Node) -> bool:
    return node.operator.decode() in REDUCTIONS and not _attributes(node).get("keepdims", 1)


def _is_flag(node: Node) -> bool:
    operator = node.operator.decode()
    return operator in COMPARING or (operator == "Cast" and _attributes(node).get("to") == BOOL)


def _described(
    outline: Outline, node: Node, words: Sequence[str], row_axes: int, numbers: dict[bytes, int]
) -> Described:
    """A node of a group; a `ProgramError` if it cannot be one. `numbers` learns its values."""
    operator, rank = node.operator.decode(), int(words[1])
    attributes = _attributes(node)
    drops_axes = _drops_axes(node)
    if operator in REDUCTIONS:
        if _axes(outline, node, rank) != list(range(rank - row_axes, rank)):
            raise ProgramError("only the axes of a row are reduced")
        if drops_axes and len(node.inputs) < 2:
            raise ProgramError("axes are dropped by a node that reads which")
        attributes = {"rank": rank}
    elif operator == "Softmax":
        if attributes.get("axis", -1) not in (-1, rank - 1) or row_axes != 1:
            raise ProgramError("only a softmax along a row is computed with others")
        attributes = {"rank": rank}
    elif operator == "Pow":
        exponent = number_of(outline, node.inputs[1])
        attributes = {} if exponent is None else {"exponent": exponent}
    if operator != "Clip" and not all(node.inputs[:1] if operator in REDUCTIONS else node.inputs):
        raise ProgramError("an operand is missing")
    return Described(
        operator,
        tuple([numbers.setdefault(name, len(numbers)) for name in node.inputs]),
        numbers.setdefault(node.outputs[0], len(numbers)),
        tuple(attributes.items()),
        words[3],
        OUTSIDE in words[4:],
        drops_axes,
        rank,
    )


def _attributes(node: Node) -> dict[str, float]:
    """Those that are a number."""
    return dict(pair for content in node.attributes if (pair := _number(content)) is not None)


@functools.lru_cache(maxsize=1024)
def _number(content: bytes) -> tuple[str, float] | None:
    """Name and value of an attribute; None if it is no number."""
    parts = {number: content[begin:end] for number, begin, end in fields(content, 0, len(content))}
    name = parts.get(1, b"").decode()
    if 3 in parts:
        return name, Message.parse(content).integer(3)
    if 2 in parts:
        return name, struct.unpack("<f", parts[2])[0]
    return None


def _axes(outline: Outline, node: Node, rank: int) -> list[int]:
    """The axes that a reduction has as its second operand or as an attribute, in their order."""
    axes = list[int]()
    if len(node.inputs) > 1:
        described = constant_of(outline, node.inputs[1])
        axes = _integers(described) if described else []
    else:
        for content in node.attributes:
            message = Message.parse(content)
            if message.string(1) == "axes":
                axes = list(message.integers(8))
    return sorted(axis + rank if axis < 0 else axis for axis in axes)


def _integers(described: Mapping[int, bytes]) -> list[int]:
    """The numbers of a constant; none if they are not stored as bytes."""
    raw = described.get(9, b"")
    if described.get(2) != INT64 or len(raw) % 8 or len(raw) > 8 * MOST_AXES:
        return []
    return list(struct.unpack(f"<{len(raw) // 8}q", raw))
