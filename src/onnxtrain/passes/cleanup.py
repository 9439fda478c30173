"""Graph passes and their order: a literal list.

All of them see parameters as graph inputs (ADR 1), and none merges or drops random draws.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ..errors import model_errors
from ..graph.edit import remove_nodes, replace_value, take_over
from ..graph.nodes import known
from ..graph.onnx_inference import UNKNOWN
from ..graph.subgraphs import subgraphs
from ..graph.tensor import dims_of
from ..operators import RANDOM
from .rewrites import apply_rewrites
from .schedule import schedule

COMPARED_ELEMENTS = 16
"""Constant integers, up to this many, are compared by what they are."""
INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})


@model_errors("Optimizing the model")
def clean_up(model: ir.Model) -> ir.Model:
    """Run all passes on the graph and its subgraphs."""
    remove_dead(model.graph)
    remove_unread_results(model.graph)
    for run in PASSES:
        for graph in [*model.graph.subgraphs(), model.graph]:
            run(graph)
    remove_unread_initializers(model.graph)
    for graph in [*_branches(model.graph), model.graph]:
        schedule(graph)
    return model


def _branches(graph: ir.Graph) -> list[ir.Graph]:
    """The branches of conditions; the order inside a loop is that of whoever wrote its body."""
    nodes = [node for node in graph.all_nodes() if node.op_type == "If" and not node.domain]
    return [branch for node in nodes for branch in subgraphs(node)]


def remove_identities(graph: ir.Graph) -> None:
    """Drop Identity nodes, except those that give a graph output its name."""
    dropped = []
    for node in graph:
        if node.op_type != "Identity" or node.domain:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None or result.is_graph_output():
            continue
        result.replace_all_uses_with(source)
        dropped.append(node)
    remove_nodes(graph, dropped)


def merge_duplicates(graph: ir.Graph) -> None:
    """Common sub-expression elimination by hashing, in one forward pass."""
    seen: dict[Any, ir.Node] = {}
    dropped = []
    for node in list(graph):
        key = duplicate_key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or len(first.outputs) < len(node.outputs):
            continue
        for old, new in zip(node.outputs, first.outputs):
            replace_value(graph, old, new)  # an output of the graph becomes a copy
        dropped.append(node)
    remove_nodes(graph, dropped)


def duplicate_key(node: ir.Node) -> Any:
    """What makes two nodes compute the same; None for those that must stay apart.

    Dimensions of one name have one size, of whatever value they are.
    """
    if node.op_type in RANDOM or node.op_type == "Identity":
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape), value.numpy().tobytes())
        elif isinstance(value, (list, tuple)):
            value = tuple(value)
        attributes.append((name, value))
    if node.op_type == "Shape" and not node.domain:
        dims = _known_dims(node)
        if dims is not None:
            return ("Shape", dims)
    operands = tuple(_operand(v) for v in node.inputs)
    return (node.domain, node.op_type, operands, tuple(attributes))


def _known_dims(node: ir.Node) -> tuple[int | str, ...] | None:
    """What a Shape node gives, in numbers and symbols; None if one of them has no name.

    All layers of a language model read the length of their sequence, each from a value of its own:
    the masks and angles that follow from it are then the same too.
    """
    dims = dims_of(node.inputs[0]) if node.inputs[0] is not None else None
    if dims is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
    chosen = tuple(d for d in dims[start:end] if d is not None and not str(d).startswith(UNKNOWN))
    return chosen if len(chosen) == len(dims[start:end]) else None


def _operand(value: ir.Value | None) -> Any:
    """A value, or the numbers of constant axes or shapes: stages that build nodes have their own.

    Factors are left alone: x·0.5 of the forward half, if the backward half read it, would no
    longer be part of a Gelu that onnxruntime fuses.
    """
    tensor = known(value)
    if tensor is None or tensor.size > COMPARED_ELEMENTS or tensor.dtype not in INTEGERS:
        return value
    return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())


def remove_dead(graph: ir.Graph) -> None:
    """Drop nodes whose outputs nobody uses."""
    dropped: dict[ir.Node, None] = {}
    for node in reversed(graph):
        if not any(o.is_graph_output() or _is_read(o, dropped) for o in node.outputs):
            dropped[node] = None
    remove_nodes(graph, dropped)


def remove_unread_results(graph: ir.Graph) -> None:
    """Let the branches of a condition return only what somebody reads."""
    for node in [n for n in graph.all_nodes() if n.op_type == "If" and not n.domain]:
        read = [o for o in node.outputs if o.uses() or o.is_graph_output()]
        if not read or len(read) == len(node.outputs):
            continue
        chosen = [o.index() or 0 for o in read]
        for branch in subgraphs(node):
            outputs = list(branch.outputs)
            branch.outputs.clear()
            branch.outputs.extend(outputs[i] for i in chosen)
        _with_outputs(node, read)


def _with_outputs(node: ir.Node, outputs: list[ir.Value]) -> None:
    """Let another node with fewer outputs take a node's place."""
    assert node.graph is not None
    branches = list(node.attributes.values())
    node.attributes.clear()
    new = ir.Node(
        node.domain, node.op_type, node.inputs, branches, num_outputs=len(outputs), name=node.name
    )
    node.graph.insert_before(node, new)
    for old, value in zip(outputs, new.outputs):
        value.type, value.shape = old.type, old.shape
        take_over(old, value)
    remove_nodes(node.graph, [node])


def _is_read(value: ir.Value, dropped: dict[ir.Node, None]) -> bool:
    """Whether a node that stays reads the value (a reader inside a subgraph always counts)."""
    return any(user not in dropped for user, _ in value.uses())


def remove_unread_initializers(graph: ir.Graph) -> None:
    """Forget constants that nothing reads any more."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


PASSES = (
    remove_identities,
    remove_dead,
    merge_duplicates,
    apply_rewrites,
    merge_duplicates,
    remove_dead,
)
