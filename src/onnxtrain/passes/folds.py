"""The gradient of a Pad that reflects, repeats or wraps around: for a kernel.

It is written axis by axis, the middle of the gradient and slices of its ends with zeros around
them, each a pass over memory. All of these nodes are marked, the last sum for the kernel
(`runtime/fusion/folding.py`); a session looks at every element's way (`session/folds.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..graph.nodes import ints, producer_of, scalar
from ..graph.slices import taken
from ..operators import INSIDE, KERNEL
from .sizes import elements_of

ELEMENTS = 8192
"""As in `kernels.py`."""
MOST_TERMS = 24
"""Nodes that add up the gradient along one axis: 19, if four elements at each end are summed up."""
ANY_LENGTH = 2**40
"""Of an axis, to count what is cut off its ends."""


@dataclass
class Fold:
    """Nodes that add up a gradient along one axis.

    Attributes:
        nodes: the last sum, and what is before it.
        cut: begin, end and step of each Slice; the first one is the middle.
        of: what they are of, and along which axis.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    cut: list[tuple[int, int, int]] = field(default_factory=list)
    of: list[tuple[ir.Value | None, int]] = field(default_factory=list)

    def add(self, value: ir.Value | None) -> bool:
        """Whether a value is made so; what makes it is a part then."""
        node = producer_of(value, "Add", "Pad", "ReduceSum", "Slice")
        if node is None or node.doc_string or len(self.nodes) == MOST_TERMS:
            return False
        self.nodes.append(node)
        if node.op_type == "Slice":
            return self._slice(node)
        if node.op_type == "Add":
            return self.add(node.inputs[0]) and self.add(node.inputs[1])
        if node.op_type == "Pad" and not _puts_zeros(node):
            return False
        return self.add(node.inputs[0])

    def _slice(self, node: ir.Node) -> bool:
        values = [ints(value) for value in node.inputs[1:]]
        if len(values) < 3 or any(value is None or len(value) != 1 for value in values):
            return False
        begin, end, axis, *steps = (value[0] for value in values if value)
        self.cut.append((begin, end, steps[0] if steps else 1))
        self.of.append((node.inputs[0], axis))
        return True

    def is_whole(self) -> bool:
        """Whether slices of one axis take as much of its ends as the middle leaves out."""
        (begin, end, step), *others = self.cut
        (root, axis), *more = self.of
        if (step, any(value is not root or a != axis for value, a in more)) != (1, False):
            return False
        counts = [len(taken(ANY_LENGTH, *cut)) for cut in others]
        left_out = begin + (-end if end < 0 else 0)
        return begin >= 0 and axis >= 0 and 0 < left_out == sum(counts)


def mark_folds(model: ir.Model) -> None:
    """Mark the nodes of all such gradients that are large."""
    for node in reversed(model.graph):
        folds = _folds(node) if node.op_type == "Add" and not node.domain else []
        if not folds or not _is_large(folds):
            continue
        for part in (part for fold in folds for part in fold.nodes):
            part.doc_string = INSIDE
        node.doc_string = KERNEL


def _folds(node: ir.Node) -> list[Fold]:
    """The folds along axes side by side that end with a sum, the last one first."""
    folds, value, axes = list[Fold](), node.outputs[0], set[int]()
    while True:
        fold = Fold()
        if not fold.add(value) or fold.nodes[0].op_type != "Add" or not fold.is_whole():
            return folds
        inside = [*(n for f in folds for n in f.nodes), *fold.nodes]
        root, axis = fold.of[0]
        is_beside = not axes or (axis not in axes and {axis - 1, axis + 1} & axes)
        if not is_beside or not _is_alone(inside) or root is None:
            return folds
        folds.append(fold)
        axes.add(axis)
        value = root


def _puts_zeros(node: ir.Node) -> bool:
    fill = (*node.inputs, None)[2]
    is_constant = ints(node.inputs[1]) is not None
    is_zero = fill is None or scalar(fill) == 0
    return is_constant and is_zero and node.attributes.get_string("mode", "constant") == "constant"


def _is_alone(nodes: Sequence[ir.Node]) -> bool:
    """Whether nobody else reads what is inside, or it is the last."""
    inner = {id(node) for node in nodes}
    results = [out for node in nodes[1:] for out in node.outputs]
    return not any(
        out.is_graph_output() or any(id(user) not in inner for user, _ in out.uses())
        for out in results
    )


def _is_large(folds: Sequence[Fold]) -> bool:
    """Whether the gradient is of single precision, and surely or probably large."""
    root, result = folds[-1].of[0][0], folds[0].nodes[0].outputs[0]
    values = [value for value in (root, result) if value is not None]
    is_float = all(value.dtype in (ir.DataType.FLOAT, None) for value in values)
    return is_float and any(
        value.shape is not None and elements_of(value.shape) >= ELEMENTS for value in values
    )
