"""A cross entropy and its gradient without the tensor of log-probabilities.

The loss reads ``GatherElements(LogSoftmax(x), labels)``, and its gradient is
``Exp(LogSoftmax(x)) · share`` with something added at the labels. Where nobody else reads the
log-probabilities, two numbers for each row take their place: see `fusion/cross_entropy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..files.outline import Outline
from ..fusion.operators import CROSS_ENTROPY_GRADIENT, PICK_LOG_SOFTMAX, ROW_STATS
from .own_nodes import Node
from .patterns import Nodes, Opened


class Readers:
    """Which nodes read a value.

    Args:
        outline: of the model.
        nodes: its nodes.
        operands: operands and results of each.
    """

    def __init__(
        self, outline: Outline, nodes: Nodes, operands: Sequence[tuple[list[bytes], list[bytes]]]
    ) -> None:
        self._nodes, self._operands = nodes, operands
        self._results = outline.outputs()
        self._places = dict[bytes, list[int]]()
        for place, (inputs, _) in enumerate(operands):
            for name in inputs:
                self._places.setdefault(name, []).append(place)

    def of(self, name: str) -> list[Opened]:
        """They are, one for each time that it is read; none if one is not ONNX's own, or outside.

        Of a node that reads it in its body, the operands do not have the name.
        """
        if name.encode() in self._results:
            return []
        makers = [
            self._nodes.maker(self._operands[place][1][0].decode())
            for place in self._places.get(name.encode(), [])
        ]
        known = [m for m in makers if m is not None and name in m.inputs]
        return known if len(known) == len(makers) else []


def without_log_probabilities(nodes: Nodes, readers: Readers, softmax: Opened) -> dict[int, Node]:
    """What takes the places of a LogSoftmax and of all that reads from it; nothing if it cannot."""
    (scores,), (name,) = softmax.inputs, softmax.outputs
    stats, axis = f"{name}/stats", (softmax.attributes.get("axis", -1),)
    replacements = {softmax.place: Node(ROW_STATS, (scores,), (stats,), axis)}
    read_by = readers.of(name)
    for reader in read_by:
        if reader.operator == "GatherElements" and reader.inputs[0] == name:
            operands, axis = (scores, stats, reader.inputs[1]), (_axis_of(reader),)
            replacements[reader.place] = Node(PICK_LOG_SOFTMAX, operands, reader.outputs, axis)
            continue
        gradient = _gradient(nodes, readers, reader)
        if gradient is None:
            return {}
        replacements[gradient.place] = gradient.node(scores, stats)
    return replacements if read_by else {}


class _Gradient(NamedTuple):
    """The softmax times `share`, with `added` (or less it) at labels."""

    place: int
    share: str
    labels: str
    added: str
    result: str
    axis: int
    is_less: bool

    def node(self, scores: str, stats: str) -> Node:
        """As one node."""
        operands = (scores, stats, self.labels, self.share, self.added)
        numbers = (self.axis, int(self.is_less))
        return Node(CROSS_ENTROPY_GRADIENT, operands, (self.result,), numbers)


def _gradient(nodes: Nodes, readers: Readers, probabilities: Opened) -> _Gradient | None:
    """What `autodiff.rules.softmax.add_at` writes, from the Exp on; None if it is something else.

    Nobody else may read what is between.
    """
    product = _only_reader(readers, probabilities)
    if probabilities.operator != "Exp" or product is None or product.operator != "Mul":
        return None
    share = [name for name in product.inputs if name != probabilities.outputs[0]]
    readers_of_product = {node.operator: node for node in readers.of(product.outputs[0])}
    picked, result = (readers_of_product.get(f"{verb}Elements") for verb in ("Gather", "Scatter"))
    if picked is None or result is None or len(readers.of(product.outputs[0])) != 2:
        return None
    changed, (labels, axis) = nodes.maker(result.inputs[2]), (picked.inputs[1], _axis_of(picked))
    is_same = result.inputs[1] == labels and _axis_of(result) == axis and len(share) == 1
    is_set = result.attributes.get("reduction", "none") == "none"
    if changed is None or not is_same or not is_set:
        return None
    if _only_reader(readers, picked) != changed or _only_reader(readers, changed) != result:
        return None
    if result.inputs[0] != product.outputs[0] or picked.inputs[0] != product.outputs[0]:
        return None
    added = [name for name in changed.inputs if name != picked.outputs[0]]
    is_less = changed.operator == "Sub" and changed.inputs[0] == picked.outputs[0]
    if len(added) != 1 or not (is_less or changed.operator == "Add"):
        return None
    return _Gradient(result.place, share[0], labels, added[0], result.outputs[0], axis, is_less)


def _only_reader(readers: Readers, node: Opened) -> Opened | None:
    all_readers = readers.of(node.outputs[0])
    return all_readers[0] if len(all_readers) == 1 else None


def _axis_of(node: Opened) -> int:
    return int(node.attributes.get("axis", 0))
