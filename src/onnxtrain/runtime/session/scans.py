"""A Scan as a program of `runtime/fusion/columns.py`, read from its body."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..files.onnxfile import Node
from ..files.outline import ATTRIBUTE, Outline
from ..files.wire import Message
from ..fusion.columns import NONE, Columns, Cut, Each, Instruction, Join, Times
from ..fusion.program import ProgramError, Step, assemble, lower
from .edits import BODY
from .products import number_of

NODES, CONSTANTS, INPUTS, OUTPUTS = 1, 5, 11, 12
"""Fields of a graph."""
PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
"""Attributes of a Gemm that changes nothing."""


class Scan:
    """A Scan as a program.

    Attributes:
        outside: names of what the body reads from around it.
    """

    def __init__(self, node: Node, whole: Outline) -> None:
        said = attributes_of(node.message)
        body, self._read = said.pop("body", None), said.pop("num_scan_inputs", 0)
        self._directions = [said.pop(f"scan_{way}_directions", []) for way in ("input", "output")]
        axes = [*said.pop("scan_input_axes", []), *said.pop("scan_output_axes", [])]
        if said or any(axes) or not isinstance(body, Message) or body.has(CONSTANTS):
            raise ProgramError("a Scan of another form")
        self._states = len(node.inputs) - self._read
        self._inputs, self._results = (
            [value.string(1) for value in body.messages(number)] for number in (INPUTS, OUTPUTS)
        )
        self._nodes = [Inner(Node(message), whole) for message in body.messages(NODES)]
        if len(self._inputs) != len(node.inputs) or len(self._results) != len(node.outputs):
            raise ProgramError("a Scan with other operands than its body")
        inner = {*self._inputs, *(name for n in self._nodes for name in n.results)}
        self.outside = list(
            dict.fromkeys(n for node in self._nodes for n in node.operands if n not in inner)
        )
        self._values, self._code, self._count = dict[str, int](), list[Instruction](), 0

    @property
    def stacked(self) -> list[str]:
        """Names in the body of what is stacked."""
        return self._results[self._states :]

    def extend(self, nodes: Sequence[Inner], stacked: Sequence[str], way: int) -> None:
        """Have more nodes in the body, and stack these values, all of them in one way."""
        self._nodes = [*self._nodes, *nodes]
        self._results = [*self._results[: self._states], *stacked]
        self._directions = [self._directions[0], [way] * len(stacked)]
        names = [*self._inputs, *self.outside, *(name for n in self._nodes for name in n.results)]
        if len({*names}) < len(names):
            raise ProgramError("a body that makes a value twice")

    def columns(self) -> Columns:
        """The program; a `ProgramError` if it has none."""
        self._values = {n: i for i, n in enumerate((*self._inputs, *self.outside))}
        self._code, self._count = [], len(self._values)
        if self._count != len(self._inputs) + len(self.outside):
            raise ProgramError("a body with two operands of one name")
        groups, todo = _alike(self._nodes), self._nodes
        while todo:
            first = next((n for n in todo if not n.steps and self._is_ready(n)), None)
            if first is not None:
                self._code.append(self._instruction(first))
                done = [first]
            else:
                done = self._elementwise(todo, groups)
            self._name([name for node in done for name in node.results] if first else [])
            todo = [n for n in todo if n not in done]
        values = [self._values[name] for name in self._results]
        written = len(values) - self._states
        ways_in, ways_out = (
            tuple(flags or [0] * count)
            for flags, count in zip(self._directions, (self._read, written))
        )
        loop = Columns(
            self._states, len(self.outside), ways_in, ways_out, tuple(self._code),
            tuple(values[: self._states]), tuple(values[self._states :]),
        )  # fmt: skip
        if (len(ways_in), len(ways_out)) != (self._read, written):
            raise ProgramError("a Scan with other directions than stacks")
        loop.check()
        return loop

    def _is_ready(self, node: Inner) -> bool:
        return all(name in self._values for name in node.operands)

    def _name(self, results: Iterable[str]) -> None:
        """Number the results of an instruction."""
        for name in results:
            if name in self._values:
                raise ProgramError("a body that makes a value twice")
            self._values[name] = self._count
            self._count += 1

    def _instruction(self, node: Inner) -> Instruction:
        values = [self._values[name] for name in node.operands]
        match node.operator:
            case "Concat" if node.said == {"axis": 0}:
                return Join(tuple(values))
            case "Split" if _is_even(node.said):
                return Cut(values[0], len(node.results))
            case "MatMul" if not node.said:
                return Times(values[0], values[1], NONE)
            case "Gemm" if {**PLAIN, **node.said} == PLAIN:
                return Times(values[0], values[1], values[2] if len(values) > 2 else NONE)
        raise ProgramError(f"there is no form of {node.operator} for columns")

    def _elementwise(self, todo: Sequence[Inner], groups: dict[str, int]) -> list[Inner]:
        """All that can be computed now, of as many rows, in one program."""
        done, steps, computed = list[Inner](), list[Step](), set[str]()
        for node in todo:
            is_ready = all(name in self._values or name in computed for name in node.operands)
            group = groups[node.results[0]]
            if node.steps and is_ready and (not done or group == groups[done[0].results[0]]):
                done.append(node)
                steps += node.steps
                computed.add(node.results[0])
        if not done:
            raise ProgramError("a body that reads what nobody makes")
        others = [n for n in todo if n not in done]
        needed = {*self._results, *(name for n in others for name in n.operands)}
        outputs = [name for n in done for name in n.results if name in needed]
        read = dict.fromkeys(name for n in done for name in n.operands if name not in computed)
        program = assemble(steps, list(read), outputs)
        self._code.append(Each(program, tuple(self._values[name] for name in read)))
        self._name(outputs)
        return done


class Inner:
    """A node of a body.

    Attributes:
        operator: its name.
        operands, results: names; numbers are not operands.
        said: its attributes.
        steps: what it computes if it is elementwise, nothing else.
    """

    def __init__(self, node: Node, whole: Outline) -> None:
        if node.domain or not node.outputs or not all((*node.inputs, *node.outputs)):
            raise ProgramError("a foreign node, or one with something left out")
        self.operator, self.said = node.op_type, attributes_of(node.message)
        self.operands = [n for n in node.inputs if _number(whole, n) is None]
        self.results, self.steps = node.outputs, list[Step]()
        if self.operator in ("Concat", "Split", "MatMul", "Gemm"):
            if len(self.operands) != len(node.inputs):
                raise ProgramError("a number where there is no room for one")
            return
        numbers = {name: v for name, v in self.said.items() if isinstance(v, int | float)}
        steps = lower(self.operator, node.outputs[0], node.inputs, numbers)
        self.steps = [
            step._replace(operands=tuple(_value(whole, name) for name in step.operands))
            for step in steps
        ]

    def renamed(self, names: Mapping[str, str]) -> Inner:
        """The same of an elementwise node, whose operands have other names."""
        inner = copy.copy(self)
        inner.operands = [names.get(name, name) for name in self.operands]
        inner.steps = [
            step._replace(
                operands=tuple(names.get(n, n) if isinstance(n, str) else n for n in step.operands)
            )
            for step in self.steps
        ]
        return inner


def _is_even(said: Mapping[str, Any]) -> bool:
    """Whether a Split has parts of equal size, rows of each."""
    known = {"num_outputs", "axis"}
    return said.keys() <= known and said.get("num_outputs", 0) > 0 and said.get("axis", 0) == 0


def _number(whole: Outline, name: str) -> float | None:
    """A constant of the model that is one number."""
    return number_of(whole, name.encode())


def _value(whole: Outline, operand: str | float) -> str | float:
    number = _number(whole, operand) if isinstance(operand, str) else None
    return operand if number is None else number


def _alike(nodes: Sequence[Inner]) -> dict[str, int]:
    """Values that have as many rows as each other, as far as the nodes say, by a number."""
    groups = dict[str, int]()
    for number, node in enumerate(nodes):
        if node.steps:
            names = [*node.operands, *node.results]
            known = {groups[name] for name in names if name in groups}
            groups = {name: number if group in known else group for name, group in groups.items()}
            groups |= dict.fromkeys(names, number)
        else:
            groups |= dict.fromkeys(node.results, number)
    return groups


def attributes_of(message: Message) -> dict[str, Any]:
    """Attributes by name: numbers, lists of integers, graphs."""
    result = dict[str, Any]()
    for attribute in message.messages(ATTRIBUTE):
        match attribute.integer(20):
            case 1:
                value: Any = _float(attribute)
            case 2:
                value = attribute.integer(3)
            case 5:
                value = attribute.message(BODY)
            case 7:
                value = attribute.integers(8)
            case _:
                raise ProgramError("an attribute of another type")
        result[attribute.string(1)] = value
    return result


def _float(attribute: Message) -> float:
    (bits,) = attribute.values(2)
    if not isinstance(bits, bytes | memoryview):
        raise ProgramError("an attribute that is no number")
    return float(struct.unpack("<f", bits)[0])
