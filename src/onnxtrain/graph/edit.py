"""Small surgery on graphs that several stages need."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir


def replace_value(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`; a graph output keeps its name through an Identity."""
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    producer, name = old.producer(), old.name
    assert producer is not None
    identity = ir.Node("", "Identity", [new], name=f"{producer.name}/Identity")
    identity.outputs[0].type, identity.outputs[0].shape = old.type, old.shape
    graph.insert_after(producer, identity)
    old.replace_all_uses_with(identity.outputs[0], replace_graph_outputs=True)
    old.name = f"{name}/replaced"
    identity.outputs[0].name = name


def remove_nodes(graph: ir.Graph, nodes: Collection[ir.Node]) -> None:
    """Remove nodes; those inside their subgraphs no longer read outer values either."""
    graph.remove(nodes, safe=True)
    for node in nodes:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _detach(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS:
                for inner in attribute.as_graphs():
                    _detach(inner)


def _detach(graph: ir.Graph) -> None:
    graph.outputs.clear()
    remove_nodes(graph, list(graph))
