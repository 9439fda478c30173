"""How large the constants become that a model computes from its constants.

onnxruntime computes them when it loads a model, one after the other: 45 nodes that put a tensor
together with itself take all memory that there is before anything has been run. So their shapes
are followed first, through functions too. What follows from shapes and short lists of integers is
known; what does not is left to onnxruntime.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import ModelFileError
from ...operators import BROADCASTING, KEEPS_SHAPE
from .dtypes import MAX_RANK
from .external import MAX_NESTING
from .wire import Message

MAX_ELEMENTS = 2**31
"""Of a constant that a model computes: twice a mask of 32,768 × 32,768, and 8 GB of floats."""
MAX_VALUES = 64
"""Integers of a constant that are looked at: shapes, axes and repeats are shorter."""
_FLOAT, _INT32, _INT64 = 1, 6, 7
_LETTERS = {_FLOAT: "f", _INT32: "i", _INT64: "q"}
"""Of `struct`, for the types whose values are looked at."""
_SHOWN = 200


@dataclass(frozen=True)
class Constant:
    """A constant's shape, and its values if they are few: integers, or the scales of an image."""

    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


Rule: TypeAlias = "Callable[[Message, Sequence[Constant]], Constant | None]"
Scope: TypeAlias = "MutableMapping[str, Constant]"
Key: TypeAlias = "tuple[str, str, str]"
"""A function: domain, name, overload."""
_DEFAULT_DOMAINS = {"", "ai.onnx"}


def key_of(domain: str, name: str, overload: str) -> Key:
    """A function's key; the standard domain has two spellings."""
    return ("" if domain in _DEFAULT_DOMAINS else domain, name, overload)


def check_growth(model: Message, functions: Mapping[Key, Message], where: str) -> None:
    """Refuse constants of more than `MAX_ELEMENTS` numbers.

    Args:
        model: of which functions are known not to call themselves.
        functions: those of the model, by domain, name and overload.
        where: how messages call the model.
    """
    for graph in model.messages(7):
        _Walk(functions, where).graph(graph, {}, 0)


class _Walk:
    """Follows the constants of a graph, its branches and the functions that it calls."""

    def __init__(self, functions: Mapping[Key, Message], where: str) -> None:
        self._functions, self._where = functions, where
        self._results: dict[tuple[Key, tuple[Constant | None, ...]], list[Constant | None]] = {}

    def graph(self, graph: Message, outer: Scope, depth: int) -> None:
        """A graph; it sees the constants around it."""
        if depth > MAX_NESTING:
            raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
        own = {tensor.string(8): _stored(tensor) for tensor in graph.messages(5)}
        self._nodes(graph.messages(1), ChainMap(own, outer) if outer else own, depth)

    def _nodes(self, nodes: Iterable[Message], known: Scope, depth: int) -> None:
        for node in nodes:
            op_type = node.string(4)
            if op_type in _WITH_GRAPHS:
                for graph in _graphs(node):
                    self.graph(graph, known, depth + 1)
                continue
            function = self._functions.get(_key(node)) if self._functions else None
            if function is not None:
                self._call(node, function, known, depth)
            elif node.string(7) in _DEFAULT_DOMAINS:
                self._node(node, op_type, known)

    def _node(self, node: Message, op_type: str, known: Scope) -> None:
        rule = _RULES.get(op_type)
        names = [name for name in node.strings(1) if name]
        inputs = [known[name] for name in names if name in known]
        if rule is None or len(inputs) < len(names):
            return
        constant = rule(node, inputs)
        if constant is not None and len(constant.shape) <= MAX_RANK:
            self._check(node, constant)
            known[next(iter(node.strings(2)), "")] = constant

    def _call(self, node: Message, function: Message, known: Scope, depth: int) -> None:
        inputs = tuple(known.get(name) for name in node.strings(1))
        call = (_key(node), inputs)
        if call not in self._results:
            formal = zip(function.strings(4), inputs)
            inside: Scope = {name: value for name, value in formal if value is not None}
            self._nodes(function.messages(7), inside, depth)
            self._results[call] = [inside.get(name) for name in function.strings(5)]
        for name, value in zip(node.strings(2), self._results[call]):
            if value is not None:
                known[name] = value

    def _check(self, node: Message, constant: Constant) -> None:
        if max(constant.elements, *constant.shape, 0) > MAX_ELEMENTS:
            name = (node.string(3) or next(iter(node.strings(2)), ""))[:_SHOWN]
            raise ModelFileError(
                f"{self._where}: the node {name!r} ({node.string(4)}) makes a constant of "
                f"{' × '.join(map(str, constant.shape))} numbers out of other constants, and "
                f"{MAX_ELEMENTS} are the most. Look at that node and at its constants."
            )


