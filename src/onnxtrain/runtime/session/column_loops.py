"""Marked Scans whose columns have nothing to do with each other become one node of our own each.

Recurrent layers in columns are such (`autodiff/rules/recurrent.py`), and so are their gradients.
Whoever wrote them has marked them, since a body does not say that its values are columns. What a
Scan computes is read from its body, and one that does anything else stays as it is; if the values
are not what the mark says, the kernel refuses them. The file stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...errors import ModelFileError
from ...operators import COLUMN_LOOP as MARK
from ..files.onnxfile import Node
from ..files.outline import Outline
from ..files.wire import Message
from ..fusion.columns import TURNED, Columns, Each
from ..fusion.library import is_available
from ..fusion.operators import COLUMN_LOOP
from ..fusion.program import ProgramError, assemble
from .edits import LONGEST, changed, connections_of, nodes_mentioning, with_bodies
from .fusion import COMPARING
from .scans import Inner, Scan, attributes_of

DOCUMENTATION, TEXT = 6, 3
"""A field of a node, and the type of an attribute."""


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
    for place in nodes_mentioning(outline, MARK.encode()):
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
        idle = _Neighbours(outline, whole, list(loops.values())).taken_in()
        changes |= {place: [] for place in idle}
        changes |= {place: [loop.encode()] for place, loop in loops.items()}
    return changes


@dataclass(eq=False)
class _Loop:
    """A node of ours: its name, operands, and results, the states first."""

    name: str
    operands: list[str]
    results: list[str]
    columns: Columns

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

    def pull(self, nodes: Sequence[Inner], outputs: Sequence[str]) -> None:
        """Compute in every step what nodes compute of stacks, and return some of their results.

        A `ProgramError` if there is no room for that; nothing is changed then.
        """
        before, values = self.columns, dict(zip(self.stacks, self.columns.stacked))
        results = {node.results[0] for node in nodes}
        operands = dict.fromkeys(n for node in nodes for n in node.operands if n not in results)
        program = assemble([step for n in nodes for step in n.steps], list(operands), outputs)
        each = Each(program, tuple(values[name] for name in operands))
        first, count = before.values, len(self.results)
        self.columns = before._replace(code=(*before.code, each))
        for number, name in enumerate(outputs):
            self.add(name, first + number, before.ways_out[0])
        try:
            self.columns.check()
        except ProgramError:
            self.columns, self.results = before, self.results[:count]
            raise


class _Neighbours:
    """Nodes whose work loops do while they write their stacks.

    What is computed of stacks alone, element by element, is computed in the step: a layer's factors
    of the gradient were half of what was read and written. A Transpose is written as such.
    """

    def __init__(self, outline: Outline, whole: Outline, loops: Sequence[_Loop]) -> None:
        self._outline, self._whole, self._loops = outline, whole, loops
        self._operands, _, self._readers = connections_of(outline)
        self._results = {name.decode() for name in outline.outputs()}
        self._loop_of = {name: loop for loop in loops for name in loop.stacks}

    def taken_in(self) -> list[int]:
        """Places of the nodes, whose work the loops have now."""
        places = self._elementwise() + self._transposes()
        for loop in self._loops:
            loop.keep({name for name in loop.stacks if self._is_read(name)})
        return places

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
            loop.pull(list(nodes.values()), [name for name in results if self._is_read(name)])
        except ProgramError:
            for name in reads:
                self._readers[name] += 1
            return []
        self._loop_of |= dict.fromkeys(results, loop)
        return list(nodes)

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
        return _Loop(node.name, [*node.inputs, *scan.outside], results, scan.columns())
    except ProgramError:
        return None
