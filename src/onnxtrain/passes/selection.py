"""Rows that nobody reads are not computed: a selection moves towards the inputs.

A classifier reads one position of an encoder's last layer, `y[:, 0]`. Most of that layer works
position by position, so the position can be taken before instead of after it: the feed-forward
part, the query and the normalizations then run for one position instead of all, forward and
backward. Keys and values still see every position.

The selection passes an operator when everything that reads its result selects the same, and when
the operator treats the axis as so many independent cases. Dropout is one of those: it draws for
each element on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph import Names
from ..graph.edit import all_names, remove_nodes, replace_value
from ..graph.nodes import initializer, ints, permutation
from ..graph.tensor import Dim, dims_of
from ..operators import ELEMENTWISE

AT_ITS_PLACE = ELEMENTWISE | {"Dropout", "PRelu"}
"""Each element depends on those at its place, or on a draw of its own: rows can be left out."""


@dataclass(frozen=True)
class Selection:
    """A node that takes one position along an axis, which it keeps or drops."""

    node: ir.Node
    axis: int
    index: int
    drops_axis: bool

    @property
    def source(self) -> ir.Value:
        """What it takes from."""
        source = self.node.inputs[0]
        assert source is not None
        return source

    def is_like(self, other: Selection | None) -> bool:
        """Whether both take the same position of the same graph's values."""
        return other is not None and (self.axis, self.index, self.node.graph) == (
            other.axis,
            other.index,
            other.node.graph,
        )


def select_early(model: ir.Model, keep: Collection[str] = ()) -> ir.Model:
    """Move every selection of one position as far towards the inputs as it can go.

    Args:
        model: is changed; a node that computes less keeps its name.
        keep: names of values that are needed as they are.
    """
    graph = model.graph
    moving = _Moving(graph, Names(all_names(graph)), frozenset(keep))
    for node in reversed(list(graph)):
        moving.move(node)
    moving.merge()
    for node in list(graph):
        moving.end_of_layer(node)
    return model