def _key(node: Message) -> Key:
    return key_of(node.string(7), node.string(4), node.string(8))


def _graphs(node: Message) -> Iterable[Message]:
    for attribute in node.messages(5):
        yield from attribute.messages(6)
        yield from attribute.messages(11)


# --- what is stored ------------------------------------------------------------------------------


def _stored(tensor: Message) -> Constant:
    """An initializer, or the tensor of a Constant."""
    shape = tuple(tensor.integers(1))
    kind, count = tensor.integer(2), math.prod(shape)
    if len(shape) > 1 or not 0 <= count <= MAX_VALUES or kind not in _LETTERS:
        return Constant(shape)
    raw = _unpacked(tensor, _LETTERS[kind], count)
    if kind == _FLOAT:
        return Constant(shape, scales=raw)
    values = tensor.integers(7 if kind == _INT64 else 5) if raw is None else map(int, raw)
    listed = tuple(values)
    return Constant(shape, listed if len(listed) == count else None)


def _unpacked(tensor: Message, letter: str, count: int) -> tuple[float, ...] | None:
    """Raw data as numbers; None where there are none, or not so many."""
    raw = next((v for number, _, v in tensor.fields if number == 9), None)
    packed = struct.Struct(f"<{count}{letter}")
    if not isinstance(raw, bytes | memoryview) or len(raw) != packed.size:
        return None
    return packed.unpack(raw)


def _constant(node: Message, _: Sequence[Constant]) -> Constant | None:
    for attribute in node.messages(5):
        name = attribute.string(1)
        if name == "value":
            tensor = attribute.message(5)
            return None if tensor is None else _stored(tensor)
        if name == "value_int":
            return Constant((), (attribute.integer(3),))
        if name == "value_ints":
            values = tuple(attribute.integers(8))
            return Constant((len(values),), values if len(values) <= MAX_VALUES else None)
    return None


# --- what operators make of it -------------------------------------------------------------------


def _attribute(node: Message, name: str) -> Message | None:
    return next((a for a in node.messages(5) if a.string(1) == name), None)


def _axis(node: Message, rank: int) -> int | None:
    attribute = _attribute(node, "axis")
    axis = 0 if attribute is None else attribute.integer(3)
    return axis % rank if -rank <= axis < rank else None


