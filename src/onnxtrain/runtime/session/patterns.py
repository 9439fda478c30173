"""Compares nodes of a model with a pattern: an operator of ours may stand for what matches.

A pattern is written as the expression that a value has to be. It is compared from the last node
backwards, operators, attributes and constants alike, also through the two branches of an If. So
what a mark says need not be believed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..files.outline import ATTRIBUTE, DOMAIN, INITIALIZER, INPUT, NODE, OPERATOR, OUTPUT, Outline
from ..files.wire import Message
from .products import constant_of, number_of

Floats: TypeAlias = "npt.NDArray[np.float32]"
OUTPUT_OF_GRAPH = 12
FLOAT, INT64 = 1, 7
BRANCHES = ("then_branch", "else_branch")
UNPACKED = 64
"""Elements of a constant that is compared."""
LONGEST_FLOATS = 2**15
"""Bytes of one of single precision."""

DEFAULTS: dict[tuple[str, str], Any] = {
    ("Cast", "saturate"): 1,
    ("CumSum", "exclusive"): 0,
    ("CumSum", "reverse"): 0,
    ("DequantizeLinear", "axis"): 1,
    ("DequantizeLinear", "block_size"): 0,
    ("DequantizeLinear", "output_dtype"): 0,
    ("Gather", "axis"): 0,
    ("MaxPool", "auto_pad"): "NOTSET",
    ("MaxPool", "ceil_mode"): 0,
    ("MaxPool", "storage_order"): 0,
    ("Pad", "mode"): "constant",
    ("ReduceMax", "keepdims"): 1,
    ("ReduceMax", "noop_with_empty_axes"): 0,
    ("ReduceSum", "keepdims"): 1,
    ("ReduceSum", "noop_with_empty_axes"): 0,
    ("Reshape", "allowzero"): 0,
    ("ScatterElements", "axis"): 0,
    ("ScatterElements", "reduction"): "none",
    ("ScatterND", "reduction"): "none",
    ("Shape", "start"): 0,
    ("TopK", "axis"): -1,
    ("TopK", "largest"): 1,
    ("TopK", "sorted"): 1,
}
"""Attributes that a node may leave out."""


class Value(NamedTuple):
    """Any value: the same one wherever the name occurs in a pattern."""

    name: str


class Number(NamedTuple):
    """A constant of INT64: its elements, and how many axes it has."""

    elements: tuple[int, ...]
    rank: int = 1


class Zeros(NamedTuple):
    """Single precision zeros of a shape."""

    shape: Value


class Result(NamedTuple):
    """The result of an operator.

    Attributes:
        operator: its name.
        operands: patterns; None for one that is left out. Of an If: the condition, and the results
            of both branches.
        attributes: what it has to say; what it leaves out counts as said.
        output: which of its results.
        name: under which the rest of the pattern speaks of this value.
    """

    operator: str
    operands: tuple[Pattern, ...]
    attributes: Mapping[str, Any] = {}
    output: int = 0
    name: str = ""


Pattern: TypeAlias = "Value | Number | Zeros | Result | None"


class Opened(NamedTuple):
    """A node: place in the graph (-1 inside of another one), operator, names, attributes."""

    place: int
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


class Nodes:
    """The nodes of a model by the names of their results, opened when they are asked for.

    Args:
        outline: of the model.
        makers: place of the node that makes each value.
        gone: places of nodes in which something else stands.
    """

    def __init__(
        self, outline: Outline, makers: Mapping[bytes, int], gone: Container[int] = ()
    ) -> None:
        self._outline, self._makers, self._gone = outline, makers, gone
        self._opened = dict[str, Opened]()
        self._constants = dict[str, Number | None]()

    def maker(self, name: str) -> Opened | None:
        """The node that makes a value; None if it comes from outside or from a foreign node."""
        place = self._makers.get(name.encode()) if name not in self._opened else None
        if place is not None and place not in self._gone:
            begin, end = self._outline.nodes[place]
            self._open(Message.parse(self._outline.model[begin:end]), place)
        return self._opened.get(name)

    def _open(self, message: Message, place: int) -> None:
        if message.string(DOMAIN):
            return
        attributes = dict[str, Any]()
        for attribute in message.messages(ATTRIBUTE):
            attributes[attribute.string(1)] = self._attribute(attribute)
        node = Opened(
            place,
            message.string(OPERATOR),
            tuple(message.strings(INPUT)),
            tuple(message.strings(OUTPUT)),
            attributes,
        )
        self._opened.update(dict.fromkeys(node.outputs, node))

    def _attribute(self, attribute: Message) -> Any:
        """Its value; of a graph the names of its results, whose nodes are opened."""
        graph = attribute.message(6)
        if graph is not None:
            if graph.has(INITIALIZER):
                return None
            for node in graph.messages(NODE):
                self._open(node, -1)
            return tuple(output.string(1) for output in graph.messages(OUTPUT_OF_GRAPH))
        tensor = attribute.message(5)
        if tensor is not None:
            return _only_element(tensor)
        if attribute.has(8):
            return attribute.integers(8)
        if attribute.has(2):
            return _float(attribute.values(2)[-1])
        return attribute.string(4) if attribute.has(4) else attribute.integer(3)

    def number(self, name: str) -> float | None:
        """The value of a constant that is one single precision number without axes."""
        return number_of(self._outline, name.encode())

    def type_of(self, name: str) -> int:
        """The element type of a constant; 0 if it is none."""
        described = constant_of(self._outline, name.encode()) or {}
        return int.from_bytes(described.get(2, b""), "little")

    def constant(self, name: str) -> Number | None:
        """The value of a small constant of INT64."""
        if name not in self._constants:
            self._constants[name] = self._read_constant(name)
        return self._constants[name]

    def floats(self, name: str) -> Floats | None:
        """The value of a small constant of single precision."""
        place = self._outline.constant_of_name.get(name.encode())
        if place is None or place[1] - place[0] > LONGEST_FLOATS:
            return None
        message = Message.parse(self._outline.model[slice(*place)])
        shape, raw = message.integers(1), message.values(9)
        if message.integer(2) != FLOAT or message.has(14) or len(raw) != 1:
            return None
        numbers = np.frombuffer(bytes(raw[0]), "<f4") if isinstance(raw[0], bytes) else None
        is_whole = numbers is not None and numbers.size == math.prod(shape)
        return numbers.reshape(shape) if numbers is not None and is_whole else None

    def _read_constant(self, name: str) -> Number | None:
        described = constant_of(self._outline, name.encode())
        if described is None or described.get(2) != bytes([INT64]):
            return None
        raw = described.get(9, b"")
        if len(raw) > 8 * UNPACKED or len(raw) % 8:
            return None
        begin, end = self._outline.constant_of_name[name.encode()]
        message = Message.parse(self._outline.model[begin:end])
        if message.has(14):
            return None
        elements = struct.unpack(f"<{len(raw) // 8}q", raw) if raw else message.integers(7)
        return Number(tuple(elements), len(message.integers(1)))


def _float(value: Any) -> float:
    return float(struct.unpack("<f", value)[0])


def _only_element(tensor: Message) -> tuple[int, float] | None:
    """Type and value of a tensor of one single precision number."""
    if tensor.integer(2) != FLOAT or tensor.integers(1) not in ([], [1]):
        return None
    data = b"".join(
        bytes(v) for v in (*tensor.values(9), *tensor.values(4)) if isinstance(v, bytes)
    )
    return (FLOAT, struct.unpack("<f", data)[0]) if len(data) == 4 else None


def matches(nodes: Nodes, name: str, pattern: Pattern, bound: dict[str, str]) -> bool:
    """Whether a value is what a pattern says; the names of its values are written to `bound`."""
    if pattern is None:
        return not name
    if isinstance(pattern, Value):
        return bool(name) and bound.setdefault(pattern.name, name) == name
    if isinstance(pattern, Number):
        return nodes.constant(name) == pattern
    node = nodes.maker(name)
    if isinstance(pattern, Zeros):
        return node is not None and _is_zeros(nodes, node, pattern, bound)
    if node is None or node.operator != pattern.operator or node.outputs[pattern.output] != name:
        return False
    if pattern.name and bound.setdefault(pattern.name, name) != name:
        return False
    return _operands_match(nodes, node, pattern, bound)


def _is_zeros(nodes: Nodes, node: Opened, pattern: Zeros, bound: dict[str, str]) -> bool:
    """Whether a node makes zeros of a shape; exporters repeat a single one."""
    if node.operator == "Expand":
        is_zero, shape = nodes.number(node.inputs[0]) == 0, node.inputs[1]
    elif node.operator == "ConstantOfShape":
        is_zero = node.attributes.get("value", (FLOAT, 0.0)) == (FLOAT, 0.0)
        shape = node.inputs[0]
    else:
        return False
    return is_zero and matches(nodes, shape, pattern.shape, bound)


def _operands_match(nodes: Nodes, node: Opened, pattern: Result, bound: dict[str, str]) -> bool:
    attributes, operands = dict(node.attributes), list(node.inputs)
    if node.operator == "If":
        results = [attributes.pop(branch, None) or () for branch in BRANCHES]
        operands += [name for names in results for name in names]
    for key in {*attributes, *pattern.attributes}:
        default = DEFAULTS.get((node.operator, key))
        if attributes.get(key, default) != pattern.attributes.get(key, default):
            return False
    operands += [""] * (len(pattern.operands) - len(operands))
    if len(operands) != len(pattern.operands):
        return False
    return all(matches(nodes, o, p, bound) for o, p in zip(operands, pattern.operands))
