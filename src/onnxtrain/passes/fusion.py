"""Marks elementwise nodes that a session may compute together, in one pass over memory.

What is marked stays as it is: standard operators, in files and on devices. A session on a desktop
(`runtime/session/fusion.py`) finds the marks, and has a kernel of our own for a group.

A group takes in nodes of its shape that read from it, as long as all of it can be computed in one
place. Sums, means and maxima along its last axes may be in it, since a row fits into a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from ..errors import ModelError
from ..graph.infer import infer_shapes
from ..graph.subgraphs import subgraphs, used_values
from ..operators import ACTIVATED, FUSABLE, FUSABLE_POWERS, FUSED, OUTSIDE
from .column_loops import choose_column_loops
from .kernels import mark_for_kernels
from .late_groups import NONE_APART, Apart, compute_late
from .sizes import elements_of
from .transposed import has_bias, mark_transposed

Shape: TypeAlias = "tuple[int | str, ...]"
REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
NORMALIZATION = "BatchNormalization"
STEPS = frozenset({"Greater", "GreaterOrEqual", "HardSigmoid", "Less", "LessOrEqual"})
SOFTMAX = "Softmax"
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.BOOL})
MOST_NODES, MOST_OPERANDS, MOST_AXES = 60, 20, 8
"""What a kernel has room for."""
ELEMENTS = 8192
"""A tensor from which on a pass over it counts for more than calling a kernel."""
SLOW = frozenset(
    {
        "Acosh",
        "Asinh",
        "Atanh",
        "Cosh",
        "Elu",
        "Erf",
        "Floor",
        "HardSwish",
        "Log",
        "Reciprocal",
        "Sign",
        "Sinh",
        "Softmax",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Where",
    }
)
"""Operators that take onnxruntime 1.8 to 27 times as long as our kernel, also alone: a million
elements on one thread, onnxruntime 1.31.1 on AVX-512. A Where by itself takes it three times as
long: the two of `where`'s gradient, of a million numbers, made 2.5 → 1.1 ms of both directions."""
LONGEST_REPEATED, LONGEST_SPREAD = 32, 8
"""Elements of a row that is the same again and again, and of one that is a single number of an
operand, up to which our kernel is faster, also alone. On one thread 131,072 products of rows of two
take onnxruntime 0.4 ms both ways and ours 0.08 and 0.06; 640,000 of rows of 16 take it 0.29 where
the row is the same and ours 0.06, and 0.26 and 0.29 where it is a number."""
ELEMENTS_IN_LOOPS = 1024
"""The same in the body of a loop, where calling kernels counts for more."""
LONG_ROW = 8
"""Elements of a row from which on numbers for each row are better read as such."""
NORMALIZED_ROW = 4
"""The same of a BatchNormalization, which is a pass over memory of its own otherwise: 16 images of
512 channels of four pixels, both directions on two threads, took 0.58 instead of 0.99 ms."""
LONGEST_ROW = 65_536
"""Elements of a row up to which rows are reduced here: it is read several times, and by one thread.
Longer ones are in no cache, and there are few of them."""


@dataclass(eq=False)
class _Group:
    """Nodes of one shape, or of that shape with last axes of size 1.

    Attributes:
        shape: of the results.
        reduced: how many of the last axes are reduced; 0 if none is.
        nodes: its members.
        place: where all of it is computed, in the order of the graph.
    """

    shape: Shape
    reduced: int = 0
    nodes: list[ir.Node] = field(default_factory=list)
    place: float = 0.0