class _Moving:
    """Selections on their way, and the constants they need."""

    def __init__(self, graph: ir.Graph, names: Names, keep: frozenset[str]) -> None:
        self.graph, self.names, self.keep = graph, names, keep
        self.constants: dict[tuple[int, ...], ir.Value] = {}
        self.selections: list[Selection] = []

    def move(self, node: ir.Node) -> None:
        """Let a selection pass the operators before it, one after the other."""
        waiting = [node]
        while waiting:
            candidate = selection(waiting.pop())
            if candidate is not None and candidate.node.graph is self.graph:
                waiting.extend(self._pass(candidate))

    def _pass(self, moving: Selection) -> list[ir.Node]:
        """Let a selection pass one operator; the selections before it that this makes."""
        source = moving.source
        maker = source.producer()
        if maker is None or maker.graph is not self.graph or source is not maker.outputs[0]:
            return []
        if any(self._is_needed(o) for o in maker.outputs) or any(
            o.uses() for o in maker.outputs[1:]
        ):
            return []
        same = [selection(user) for user, _ in source.uses()]
        if not all(moving.is_like(s) for s in same):
            return []
        results = [user.outputs[0] for user, _ in source.uses()]
        if any(v.name in self.keep and not v.is_graph_output() for v in results):
            return []
        operands = _operands(maker, moving.axis)
        if operands is None:
            return []
        earlier = [self._select(maker, i, axis, moving.index) for i, axis in operands]
        if maker.op_type == "Reshape":
            self._keep_front(maker, moving.axis)
        for output in maker.outputs:
            _set_dim(output, moving.axis)
        for passed in same:
            assert passed is not None
            self._take_over(passed, source)
        return earlier

    def _is_needed(self, value: ir.Value) -> bool:
        return value.is_graph_output() or value.name in self.keep

    def _select(self, node: ir.Node, operand: int, axis: int, index: int) -> ir.Node:
        """Select from an operand of a node."""
        source = node.inputs[operand]
        assert source is not None
        name = self.names.fresh(f"{source.name}/select")
        gather = ir.Node(
            "", "Gather", [source, self._constant([index])], [ir.AttrInt64("axis", axis)], name=name
        )
        result = gather.outputs[0]
        result.name, result.type = self.names.fresh(f"{name}_out"), source.type
        result.shape = None if source.shape is None else ir.Shape(source.shape.dims)
        _set_dim(result, axis)
        self.graph.insert_before(node, gather)
        node.replace_input_with(operand, result)
        self.selections.append(Selection(gather, axis, index, drops_axis=False))
        return gather

    def _take_over(self, taken: Selection, selected: ir.Value) -> None:
        """Let what read a selection read the value that is selected now."""
        result = taken.node.outputs[0]
        if taken.drops_axis:
            new = self._with_axes("Squeeze", selected, taken.axis, taken.node)
        else:
            new = selected
        replace_value(self.graph, result, new)
        remove_nodes(self.graph, [taken.node])

    def _with_axes(self, kind: str, source: ir.Value, axis: int, instead: ir.Node) -> ir.Value:
        """A Squeeze or Unsqueeze of a value, to be read instead of a node's result."""
        name = self.names.fresh(f"{instead.name}/{kind.lower()}")
        reshaping = ir.Node("", kind, [source, self._constant([axis])], name=name)
        new, result = reshaping.outputs[0], instead.outputs[0]
        new.name, new.type, new.shape = f"{name}_out", result.type, result.shape
        self.graph.insert_before(instead, reshaping)
        return new

    def _keep_front(self, reshape: ir.Node, axis: int) -> None:
        """The front axes as they come (zeros say so), the others by number."""
        dims = dims_of(reshape.outputs[0])
        assert dims is not None
        target = [0] * (axis + 1) + [d for d in dims[axis + 1 :] if isinstance(d, int)]
        reshape.replace_input_with(1, self._constant(target))

    def _constant(self, numbers: list[int]) -> ir.Value:
        key = tuple(numbers)
        if key not in self.constants:
            name = self.names.fresh("select/" + "_".join(map(str, numbers)))
            self.constants[key] = initializer(self.graph, name, np.array(numbers, np.int64))
        return self.constants[key]

    def end_of_layer(self, node: ir.Node) -> None:
        """Where the last step of a recurrent layer is taken, take its final state.

        Then the gradient comes in at the end of the layer, and not as a sequence of zeros.
        """
        last = selection(node)
        layer = _layer_that_ends(last) if last is not None else None
        if last is None or layer is None or node.outputs[0].name in self.keep:
            return
        if len(layer.outputs) < 2:
            layer.resize_outputs(2)
        state, result = layer.outputs[1], node.outputs[0]
        if not state.name:
            state.name, state.type = self.names.fresh(f"{layer.name}_h"), result.type
            dims = dims_of(layer.outputs[0])
            state.shape = None if dims is None else ir.Shape(dims[1:])
        has_directions = last.source.producer() is layer
        if last.drops_axis == has_directions:
            new = state
        else:
            kind = "Squeeze" if last.drops_axis else "Unsqueeze"
            new = self._with_axes(kind, state, 0, node)
        replace_value(self.graph, result, new)
        remove_nodes(self.graph, [node])

    def merge(self) -> None:
        """Of the selections that went no further, those of the same are one."""
        order = {node: i for i, node in enumerate(self.graph)}
        first: dict[tuple[ir.Value, int, int], ir.Node] = {}
        left = [s for s in self.selections if s.node.graph is self.graph]
        for one in sorted(left, key=lambda s: order[s.node]):
            node = first.setdefault((one.source, one.axis, one.index), one.node)
            if node is not one.node:
                one.node.outputs[0].replace_all_uses_with(node.outputs[0])
                remove_nodes(self.graph, [one.node])


def _layer_that_ends(last_step: Selection) -> ir.Node | None:
    """The recurrent layer of which a selection takes the step that was computed last."""
    node, axis = last_step.source.producer(), last_step.axis
    if node is not None and node.op_type == "Squeeze" and len(node.inputs) > 1:
        axes = ints(node.inputs[1])
        above = node.inputs[0]
        node = above.producer() if above is not None and axes == [1] else None
    if node is None or node.op_type not in ("LSTM", "GRU", "RNN") or node.domain or axis != 0:
        return None
    has_lengths = len(node.inputs) > 4 and node.inputs[4] is not None
    by_batch = node.attributes.get_int("layout", 0) == 1
    if has_lengths or by_batch:
        return None
    steps = (dims_of(node.outputs[0]) or (None,))[0]
    index = last_step.index
    if index < 0 and isinstance(steps, int):
        index += steps
    last = {"forward": steps - 1 if isinstance(steps, int) else -1, "reverse": 0}
    return node if index == last.get(node.attributes.get_string("direction", "forward")) else None


def _set_dim(value: ir.Value, axis: int) -> None:
    """One position is left along an axis."""
    if value.shape is not None and axis < len(value.shape):
        dims = list(value.shape.dims)
        dims[axis] = 1
        value.shape = ir.Shape(dims)