def _same(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    return inputs[0] if inputs else None


def _cast(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    attribute = _attribute(node, "to")
    is_integer = attribute is not None and attribute.integer(3) in {_INT32, _INT64}
    return (_same if is_integer else _shape_only)(node, inputs)


def _shape_only(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    return Constant(inputs[0].shape) if inputs else None


def _broadcast(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    shape: tuple[int, ...] = ()
    for constant in inputs:
        shape = _together(shape, constant.shape)
    return Constant(shape)


def _together(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The shape that two shapes are broadcast to."""
    pairs = itertools.zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


def _concat(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    shapes = [constant.shape for constant in inputs]
    axis = _axis(node, len(shapes[0])) if shapes else None
    if axis is None or any(len(s) != len(shapes[0]) for s in shapes):
        return None
    shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    parts = [c.values for c in inputs]
    if shape[axis] > MAX_VALUES or None in parts:
        return Constant(shape)
    return Constant(shape, tuple(v for part in parts if part is not None for v in part))


def _tile(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    repeats = inputs[1].values if len(inputs) == 2 else None
    if repeats is None or len(repeats) != len(inputs[0].shape):
        return None
    return Constant(tuple(d * max(r, 0) for d, r in zip(inputs[0].shape, repeats)))


def _expand(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    target = inputs[1].values if len(inputs) == 2 else None
    return None if target is None else Constant(_together(inputs[0].shape, target))


def _filled(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    values = inputs[0].values if inputs else None
    return None if values is None else Constant(tuple(max(v, 0) for v in values))


def _range(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    ends = [c.values[0] for c in inputs if c.values is not None and len(c.values) == 1]
    if len(ends) != 3 or ends[2] == 0:
        return None
    return Constant((len(range(*ends)),)) if abs(ends[1] - ends[0]) < 2**62 else None


def _resize(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    """By its last input: the new sizes, or what the old ones are multiplied by."""
    if len(inputs) < 2 or _attribute(node, "axes") is not None:
        return None
    shape, last = inputs[0].shape, inputs[-1]
    if last.values is not None:
        return Constant(last.values)
    if (
        last.scales is None
        or len(last.scales) != len(shape)
        or not all(map(math.isfinite, last.scales))
    ):
        return None
    return Constant(tuple(int(d * s) for d, s in zip(shape, last.scales)))


def _einsum(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    attribute = _attribute(node, "equation")
    equation = "" if attribute is None else attribute.string(4).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    lengths = [len(o) for o in operands] == [len(c.shape) for c in inputs]
    if not arrow or not lengths or not (terms + result).replace(",", "").isalpha():
        return None
    sizes = {n: d for o, c in zip(operands, inputs) for n, d in zip(o, c.shape)}
    return Constant(tuple(sizes[n] for n in result)) if sizes.keys() >= {*result} else None


def _product(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    shapes = [constant.shape for constant in inputs]
    if len(shapes) != 2 or min(map(len, shapes)) < 2:
        return None
    (*left, rows, _inner), (*right, _inner, columns) = shapes
    return Constant((*_together(left, right), rows, columns))


def _transpose(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    if not inputs:
        return None
    shape, attribute = inputs[0].shape, _attribute(node, "perm")
    order = range(len(shape))[::-1] if attribute is None else attribute.integers(8)
    is_order = sorted(order) == list(range(len(shape)))
    return Constant(tuple(shape[axis] for axis in order)) if is_order else None


def _reshape(_: Message, inputs: Sequence[Constant]) -> Constant | None:
    target = inputs[1].values if len(inputs) == 2 else None
    if target is None:
        return None
    before = inputs[0]
    shape = [
        before.shape[i] if v == 0 and i < len(before.shape) else v for i, v in enumerate(target)
    ]
    known = math.prod(v for v in shape if v != -1)
    if -1 in shape and known > 0:
        shape[shape.index(-1)] = before.elements // known
    return Constant(tuple(shape)) if math.prod(shape) == before.elements else None


def _unsqueeze(node: Message, inputs: Sequence[Constant]) -> Constant | None:
    attribute = _attribute(node, "axes")
    axes: Sequence[int] | None = None if attribute is None else attribute.integers(8)
    if len(inputs) == 2:
        axes = inputs[1].values
    if axes is None or not inputs:
        return None
    shape, rank = list(inputs[0].shape), len(inputs[0].shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        shape.insert(axis, 1)
    return Constant(tuple(shape), inputs[0].values if len(shape) < 2 else None)


_WITH_GRAPHS = {"If", "Loop", "Scan", "SequenceMap"}
_RULES: dict[str, Rule] = {
    **dict.fromkeys(KEEPS_SHAPE, _shape_only),
    **dict.fromkeys(BROADCASTING | {"BitShift"}, _broadcast),
    "Cast": _cast,
    "Identity": _same,
    "Constant": _constant,
    "Concat": _concat,
    "Tile": _tile,
    "Expand": _expand,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Resize": _resize,
    "Einsum": _einsum,
    "MatMul": _product,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
}
"""Operator → the constant that it makes of constants, None where that is not known."""