def mark_where_shapes_are_inferred(model: ir.Model, gradients: Collection[str] = ()) -> ir.Model:
    """Mark a model of whose gradients nobody knows the shapes yet; it knows no more of them then.

    Kernels of single nodes are chosen again, since shapes say what is large.
    What onnxruntime infers itself would only make files longer. Where outputs are named as
    `gradients`, groups of the forward pass are computed again for them if less has to wait then.
    """
    known = {v.name for v in _values(model.graph) if v.shape is not None}
    try:
        inferred = infer_shapes(model, follows_long_vectors=False)
    except ModelError:  # onnxruntime says what is wrong with it, if anything is
        return model
    mark_transposed(inferred)
    choose_column_loops(inferred.graph)
    worth = [g.nodes for g in _Grouping(inferred.graph).groups if _pays(g, ELEMENTS)]
    apart = compute_late(inferred.graph, worth, gradients)
    mark_for_kernels(inferred)
    mark_fusable(inferred, apart)
    for value in _values(inferred.graph):
        if value.name not in known:
            value.shape = None
    return inferred


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """What the nodes of a graph make, but for its outputs."""
    return (v for node in graph for v in node.outputs if not v.is_graph_output())


def mark_fusable(model: ir.Model, apart: Apart = NONE_APART) -> ir.Model:
    """Mark the nodes of all groups that are worth it; marks of another time are taken away.

    The nodes of a group are put side by side. Some may have to be `apart`.
    """
    _mark_graph(model.graph, ELEMENTS, apart)
    return model


def _mark_graph(graph: ir.Graph, elements: int, apart: Apart = NONE_APART) -> None:
    for node in graph:
        if (node.doc_string or "").startswith((FUSED, ACTIVATED)):
            node.doc_string = None
        for body in subgraphs(node):
            _mark_graph(body, elements if node.op_type == "If" else ELEMENTS_IN_LOOPS)
    grouping = _Grouping(graph, apart)
    worth = [group for group in grouping.groups if _pays(group, elements)]
    if not worth:
        return
    nodes = list(graph)
    ordered = sorted(nodes, key=grouping.place)  # nodes of one place stay in their order
    if ordered != nodes:
        graph.remove(nodes)
        graph.extend(ordered)
    for number, group in enumerate(worth, start=1):
        _mark(group, number)


class _Grouping:
    """Grows groups along the order of the graph.

    A node has a place, which is its number, and all nodes of a group have the place of the group.
    Whoever reads a value has a later place than whoever makes it, so that there is no circle. A
    group that nobody else reads from moves along to the node that it takes in. One that somebody
    has read from stays before that reader, and takes in what needs nothing that is made later.

    A BatchNormalization begins a group, since its numbers come from all of an image. What is 0 on
    one side of a number and 1 on the other waits for the first that reads it, and is computed
    there: the mask of a Relu is for the gradient, which has to read less then.
    """

    def __init__(self, graph: ir.Graph, apart: Apart = NONE_APART) -> None:
        self.groups, self._apart = list[_Group](), apart
        self._number = {node: number for number, node in enumerate(graph)}
        self._group_of = dict[ir.Node, _Group]()
        self._readers = dict[ir.Node, list[ir.Node]]()
        for node in graph:
            self._take_in(node)
        self.groups = [group for group in self.groups if group.nodes]

    def place(self, node: ir.Node) -> float:
        """Where a node is computed."""
        group = self._group_of.get(node)
        return self._number[node] if group is None else group.place

    def _take_in(self, node: ir.Node) -> None:
        makers = _makers(node)
        waiting = [maker for maker in makers if self._waits(maker)]
        others = [m for w in waiting for m in _makers(w)]
        groups = (self._group_of.get(maker) for maker in (*waiting, *makers, *others))
        sources = [group for group in dict.fromkeys(groups) if group is not None]
        shape = _shape_in_group(node, sources)
        if shape is not None:
            begins = node.op_type == NORMALIZATION or _is_step(node)
            joined = [g for g in sources if g.shape == shape and not begins]
            self._join(node, joined, _Group(shape, _reduced_axes(node)))
        for maker in makers:
            self._readers.setdefault(maker, []).append(node)

    def _waits(self, node: ir.Node) -> bool:
        """Whether a node is in no group yet but its own, until somebody reads it."""
        group = self._group_of.get(node)
        return group is not None and group.nodes == [node] and _is_step(node)

    def _join(self, node: ir.Node, sources: list[_Group], alone: _Group) -> None:
        """Put a node into as many of the groups as possible, which become one; or into its own."""
        choices = [sources[:count] for count in range(len(sources), 0, -1)]
        choices += [[group] for group in reversed(sources[1:])]
        for joined in choices:
            nodes = [*(n for g in joined for n in g.nodes), node]
            reduced = {g.reduced for g in (*joined, alone)} - {0}
            fits = len(nodes) <= MOST_NODES and len(reduced) <= 1 and not _reads_dropped(nodes)
            fits = fits and (not reduced or _have_rows(nodes, max(reduced)))
            fits = fits and self._apart.may_join(nodes)
            place = self._place_for(nodes) if fits else None
            if place is not None:
                joined[0].reduced = max(reduced, default=0)
                break
        else:
            nodes, place = [node], float(self._number[node])
            joined = [alone]
            self.groups.append(alone)
        assert place is not None
        for group in joined[1:]:
            group.nodes = []
        joined[0].nodes, joined[0].place = nodes, place
        self._group_of.update(dict.fromkeys(nodes, joined[0]))

    def _place_for(self, nodes: list[ir.Node]) -> float | None:
        """Behind all that some nodes read, and before all that reads from them; None if nowhere."""
        members = set(nodes)
        last = self._number[nodes[-1]]
        before = max(
            (self.place(m) for n in nodes for m in _makers(n) if m not in members), default=-1.0
        )
        readers = (r for n in nodes for r in self._readers.get(n, ()) if r not in members)
        behind = min((self.place(r) for r in readers), default=last + 1.0)
        if behind > last:
            return float(last) if before < last else None
        middle = (before + behind) / 2
        return middle if before < middle < behind else None


