"""The gradient of a Pad that reflects, repeats or wraps around, as one node of our own.

`autodiff/rules/movement.py` writes it axis by axis: what stands in the middle of the gradient, plus
slices of what is before and behind it, read backwards or summed, with zeros around them. Which
element goes where is computed from these nodes, and compared with what the kernel does.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..fusion.operators import EDGE, MOST_FOLDED, PAD_GRADIENT, REFLECT, WRAP
from .own_nodes import Node, if_sound
from .patterns import Nodes, Number, Opened

Places: TypeAlias = "npt.NDArray[np.int64]"
MOST_TERMS = 24
"""Nodes that add up the gradient along one axis."""
MOST_AXES = 8
FAR = 2**31 - 1
"""Beyond the end of any axis."""
ANY_LENGTH = 2**40
"""Of an axis, to count what is cut out of it: more than that if it is cut between both ends."""


class Axis(NamedTuple):
    """An axis that was padded."""

    number: int
    before: int
    behind: int
    size: int


class Moved(NamedTuple):
    """What elements of an axis go where: how many there are, and pairs of places."""

    size: int
    to: Places
    source: Places


class Cut(NamedTuple):
    """A Slice along one axis: of what, and where it begins, ends, and goes."""

    of: str
    axis: int
    begin: int
    end: int
    step: int

    def taken(self) -> int:
        """Elements, if both ends are counted from the same one; else 0."""
        count = len(range(*self._of(ANY_LENGTH)))
        return count if count <= MOST_FOLDED else 0

    def places(self, size: int) -> Places:
        """Which elements of so many it takes."""
        return np.arange(*self._of(size), dtype=np.int64)

    def _of(self, size: int) -> tuple[int, int, int]:
        return slice(self.begin, self.end, self.step).indices(size)


def folded_padding(nodes: Nodes, node: Opened) -> Node | None:
    """The node for a gradient whose last sum this is."""
    axes, name, mode = list[Axis](), node.outputs[0], None
    while len(axes) < MOST_AXES:
        fold = Fold(nodes)
        described = fold.read(name, mode)
        if described is None or not _is_next(axes, described[1]):
            break
        (mode, axis), name = described, fold.root
        axes = sorted([*axes, axis])
    if mode is None:
        return None
    numbers = (mode, len(axes), *(number for axis in axes for number in axis))
    return if_sound(Node(PAD_GRADIENT, (name,), node.outputs, numbers))


def _is_next(axes: list[Axis], axis: Axis) -> bool:
    """Whether an axis is beside those that are there already."""
    return not axes or axis.number in (axes[0].number - 1, axes[-1].number + 1)


class Fold:
    """The nodes that add up a gradient along one axis.

    Attributes:
        root: the name of what they all read.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.root = ""
        self._axis, self._length, self._terms = -1, 0, 0

    def read(self, name: str, mode: int | None) -> tuple[int, Axis] | None:
        """Mode and axis of the padding whose gradient this is; None if it is another sum."""
        middle, size = self._middle(name), self._size(name)
        if middle is None or not 1 <= size <= MOST_FOLDED:
            return None
        before, behind = middle.begin, -middle.end if middle.end < 0 else 0
        self.root, self._axis = middle.of, middle.axis
        self._length = before + size + behind
        if not 0 < before + behind <= self._length <= MOST_FOLDED:
            return None
        moved = self._moved(name)
        if moved is None or moved.size != size or moved.source.size != self._length:
            return None
        to = np.full(self._length, -1, np.int64)
        to[moved.source] = moved.to  # each is there once, or one is not there at all
        for number in (REFLECT, EDGE, WRAP) if mode is None else (mode,):
            if np.array_equal(to, _places_of(number, before, behind, size)):
                return number, Axis(self._axis, before, behind, size)
        return None

    def _middle(self, name: str) -> Cut | None:
        """What the first of all operands cuts out of the gradient."""
        node = self._nodes.maker(name)
        for _ in range(MOST_TERMS):
            if node is None or node.operator != "Add":
                break
            node = self._nodes.maker(node.inputs[0])
        cut = self._cut(node)
        is_middle = cut is not None and cut.step == 1 and cut.begin >= 0
        return cut if is_middle and cut is not None and (cut.end < 0 or cut.end >= FAR) else None

    def _size(self, name: str) -> int:
        """How long the result is, as the last Pad says if its operand's length is known; else 0."""
        node = self._nodes.maker(name)
        for _ in range(MOST_TERMS):
            if node is None or node.operator != "Add":
                break
            node = self._nodes.maker(node.inputs[1])
        amounts = self._amounts(node) if node is not None and node.operator == "Pad" else None
        if node is None or amounts is None:
            return 0
        return sum(amounts[1:]) + self._count(node.inputs[0])

    def _count(self, name: str) -> int:
        node = self._nodes.maker(name)
        if node is not None and node.operator in ("Add", "ReduceSum"):
            return 1  # `_moved` looks at it
        cut = self._cut(node)
        return cut.taken() if cut is not None else 0

    def _moved(self, name: str) -> Moved | None:
        """Which elements of the gradient are added up in which place of a value."""
        node = self._nodes.maker(name)
        self._terms += 1
        if node is None or self._terms > MOST_TERMS:
            return None
        if node.operator == "Slice":
            return self._taken(node)
        if node.operator == "Add" and len(node.inputs) == 2:
            parts = [self._moved(operand) for operand in node.inputs]
            left, right = parts
            if left is None or right is None or left.size != right.size:
                return None
            to, source = (np.concatenate(pair) for pair in zip(left[1:], right[1:]))
            return Moved(left.size, to, source)
        return self._padded(node) if node.operator == "Pad" else self._summed(node)

    def _taken(self, node: Opened) -> Moved | None:
        cut = self._cut(node)
        if cut is None or (cut.of, cut.axis) != (self.root, self._axis):
            return None
        if not -self._length <= cut.begin < self._length:  # Python goes another way there
            return None
        source = cut.places(self._length)
        return Moved(source.size, np.arange(source.size), source)

    def _padded(self, node: Opened) -> Moved | None:
        amounts, inner = self._amounts(node), self._moved(node.inputs[0])
        if amounts is None or inner is None or amounts[0] != self._axis:
            return None
        _, before, behind = amounts
        return Moved(before + inner.size + behind, inner.to + before, inner.source)

    def _summed(self, node: Opened) -> Moved | None:
        said = {"keepdims": 1, "noop_with_empty_axes": 0, **node.attributes}
        if node.operator != "ReduceSum" or said != {"keepdims": 1, "noop_with_empty_axes": 0}:
            return None
        axes = self._nodes.constant(node.inputs[1]) if len(node.inputs) == 2 else None
        inner = self._moved(node.inputs[0])
        if axes is None or axes.elements != (self._axis,) or inner is None:
            return None
        return Moved(1, np.zeros_like(inner.to), inner.source)

    def _amounts(self, node: Opened) -> tuple[int, int, int] | None:
        """The only axis that a Pad with zeros puts something around, before and behind it."""
        pads = self._nodes.constant(node.inputs[1])
        fill, named = (*node.inputs[2:], "", "")[:2]
        is_filled = node.attributes.get("mode", "constant") == "constant"
        if pads is None or not is_filled or (fill and self._nodes.number(fill) != 0.0):
            return None
        count = len(pads.elements) // 2
        axes = self._nodes.constant(named) if named else Number(tuple(range(count)))
        if axes is None or len(axes.elements) != count:
            return None
        each = zip(axes.elements, pads.elements[:count], pads.elements[count:])
        used = [axis for axis in each if any(axis[1:])]
        is_one = len(used) == 1 and min(used[0]) >= 0
        return used[0] if is_one else None

    def _cut(self, node: Opened | None) -> Cut | None:
        """A Slice along one axis, counted from the front, one by one."""
        if node is None or node.operator != "Slice" or len(node.inputs) < 4:
            return None
        values = [self._nodes.constant(name) for name in node.inputs[1:]]
        if any(value is None or len(value.elements) != 1 for value in values):
            return None
        begin, end, axis, *steps = (value.elements[0] for value in values if value is not None)
        step = steps[0] if steps else 1
        is_plain = step == 1 or (step == -1 and end < FAR)
        return Cut(node.inputs[0], axis, begin, end, step) if axis >= 0 and is_plain else None


def _places_of(mode: int, before: int, behind: int, size: int) -> Places:
    """Where the kernel adds each element of a padded axis."""
    place = np.arange(-before, size + behind)
    if mode == EDGE:
        return place.clip(0, size - 1)
    if mode == WRAP:
        return place % size
    period = max(2 * (size - 1), 1)
    within = place % period
    return np.where(within < size, within, period - within)
