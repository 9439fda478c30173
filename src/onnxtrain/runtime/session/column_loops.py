"""Marked Scans whose columns have nothing to do with each other become one node of our own each.

Recurrent layers in columns are such (`autodiff/rules/recurrent.py`), and so are their gradients.
Whoever wrote them has marked them, since a body does not say that its values are columns. What a
Scan computes is read from its body, and one that does anything else stays as it is; if the values
are not what the mark says, the kernel refuses them. The file stays as it is.
"""

from __future__ import annotations

import contextlib
import copy
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...errors import ModelFileError
from ...operators import COLUMN_LOOP as MARK
from ..files.onnxfile import Node
from ..files.outline import Outline
from ..files.wire import Message
from ..fusion.columns import SUMMED, TURNED, Columns
from ..fusion.library import is_available
from ..fusion.operators import COLUMN_LOOP
from ..fusion.program import ProgramError
from .edits import LONGEST, changed, connections_of, with_bodies
from .fusion import COMPARING
from .products import DATA_TYPE, DIMS, RAW_DATA, constant_of
from .scans import Inner, Scan, attributes_of

DOCUMENTATION, TEXT = 6, 3
"""A field of a node, and the type of an attribute."""
INT64, INT64_DATA = b"\x07", 7
"""A type of constants, and the field that has their numbers where these are not raw."""


def with_column_loops(outline: Outline) -> bytes | None:
    """The model with loops over columns as one node each; None if there is nothing to do."""
    if len(outline.model) > LONGEST or not outline.mentions(MARK.encode()) or not _has_tiles():
        return None
    try:
        changes = _changes(outline, outline)
        return changed(outline, changes, COLUMN_LOOP.domain.encode()) if changes else None
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return None


def _has_tiles() -> bool:
    """Whether the kernel can be had; LLVM is asked, so only where there is something to do."""
    if not is_available():
        return False
    from ..fusion import tiles

    return tiles.is_available()


def _changes(outline: Outline, whole: Outline) -> dict[int, list[bytes]]:
    changes, loops = dict[int, list[bytes]](), dict[int, _Loop]()
    for place in outline.mentioning(MARK.encode()):
        begin, end = outline.nodes[place]
        content = outline.model[begin:end]
        node = Node(Message.parse(content))
        if node.op_type == "Scan" and node.message.string(DOCUMENTATION) == MARK:
            loop = _loop(node, whole)
            if loop is not None:
                loops[place] = loop
            continue
        inner = with_bodies(content, lambda body: _changes(body, whole))
        if inner is not None:
            changes[place] = [inner]
    if loops:
        changes |= _Neighbours(outline, whole, loops).changes()
        changes |= {place: [loop.encode()] for place, loop in loops.items()}
    return changes