def _makers(node: ir.Node) -> list[ir.Node]:
    """Nodes that make what a node reads, also inside of its bodies."""
    producers = (value.producer() for value in used_values([node]))
    return [p for p in dict.fromkeys(producers) if p is not None and p.graph is node.graph]


def _shape_in_group(node: ir.Node, sources: list[_Group]) -> Shape | None:
    """The shape of the group that a node can be in; None if it can be in none."""
    if not _is_fusable(node):
        return None
    if node.op_type in REDUCTIONS:
        return _shape(node.inputs[0])
    shape = _shape(node.outputs[0])
    for source in sources if node.op_type != SOFTMAX else ():
        outer_axes = len(source.shape) - source.reduced
        if source.reduced and shape == (*source.shape[:outer_axes], *[1] * source.reduced):
            return source.shape if _reads_numbers(node, source) else shape
    return shape


def _reads_dropped(nodes: list[ir.Node]) -> bool:
    """Whether a node reads sums of rows that have lost their axes: those are no numbers of rows."""
    members = set(nodes)
    dropped = (n for n in nodes if n.op_type in REDUCTIONS and not _keeps_axes(n))
    return any(user in members for n in dropped for user, _ in n.outputs[0].uses())


def _is_step(node: ir.Node) -> bool:
    """Whether a node only tells on which side of constant numbers those of one tensor are."""
    read = [v for v in node.inputs if v is not None and not v.is_initializer()]
    return node.op_type in STEPS and len(read) == 1


def _have_rows(nodes: list[ir.Node], reduced: int) -> bool:
    """Whether rows that are reduced are those that are normalized with the same numbers."""
    return all(reduced == _channel_axes(n) for n in nodes if n.op_type == NORMALIZATION)


def _channel_axes(node: ir.Node) -> int:
    """How many axes are behind that of the channels."""
    return len(_shape(node.outputs[0]) or ()) - 2


def _keeps_axes(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("keepdims", 1))


def _reads_numbers(node: ir.Node, group: _Group) -> bool:
    """Whether all that a node reads from outside of a group are numbers.

    Of truth values, one for each row is not told from one for each element.
    """
    outside = (v for v in node.inputs if v is not None and v.producer() not in group.nodes)
    return all(v.dtype == ir.DataType.FLOAT for v in outside)


