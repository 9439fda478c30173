"""Marked groups of elementwise nodes become one node each, of an operator of our own.

`passes/fusion.py` has chosen the groups and marked their nodes. What a node computes is read from
the node itself, so a mark that is wrong makes a model that onnxruntime refuses, or no change; never
other numbers. The file stays as it is, of standard operators.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ...errors import ModelFileError
from ...operators import COMPARISONS, FUSED, OUTSIDE
from ..files.outline import GRAPH, Outline, fields
from ..files.wire import Message
from ..fusion.library import DOMAIN, OPERATOR, is_available
from ..fusion.opcodes import ANY_SHAPE, FLAGS, PER_ROW, REDUCTIONS, SINGLE
from ..fusion.program import ProgramError, Step, assemble, lower
from .edits import ATTRIBUTE, LONGEST, Node, changed, field, marked, nodes_around
from .products import constant_of, number_of

COMPARING = COMPARISONS | {"And", "Not", "Or", "Xor"}
"""Operators whose results are truth values, of which a kernel makes numbers."""
BOOL, INT64 = 9, b"\x07"
BODY = 6
"""Field of an attribute that is a graph."""
HINTS = {"-": ANY_SHAPE, "r": PER_ROW, "n": SINGLE, "b": FLAGS}
"""What a mark says of the shapes of operands; the kernel checks it."""


def fused(outline: Outline) -> bytes | None:
    """The model with its marked groups as one node each; None if there is nothing to do."""
    if len(outline.model) > LONGEST or not outline.mentions(FUSED.encode()) or not is_available():
        return None
    try:
        return _fused(outline)
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return None


def _fused(outline: Outline) -> bytes | None:
    groups = dict[str, list[tuple[Node, list[str]]]]()
    for node in marked(outline, FUSED):
        number, *words = node.mark[len(FUSED) :].decode().split()
        groups.setdefault(number, []).append((node, words))
    changes = dict[int, list[bytes]]()
    for members in groups.values():
        changes |= _change(outline, members)
    for place in nodes_around(outline, FUSED):
        begin, end = outline.nodes[place]
        content = _with_bodies(outline.model[begin:end])
        if content is not None:
            changes[place] = [content]
    return changed(outline, changes, DOMAIN.encode()) if changes else None


def _with_bodies(content: bytes) -> bytes | None:
    """A node with its bodies' groups fused; None if there are none. A body is outlined alone."""
    node, is_changed = Message.parse(content), False
    for attribute in node.messages(ATTRIBUTE):
        body = attribute.message(BODY)
        outline = None if body is None else Outline.of(field(GRAPH, body))
        inner = None if outline is None or not outline.nodes else _fused(outline)
        if inner is not None:
            graph = Message.parse(inner).message(GRAPH)
            attribute.replace(BODY, [] if graph is None else [graph])
            is_changed = True
    return node.encode() if is_changed else None


def _change(outline: Outline, members: Sequence[tuple[Node, list[str]]]) -> dict[int, list[bytes]]:
    """What stands in the places of a group's nodes; nothing if it is incomplete or has no form."""
    if any(int(words[0]) != len(members) for _, words in members):
        return {}  # the rest of it is in another piece, half or branch
    steps, outputs, flags, hints = list[Step](), list[str](), set[str](), dict[str, int]()
    row_axes = int(members[0][1][2])
    try:
        for node, words in members:
            steps += _steps(outline, node, rank=int(words[1]))
            hints |= {n.decode(): HINTS[h] for n, h in zip(node.inputs, words[3])}
            if OUTSIDE in words[4:]:
                outputs.append(node.outputs[0].decode())
                if _is_flag(node):
                    flags.add(outputs[-1])
        results = {step.result for step in steps}
        names = (name for step in steps for name in step.operands if isinstance(name, str))
        read = dict.fromkeys(name for name in names if name not in results)
        program = assemble(steps, list(read), outputs, hints, row_axes)
    except ProgramError:
        return {}
    message = Message()
    for name in read:
        message.add(1, name)
    for name in outputs:
        message.add(2, _as_number(name) if name in flags else name)
    message.add(3, members[-1][0].name).add(4, OPERATOR)
    message.add(5, Message().add(1, "program").add(4, program.text()).add(20, 3)).add(7, DOMAIN)
    casts = [_cast(_as_number(name), name) for name in outputs if name in flags]
    changes: dict[int, list[bytes]] = {member.place: [] for member, _ in members}
    changes[max(changes)] = [message.encode(), *casts]
    return changes


def _as_number(name: str) -> str:
    return f"{name}/as number"


def _cast(number: str, name: str) -> bytes:
    """A node that makes truth values of numbers."""
    to = Message().add(1, "to").add(3, BOOL).add(20, 2)
    return Message().add(1, number).add(2, name).add(4, "Cast").add(5, to).encode()


def _is_flag(node: Node) -> bool:
    operator = node.operator.decode()
    return operator in COMPARING or (operator == "Cast" and _attributes(node).get("to") == BOOL)


def _steps(outline: Outline, node: Node, rank: int) -> list[Step]:
    operator, operands = node.operator.decode(), [name.decode() for name in node.inputs]
    attributes = _attributes(node)
    if operator in REDUCTIONS:
        if not attributes.get("keepdims", 1) or _axis(outline, node) not in (-1, rank - 1):
            raise ProgramError("only the last axis is reduced, and kept")
    elif operator == "Pow":
        exponent = number_of(outline, node.inputs[1])
        attributes = {} if exponent is None else {"exponent": exponent}
    if operator != "Clip" and not all(operands[:1] if operator in REDUCTIONS else operands):
        raise ProgramError("an operand is missing")
    return lower(operator, node.outputs[0].decode(), operands, attributes)


def _attributes(node: Node) -> dict[str, float]:
    """Those that are a number."""
    numbers = dict[str, float]()
    for content in node.attributes:
        parts = {
            number: content[begin:end] for number, begin, end in fields(content, 0, len(content))
        }
        name = parts.get(1, b"").decode()
        if 3 in parts:
            numbers[name] = Message.parse(content).integer(3)
        elif 2 in parts:
            numbers[name] = struct.unpack("<f", parts[2])[0]
    return numbers


def _axis(outline: Outline, node: Node) -> int | None:
    """The axis that a reduction has as its second operand or as an attribute; None if not one."""
    if len(node.inputs) > 1:
        described = constant_of(outline, node.inputs[1])
        return _integer(described) if described else None
    for content in node.attributes:
        message = Message.parse(content)
        if message.string(1) == "axes":
            axes = message.integers(8)
            return axes[0] if len(axes) == 1 else None
    return None


def _integer(described: Mapping[int, bytes]) -> int | None:
    """The number of a constant that has one element."""
    if described.get(2) != INT64:
        return None
    if len(described.get(9, b"")) == 8:
        return int(struct.unpack("<q", described[9])[0])
    return None