@dataclass(eq=False)
class _Loop:
    """A node of ours: its name, operands, and results, the states first; and what it was."""

    name: str
    operands: list[str]
    results: list[str]
    columns: Columns
    scan: Scan

    def encode(self) -> bytes:
        """As it stands in a model."""
        message = Message()
        for name in self.operands:
            message.add(1, name)
        for name in (*self.results, f"{self.results[0]}/memory"):
            message.add(2, name)
        numbers = Message().add(1, "numbers").add(4, self.columns.text()).add(20, TEXT)
        message.add(3, self.name).add(4, COLUMN_LOOP.name).add(5, numbers)
        return message.add(7, COLUMN_LOOP.domain).encode()

    @property
    def stacks(self) -> list[str]:
        """Names of the results that are stacks."""
        return self.results[self.columns.states :]

    def add(self, name: str, value: int, way: int) -> None:
        """Return one stack more."""
        ways, stacked = (*self.columns.ways_out, way), (*self.columns.stacked, value)
        self.columns = self.columns._replace(ways_out=ways, stacked=stacked)
        self.results.append(name)

    def turn(self, stack: str, name: str) -> None:
        """Return a stack once more, with its rows first."""
        at = self.stacks.index(stack)
        self.add(name, self.columns.stacked[at], self.columns.ways_out[at] | TURNED)

    def multiply(self, matrix: str, stack: str, name: str) -> None:
        """Return the product of a matrix and a stack; a `ProgramError` if there is no room."""
        before, at = self.columns, self.stacks.index(stack)
        self.columns = before.with_product(before.stacked[at])
        self.add(name, self.columns.values - 1, before.ways_out[at])
        try:
            self.columns.check()
        except ProgramError:
            self.columns = before
            self.results.pop()
            raise
        self.operands.append(matrix)

    def is_turned(self, stack: str) -> bool:
        """Whether a stack has its rows first."""
        return bool(self.columns.ways_out[self.stacks.index(stack)] & TURNED)

    def sum(self, stack: str, name: str) -> None:
        """Return the sum of a stack over all steps."""
        self.add(name, self.columns.stacked[self.stacks.index(stack)], SUMMED)

    def keep(self, read: Collection[str]) -> None:
        """Return only those stacks that somebody reads."""
        columns, states = self.columns, self.columns.states
        rows = zip(self.stacks, columns.ways_out, columns.stacked, strict=True)
        stacks_read = [row for row in rows if row[0] in read]
        self.results[states:] = [name for name, _, _ in stacks_read]
        ways, stacked = (
            tuple(way for _, way, _ in stacks_read),
            tuple(value for _, _, value in stacks_read),
        )
        self.columns = columns._replace(ways_out=ways, stacked=stacked)

    def pull(self, nodes: Sequence[Inner], outputs: Sequence[str], read: Collection[str]) -> None:
        """Compute in every step what nodes compute of stacks, in as few programs as can be.

        Of what is computed then, `outputs` are stacks, too, and of the others those that are
        `read`. A `ProgramError` if there is no room for that; nothing is changed then.
        """
        values = dict(zip(self.stacks, self.scan.stacked, strict=True))
        names = [*(name for name in self.stacks if name in read), *outputs]
        stacked = [values.get(name, name) for name in names]
        inner = [node.renamed(values) for node in nodes]
        scan = copy.copy(self.scan)
        scan.extend(inner, stacked, self.columns.ways_out[0])
        self.columns, self.scan = scan.columns(), scan
        self.results[self.columns.states :] = names


