"""Marks elementwise nodes that a session may compute together, in one pass over memory.

What is marked stays as it is: standard operators, in files and on devices. A session on a desktop
(`runtime/session/fusion.py`) finds the marks, and has a kernel of our own for a group.

A group grows along the order of the graph. It takes in a node of its shape that reads from it, and
ends when somebody else reads from it: then all of it can be computed at the place of its last
node, whatever lies between. Sums, means and maxima along the last axis may be in it, since a row
fits into a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from ..graph.subgraphs import used_values
from ..operators import FUSABLE, FUSABLE_POWERS, FUSED, OUTSIDE
from .transposed import has_bias

Shape: TypeAlias = "tuple[int | str, ...]"
REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.BOOL})
MOST_NODES, MOST_OPERANDS, MOST_AXES = 60, 20, 8
"""What a kernel has room for."""
ELEMENTS = 8192
"""A tensor from which on a pass over it counts for more than calling a kernel."""
SYMBOLIC = 64
"""What a dimension of unknown size counts for."""


@dataclass(eq=False)
class _Group:
    """Nodes of one shape, or of that shape with a last axis of size 1.

    Attributes:
        shape: of the results.
        nodes: in the order of the graph.
        is_open: nobody outside has read from it yet.
    """

    shape: Shape
    nodes: list[ir.Node] = field(default_factory=list)
    is_open: bool = True


def mark_fusable(model: ir.Model) -> ir.Model:
    """Mark the nodes of all groups that are worth it; marks of another time are taken away."""
    for node in model.graph:
        if (node.doc_string or "").startswith(FUSED):
            node.doc_string = None
    number = 0
    for group in _groups(model.graph):
        if _pays(group):
            number += 1
            _mark(group, number)
    return model


def _groups(graph: ir.Graph) -> list[_Group]:
    groups = list[_Group]()
    group_of = dict[ir.Node, _Group]()
    for node in graph:
        sources = _sources(node, group_of)
        shape = _shape_in_group(node, sources)
        if shape is None:
            for source in sources:
                source.is_open = False
            continue
        joined = [source for source in sources if source.shape == shape]
        for source in sources:
            source.is_open = source.is_open and source.shape == shape
        group = joined[0] if joined else _Group(shape)
        if sum(len(g.nodes) for g in joined) >= MOST_NODES:
            for source in joined:
                source.is_open = False
            group, joined = _Group(shape), []
        for other in joined[1:]:
            _merge(group, other, group_of)
        if not joined:
            groups.append(group)
        group.nodes.append(node)
        group_of[node] = group
    return [group for group in groups if group.nodes]


def _merge(group: _Group, other: _Group, group_of: dict[ir.Node, _Group]) -> None:
    group.nodes += other.nodes
    group_of.update(dict.fromkeys(other.nodes, group))
    other.nodes, other.is_open = [], False


def _sources(node: ir.Node, group_of: dict[ir.Node, _Group]) -> list[_Group]:
    """Open groups that a node reads from, each once; also from inside of its bodies."""
    producers = (value.producer() for value in used_values([node]))
    groups = (group_of.get(producer) for producer in producers if producer is not None)
    return list(dict.fromkeys(g for g in groups if g is not None and g.is_open))


def _shape_in_group(node: ir.Node, sources: list[_Group]) -> Shape | None:
    """The shape of the group that a node can be in; None if it can be in none."""
    if not _is_fusable(node):
        return None
    if node.op_type in REDUCTIONS:
        return _shape(node.inputs[0])
    shape = _shape(node.outputs[0])
    for source in sources:
        if shape is not None and shape != source.shape and shape == (*source.shape[:-1], 1):
            return source.shape
    return shape


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
    if node.op_type in REDUCTIONS:
        return _reduces_last(node)
    if node.op_type == "Pow":
        return _number(node.inputs[1]) in FUSABLE_POWERS
    return not _is_bias(node)


def _reduces_last(node: ir.Node) -> bool:
    """Whether a reduction is one of the last axis, which it keeps."""
    shape = _shape(node.inputs[0])
    if not shape or not node.attributes.get_int("keepdims", 1) or node.inputs[0] is None:
        return False
    if node.inputs[0].dtype != ir.DataType.FLOAT:
        return False
    axes = list(node.attributes.get_ints("axes", ()))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = node.inputs[1].const_value if node.inputs[1].is_initializer() else None
        axes = [] if constant is None else [int(a) for a in constant.numpy().ravel()]
    return len(axes) == 1 and axes[0] in (-1, len(shape) - 1)


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


def _pays(group: _Group) -> bool:
    elements = math.prod(d if isinstance(d, int) else SYMBOLIC for d in group.shape)
    if len(group.nodes) < 2 or elements < ELEMENTS:
        return False
    members = set(group.nodes)
    inputs = {
        v for n in group.nodes for v in n.inputs if v is not None and v.producer() not in members
    }
    outputs = [n for n in group.nodes if _is_read_outside(n, members)]
    return bool(outputs) and len(inputs) <= MOST_OPERANDS and len(outputs) <= MOST_OPERANDS


def _is_read_outside(node: ir.Node, members: set[ir.Node]) -> bool:
    result = node.outputs[0]
    return result.is_graph_output() or any(user not in members for user, _ in result.uses())


def _mark(group: _Group, number: int) -> None:
    members = set(group.nodes)
    for node in group.nodes:
        words = [FUSED, str(number), str(len(group.nodes)), str(len(group.shape))]
        node.doc_string = " ".join([*words, *([OUTSIDE] if _is_read_outside(node, members) else [])])