def _shape(value: ir.Value | None) -> Shape | None:
    """Sizes and names of the axes; None if one is not known."""
    if value is None or value.shape is None:
        return None
    sizes = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return None if None in sizes else sizes  # type: ignore[return-value]


def _is_fusable(node: ir.Node) -> bool:
    if node.domain or node.op_type not in FUSABLE or node.doc_string or len(node.outputs) != 1:
        return False
    operands = node.inputs[:1] if node.op_type in (*REDUCTIONS, "Pow") else node.inputs
    values = [*(v for v in operands if v is not None), node.outputs[0]]
    shapes = [_shape(v) for v in values]
    if any(s is None or len(s) > MOST_AXES for s in shapes):
        return False
    if any(v.dtype not in TYPES for v in values) or len(values) > MOST_OPERANDS:
        return False
    if node.op_type in (*REDUCTIONS, SOFTMAX):
        return _reduced_axes(node) > 0
    if node.op_type == "Pow":
        return _number(node.inputs[1]) in FUSABLE_POWERS
    if node.op_type == NORMALIZATION:
        return _is_normalization(node)
    return not _is_bias(node)


def _is_normalization(node: ir.Node) -> bool:
    """Whether a BatchNormalization is a product and a sum of long rows, each with two numbers.

    One whose numbers are all constant goes into the convolution before it.
    """
    operands = node.inputs[1:]
    is_constant = all(v is not None and v.is_initializer() for v in operands)
    is_trained = node.attributes.get_int("training_mode", 0) == 1
    rows = (_shape(node.inputs[0]) or ())[2:]
    are_vectors = all(len(_shape(v) or ()) == 1 for v in operands)
    is_long = len(rows) > 0 and elements_of(rows) >= NORMALIZED_ROW
    return is_long and are_vectors and not is_constant and not is_trained


def _reduced_axes(node: ir.Node) -> int:
    """How many axes a reduction is of, or a softmax, if those are the last ones; else 0."""
    if node.op_type == SOFTMAX:
        return int(_is_softmax_of_rows(node))
    shape = _shape(node.inputs[0]) if node.op_type in REDUCTIONS else None
    if not shape or node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.FLOAT:
        return 0
    axes = list(node.attributes.get_ints("axes", ()))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = node.inputs[1].const_value if node.inputs[1].is_initializer() else None
        axes = [] if constant is None else [int(a) for a in constant.numpy().ravel()]
    rank = len(shape)
    is_last = sorted(a % rank for a in axes) == list(range(rank - len(axes), rank))
    is_dropped = not _keeps_axes(node) and len(node.inputs) < 2  # it takes an operand to drop them
    row = elements_of(shape[rank - len(axes) :])
    fits = is_last and 0 < len(axes) < rank and row <= LONGEST_ROW
    return len(axes) if fits and not is_dropped else 0


def _is_softmax_of_rows(node: ir.Node) -> bool:
    """Whether it is along the last axis, and has a gradient.

    One that is read once may be of an attention that onnxruntime has a kernel for.
    """
    shape, result = _shape(node.inputs[0]), node.outputs[0]
    if not shape or len(shape) < 2 or elements_of(shape[-1:]) > LONGEST_ROW:
        return False
    is_last = node.attributes.get_int("axis", -1) in (-1, len(shape) - 1)
    return is_last and len(result.uses()) > 1


def _number(value: ir.Value | None) -> float | None:
    """A constant of one element."""
    constant = value.const_value if value is not None and value.is_initializer() else None
    if constant is None or constant.dtype != ir.DataType.FLOAT or len(constant.shape):
        return None
    return float(constant.numpy())


def _is_bias(node: ir.Node) -> bool:
    """Whether onnxruntime adds what an Add does while it computes the product before."""
    producers = (v.producer() for v in node.inputs if v is not None)
    return node.op_type == "Add" and any(p is not None and has_bias(p) for p in producers)