def selection(node: ir.Node) -> Selection | None:
    """What a Gather or Slice takes, if it is one constant position."""
    source = node.inputs[0] if node.inputs else None
    dims = dims_of(source) if source is not None and not node.domain else None
    if dims is None or not dims:
        return None
    if node.op_type == "Gather":
        chosen, axis = node.inputs[1], node.attributes.get_int("axis", 0) % len(dims)
        rank = len(chosen.shape) if chosen is not None and chosen.shape is not None else 2
        index = ints(chosen) if rank < 2 else None
        if index is None or len(index) != 1:
            return None
        return Selection(node, axis, index[0], drops_axis=rank == 0)
    if node.op_type == "Slice":
        return _slice(node, dims)
    return None


def _slice(node: ir.Node, dims: Sequence[Dim]) -> Selection | None:
    operands = [ints(v) for v in node.inputs[1:]]
    if len(operands) < 3 or any(o is None or len(o) != 1 for o in operands):
        return None
    start, end, axis, step = ([o[0] for o in operands if o is not None] + [1])[:4]
    last = start == -1 and end >= 2**31 - 1
    if step != 1 or not (end == start + 1 != 0 or last):
        return None
    size = dims[axis]
    if not isinstance(size, int) or not -size <= start < size:
        return None  # a Slice beyond the end is empty, a Gather an error
    return Selection(node, axis % len(dims), start, drops_axis=False)


def _operands(node: ir.Node, axis: int) -> list[tuple[int, int]] | None:
    """Which operands to select from, along which axis; None where a selection cannot pass."""
    dims = dims_of(node.outputs[0])
    if dims is None or axis >= len(dims) or dims[axis] == 1 or node.domain:
        return None
    if node.op_type in AT_ITS_PLACE:
        return _broadcast(node.inputs, dims, axis)
    way = WAYS.get(node.op_type)
    return way(node, dims, axis) if way is not None else None


def _broadcast(
    inputs: Sequence[ir.Value | None], dims: Sequence[Dim], axis: int, behind: int = 0
) -> list[tuple[int, int]] | None:
    """Operands that have the axis; those that are repeated along it stay as they are.

    Args:
        inputs: operands, aligned at their last axes.
        dims: of the result.
        axis: of the result.
        behind: how many last axes are not broadcast, as in a product.
    """
    operands = []
    for i, value in enumerate(inputs):
        shape = dims_of(value) if value is not None else ()
        if shape is None:
            return None
        own = axis - len(dims) + len(shape)
        if own < 0 or own >= len(shape) - behind or shape[own] == 1:
            continue
        if shape[own] is None or shape[own] != dims[axis]:
            return None  # it may be repeated or not
        operands.append((i, own))
    return operands


def _product(node: ir.Node, dims: Sequence[Dim], axis: int) -> list[tuple[int, int]] | None:
    """Rows come from the left operand, cases of a batch from both; columns do not pass."""
    ranks = [len(s) if v is not None and (s := dims_of(v)) else 0 for v in node.inputs]
    if min(ranks) < 2 or axis == len(dims) - 1:
        return None
    if axis == len(dims) - 2:
        return [(0, ranks[0] - 2)]
    return _broadcast(node.inputs, dims, axis, behind=2)


def _normalization(node: ir.Node, dims: Sequence[Dim], axis: int) -> list[tuple[int, int]] | None:
    first = node.attributes.get_int("axis", -1) % len(dims)
    return [(0, axis)] if axis < first else None


def _along_another(node: ir.Node, dims: Sequence[Dim], axis: int) -> list[tuple[int, int]] | None:
    return [(0, axis)] if node.attributes.get_int("axis", -1) % len(dims) != axis else None


def _transposed(node: ir.Node, dims: Sequence[Dim], axis: int) -> list[tuple[int, int]] | None:
    order = permutation(node) or list(reversed(range(len(dims))))
    return [(0, order[axis])]


def _reshaped(node: ir.Node, dims: Sequence[Dim], axis: int) -> list[tuple[int, int]] | None:
    """Only axes behind the selected one are split or merged."""
    before = dims_of(node.inputs[0]) if node.inputs[0] is not None else None
    if before is None or len(before) <= axis or "allowzero" in node.attributes:
        return None
    front = dims[: axis + 1]
    if None in front or tuple(front) != tuple(before[: axis + 1]):
        return None
    return [(0, axis)] if all(isinstance(d, int) for d in dims[axis + 1 :]) else None


WAYS: dict[str, Callable[[ir.Node, Sequence[Dim], int], list[tuple[int, int]] | None]] = {
    "LayerNormalization": _normalization,
    "LogSoftmax": _along_another,
    "MatMul": _product,
    "Reshape": _reshaped,
    "Softmax": _along_another,
    "Transpose": _transposed,
}