class _Neighbours:
    """Nodes whose work loops do while they write their stacks.

    What is computed of stacks alone, element by element, is computed in the step: a layer's factors
    of the gradient were half of what was read and written. So is a marked product of a matrix and a
    stack, the gradient of the input, for which the stack would be written and read once more. A
    Transpose is written as such, and a sum over steps and columns is one over columns then.
    """

    def __init__(self, outline: Outline, whole: Outline, loops: Mapping[int, _Loop]) -> None:
        self._outline, self._whole, self._loops = outline, whole, list(loops.values())
        self._place_of = {id(loop): place for place, loop in loops.items()}
        self._operands, self._makers, self._readers = connections_of(outline)
        self._results = {name.decode() for name in outline.outputs()}
        self._loop_of = {name: loop for loop in self._loops for name in loop.stacks}

    def changes(self) -> dict[int, list[bytes]]:
        """What stands in the places of the nodes whose work the loops have now."""
        taken_in = self._elementwise() + self._products() + self._transposes()
        changes = {place: list[bytes]() for place in taken_in} | self._sums()
        for loop in self._loops:
            loop.keep({name for name in loop.stacks if self._is_read(name)})
        return changes

    def _is_read(self, name: str) -> bool:
        return self._readers.get(name.encode(), 0) > 0 or name in self._results

    def _node(self, place: int) -> Node:
        begin, end = self._outline.nodes[place]
        return Node(Message.parse(self._outline.model[begin:end]))

    def _elementwise(self) -> list[int]:
        members = dict[_Loop, dict[int, Inner]]()
        home = dict(self._loop_of)
        for place, (inputs, outputs) in enumerate(self._operands):
            loops = {home[n] for name in inputs if (n := name.decode()) in home}
            if len(loops) != 1 or len(outputs) != 1:
                continue
            (loop,) = loops
            inner = self._elementwise_node(place)
            is_alone = inner is not None and all(home.get(n) is loop for n in inner.operands)
            if inner is not None and is_alone and len({*loop.columns.ways_out}) == 1:
                members.setdefault(loop, {})[place] = inner
                home[inner.results[0]] = loop
        return [place for loop, nodes in members.items() for place in self._pulled(loop, nodes)]

    def _elementwise_node(self, place: int) -> Inner | None:
        node = self._node(place)
        if node.op_type in COMPARING or node.op_type in ("Cast", "Where"):  # truth values
            return None
        try:
            inner = Inner(node, self._whole)
        except ProgramError:
            return None
        return inner if inner.steps else None

    def _pulled(self, loop: _Loop, nodes: dict[int, Inner]) -> list[int]:
        """Places of the nodes if the loop has taken them in."""
        reads = [name.encode() for node in nodes.values() for name in node.operands]
        for name in reads:
            self._readers[name] -= 1
        results = [node.results[0] for node in nodes.values()]
        try:
            read = {name for name in loop.stacks if self._is_read(name)}
            outputs = [name for name in results if self._is_read(name)]
            loop.pull(list(nodes.values()), outputs, read)
        except ProgramError:
            for name in reads:
                self._readers[name] += 1
            return []
        self._loop_of |= dict.fromkeys(results, loop)
        return list(nodes)

    def _products(self) -> list[int]:
        places = list[int]()
        for place, (inputs, outputs) in enumerate(self._operands):
            matrix, stack = (n.decode() for n in inputs) if len(inputs) == 2 else ("", "")
            loop = self._loop_of.get(stack)
            if loop is None or stack not in loop.stacks:
                continue
            node = self._node(place)
            is_known = self._makers.get(inputs[0], -1) < self._place_of[id(loop)]
            is_marked = node.op_type == "MatMul" and node.message.string(DOCUMENTATION) == MARK
            if not is_known or not is_marked or node.domain:
                continue
            with contextlib.suppress(ProgramError):
                loop.multiply(matrix, stack, outputs[0].decode())
                self._loop_of[outputs[0].decode()] = loop
                self._readers[inputs[1]] -= 1
                places.append(place)
        return places

    def _sums(self) -> dict[int, list[bytes]]:
        """Sums of stacks whose steps and columns are one axis, as sums of what loops return."""
        changes = dict[int, list[bytes]]()
        homes = {name: loop for loop in self._loops for name in loop.stacks}
        for place, (inputs, outputs) in enumerate(self._operands):
            before = self._makers.get(inputs[0]) if len(inputs) == 2 else None
            source = self._operands[before][0] if before is not None else []
            stack = source[0].decode() if len(source) == 1 else ""
            if before is None or stack not in homes or not self._is_one(inputs[1]):
                continue
            node, flat = self._node(place), self._node(before)
            is_flat = flat.op_type == "Flatten" and attributes_of(flat.message) == {"axis": 1}
            if node.op_type != "ReduceSum" or node.domain or flat.domain or not is_flat:
                continue
            if not homes[stack].is_turned(stack):
                continue
            name = f"{outputs[0].decode()}/of columns"
            homes[stack].sum(stack, name)
            node.inputs = [name, node.inputs[1]]
            changes[place] = [node.message.encode()]
            self._readers[inputs[0]] -= 1
            self._readers[name.encode()] = 1
            if self._readers[inputs[0]] == 0 and flat.outputs[0] not in self._results:
                changes[before] = []
                self._readers[source[0]] -= 1
        return changes

    def _is_one(self, name: bytes) -> bool:
        """Whether an operand is the constant [1], as integers."""
        described = constant_of(self._whole, name) or {}
        if described.get(DATA_TYPE) != INT64:
            return False
        is_raw = described.get(RAW_DATA) == struct.pack("<q", 1)
        return described.get(DIMS) == b"\x01" and (is_raw or described.get(INT64_DATA) == b"\x01")

    def _transposes(self) -> list[int]:
        places = list[int]()
        for place, (inputs, outputs) in enumerate(self._operands):
            name = inputs[0].decode() if len(inputs) == 1 else ""
            loop = self._loop_of.get(name)
            if loop is None or name not in loop.stacks or outputs[0].decode() in self._results:
                continue
            node = self._node(place)
            if node.op_type == "Transpose" and attributes_of(node.message) == {"perm": [1, 0, 2]}:
                self._readers[inputs[0]] -= 1
                loop.turn(name, node.outputs[0])
                places.append(place)
        return places


def _loop(node: Node, whole: Outline) -> _Loop | None:
    """What takes the place of a Scan; None if it has none."""
    try:
        scan = Scan(node, whole)
        results = [name or f"{node.outputs[0]}/unread {i}" for i, name in enumerate(node.outputs)]
        return _Loop(node.name, [*node.inputs, *scan.outside], results, scan.columns(), scan)
    except ProgramError:
        return None