def _pays(group: _Group, least: int) -> bool:
    elements = elements_of(group.shape)
    is_alone = len(group.nodes) < 2 and group.nodes[0].op_type not in SLOW
    is_alone = is_alone and not any(_is_repeated(v, group.shape) for v in group.nodes[0].inputs)
    if is_alone or elements < least:
        return False
    members = set(group.nodes)
    inputs = {
        v for n in group.nodes for v in n.inputs if v is not None and v.producer() not in members
    }
    outputs = [n for n in group.nodes if _is_read_outside(n, members)]
    return bool(outputs) and len(inputs) <= MOST_OPERANDS and len(outputs) <= MOST_OPERANDS


def _is_repeated(value: ir.Value | None, shape: Shape) -> bool:
    """Whether an operand is repeated so that onnxruntime begins anew after a few elements."""
    known = _shape(value)
    if known is None or all(size == 1 for size in known):
        return bool(known) and shape[-1] == 1  # then it begins anew for each element
    known = (*[1] * (len(shape) - len(known)), *known)
    alike = [size == whole for size, whole in zip(known, shape, strict=True)]
    row, is_same, repeats = 1, None, False
    for size, is_whole in zip(reversed(shape), reversed(alike)):
        if size == 1:
            continue
        is_same = is_whole if is_same is None else is_same
        if is_whole != is_same:
            repeats = True
            break
        row *= elements_of((size,))
    return repeats and row <= (LONGEST_REPEATED if is_same else LONGEST_SPREAD)


def _is_read_outside(node: ir.Node, members: set[ir.Node]) -> bool:
    result = node.outputs[0]
    return result.is_graph_output() or any(user not in members for user, _ in result.uses())


def _mark(group: _Group, number: int) -> None:
    members = set(group.nodes)
    row_axes = _row_axes(group, members)
    for node in group.nodes:
        hints = "".join(_hint(v, group.shape, members, row_axes) for v in node.inputs)
        if node.op_type == NORMALIZATION:
            hints = hints[0] + "c" * len(node.inputs[1:])
        counts = (number, len(group.nodes), len(group.shape), max(row_axes, 1))
        words = [FUSED, *map(str, counts), hints]
        if _is_read_outside(node, members):
            words.append(OUTSIDE)
        node.doc_string = " ".join(words)


def _row_axes(group: _Group, members: set[ir.Node]) -> int:
    """How many of the last axes make a row: those along which an operand is the same.

    Those that are reduced, if any are; none if rows would be too short to be worth it.
    """
    if group.reduced:
        return group.reduced
    if any(n.op_type == NORMALIZATION for n in group.nodes):
        return len(group.shape) - 2
    outside = {
        v for n in group.nodes for v in n.inputs if v is not None and not _is_member_of(v, members)
    }
    counts = [_ones(known, group.shape) for v in outside if (known := _shape(v)) is not None]
    axes = min((n for n in counts if 0 < n < len(group.shape)), default=0)
    length = elements_of(group.shape[-axes:])
    return axes if axes and length >= LONG_ROW else 0


def _is_member_of(value: ir.Value, members: set[ir.Node]) -> bool:
    return value.producer() in members


def _ones(known: Shape, shape: Shape) -> int:
    """Along how many of the last axes of a shape a smaller one has the size 1; all for a number."""
    if all(size == 1 for size in known):
        return len(shape)
    count = 0
    while known[-1 - count] == 1:
        count += 1
    return count


def _hint(value: ir.Value | None, shape: Shape, members: set[ir.Node], row_axes: int) -> str:
    """What is known of the shape of an operand that is not computed in the group."""
    known = _shape(value)
    if value is None or known is None or _is_member_of(value, members):
        return "-"
    if value.dtype != ir.DataType.FLOAT:
        return "b" if known == shape else "-"
    if all(size == 1 for size in known):
        return "n"
    return "r" if row_axes and _ones(known, shape) >= row_axes else "-"
