"""Exporters' detours taken out of the forward graph before it is differentiated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph import Names
from ..graph.edit import replace_value
from ..graph.nodes import initializer
from ..graph.tensor import dims_of
from .rewrite import names_in


def simplify(model: ir.Model) -> ir.Model:
    """Replace a sequence that is only split and indexed, or slices side by side, by a Split."""
    names = names_in(model)
    for graph in [model.graph, *model.graph.subgraphs()]:
        cut: dict[tuple[ir.Value, int], list[_Part]] = {}
        for node in list(graph):
            if node.op_type == "SplitToSequence" and not node.domain:
                _as_split(_Place(model.graph, graph, names), node)
            elif node.op_type == "Slice" and not node.domain:
                part = _part(node)
                if part is not None:
                    cut.setdefault((part.source, part.axis), []).append(part)
        for parts in cut.values():
            place = _Place(model.graph, graph, names)
            _slices_as_split(place, sorted(parts, key=lambda p: p.start))
    return model


@dataclass(frozen=True)
class _Place:
    """A graph whose nodes are replaced, and the main graph, which has the constants."""

    main: ir.Graph
    graph: ir.Graph
    names: Names


@dataclass(frozen=True)
class _Part:
    """A Slice with constant bounds along one axis of known size."""

    node: ir.Node
    source: ir.Value
    axis: int
    start: int
    end: int
    total: int


def _part(node: ir.Node) -> _Part | None:
    source = node.inputs[0]
    dims = None if source is None else dims_of(source)
    bounds = [_constant(v) for v in node.inputs[1:]]
    if source is None or dims is None or len(bounds) < 3 or None in bounds[:3]:
        return None
    start, end, axis = (int(g) for g in bounds[:3] if g is not None)
    if len(bounds) > 3 and bounds[3] != 1:
        return None
    total = dims[axis]
    if not isinstance(total, int):
        return None
    start, end, _ = slice(start, end).indices(total)
    return _Part(node, source, axis % len(dims), start, end, total)


def _slices_as_split(place: _Place, parts: list[_Part]) -> None:
    """Slices that together are all of a value are a Split.

    Its gradient is one Concat; that of the slices is as many tensors of the whole size, and their
    sum. Exporters write the gates of recurrent weights in another order like that.
    """
    ends = [0, *(p.end for p in parts)]
    joined = all(p.start == end < p.end for p, end in zip(parts, ends))
    if len(parts) < 2 or not joined or ends[-1] != parts[0].total:
        return
    graph = place.graph
    first = next(n for n in graph if any(n is p.node for p in parts))
    sizes = [p.end - p.start for p in parts]
    # Read from the node: the source may have become a part of a Split meanwhile
    new = _split(place, first, parts[0].node.inputs[0], sizes, parts[0].axis)
    for part, output in zip(parts, new.outputs):
        old = part.node.outputs[0]
        output.name = place.names.fresh(f"{old.name}_part")
        output.type, output.shape = old.type, old.shape
        replace_value(graph, old, output)
        graph.remove(part.node, safe=True)


def _split(
    place: _Place, before: ir.Node, x: ir.Value | None, sizes: list[int], axis: int
) -> ir.Node:
    """A Split with these sizes, put before a node."""
    stem = before.outputs[0].name
    name = place.names.fresh(f"{stem}_sizes")
    split = initializer(place.main, name, np.array(sizes, np.int64))
    new = ir.Node(
        "", "Split", [x, split], {"axis": ir.AttrInt64("axis", axis)},
        num_outputs=len(sizes), name=place.names.fresh(f"{before.name or stem}/Split"),
    )  # fmt: skip
    place.graph.insert_before(before, new)
    return new


def _as_split(place: _Place, node: ir.Node) -> None:
    """``SequenceAt(SplitToSequence(x), i)`` with constant sizes and index is part of a Split."""
    x, sequence = node.inputs[0], node.outputs[0]
    sizes = _sizes(node)
    users = [user for user, _ in sequence.uses()]
    if sizes is None or sequence.is_graph_output() or not users:
        return
    indices = [_constant(user.inputs[1]) for user in users]
    if any(user.op_type != "SequenceAt" for user in users) or any(i is None for i in indices):
        return
    graph, new = place.graph, _split(place, node, x, sizes, _axis(node))
    for i, output in enumerate(new.outputs):
        output.name = place.names.fresh(f"{sequence.name}_{i}")
        output.type = x.type if x is not None else None
    for user, index in zip(users, indices):
        part = new.outputs[int(index) % len(sizes)]  # type: ignore[arg-type]
        part.shape = user.outputs[0].shape
        replace_value(graph, user.outputs[0], part)
        graph.remove(user, safe=True)
    graph.remove(node, safe=True)


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return attribute.as_int() if attribute else 0


def _constant(value: ir.Value | None) -> int | None:
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    content = value.const_value.numpy()
    return int(content.reshape(())) if content.size == 1 else None


def _sizes(node: ir.Node) -> list[int] | None:
    """Sizes of the pieces, when they are known and keep their axis."""
    x = node.inputs[0]
    dims = dims_of(x) if x is not None else None
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if dims is None or split is None or split.const_value is None:
        return None
    total, sizes = dims[_axis(node)], split.const_value.numpy()
    if sizes.ndim == 1:
        return [int(s) for s in sizes]
    if not isinstance(total, int):
        return None
    size = int(sizes)
    whole, rest = divmod(total, size)
    return [size] * whole + [rest] * bool(rest)
