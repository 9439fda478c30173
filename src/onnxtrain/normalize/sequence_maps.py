"""A SequenceMap over tensors that are known one by one is its body, once for each of them.

torch exports `hstack`, `vstack` and the like so: the body asks for the rank of an element, and
takes one of several branches. Written out, ranks are known and the branches decided.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.builder import Names
from ..graph.edit import remove_nodes

MOST_NODES = 1000
"""A longer result is not worth it."""


def unroll_sequence_maps(model: ir.Model) -> ir.Model:
    """Write out every SequenceMap over a SequenceConstruct."""
    graph = model.graph
    nodes = [n for n in graph if n.op_type == "SequenceMap" and n.domain in ("", "ai.onnx")]
    if nodes:
        names = _names(graph)
        for node in nodes:
            _unroll(graph, node, names)
    return model


def _names(graph: ir.Graph) -> Names:
    names = Names(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
    for node in graph.all_nodes():
        names.reserve(node.name or "")
        for output in node.outputs:
            names.reserve(output.name or "")
    return names


def _unroll(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    body = node.attributes["body"].as_graph()
    sequences = [_elements(v) for v in node.inputs]
    known = [s for s in sequences if s is not None]
    if not known or len(known) < len(sequences) or body.initializers:
        return
    count = len(known[0])
    if any(len(s) != count for s in known) or count * len(body) > MOST_NODES:
        return
    results: list[list[ir.Value]] = [[] for _ in node.outputs]
    for elements in zip(*known):
        for collected, value in zip(results, _written_out(node, body, elements, names)):
            collected.append(value)
    for output, values in zip(list(node.outputs), results):
        joined = ir.Node("", "SequenceConstruct", values, name=names.fresh(f"{node.name}/joined"))
        joined.outputs[0].name, joined.outputs[0].type = output.name, output.type
        graph.insert_before(node, joined)
        output.replace_all_uses_with(joined.outputs[0], replace_graph_outputs=True)
        output.name = f"{output.name}/replaced"
    remove_nodes(graph, [node])


def _elements(value: ir.Value | None) -> list[ir.Value] | None:
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "SequenceConstruct":
        return None
    return [v for v in producer.inputs if v is not None]


def _written_out(
    node: ir.Node, body: ir.Graph, elements: tuple[ir.Value, ...], names: Names
) -> list[ir.Value]:
    """The nodes of a body before a node, for one element of each sequence; gives its results."""
    copied = body.clone(allow_outer_scope_values=True)
    inputs, results, nodes = list(copied.inputs), list(copied.outputs), list(copied)
    copied.outputs.clear()
    for value, element in zip(inputs, elements):
        value.replace_all_uses_with(element)
    results = [dict(zip(inputs, elements)).get(r, r) for r in results]
    copied.inputs.clear()
    copied.remove(nodes)
    for one in nodes:
        _rename(one, names)
        assert node.graph is not None
        node.graph.insert_before(node, one)
    return results


def _rename(node: ir.Node, names: Names) -> None:
    node.name = names.fresh(node.name or node.op_type)
    for output in node.outputs:
        output.name = names.fresh(output.name or node.name)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                _rename(inner, names)
