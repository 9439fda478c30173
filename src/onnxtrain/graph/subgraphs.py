"""Graphs inside nodes (branches, loop bodies), and what nodes read because of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs among a node's attributes."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Values of outer graphs that the node's subgraphs use."""
    captured: dict[ir.Value, None] = {}
    for graph in subgraphs(node):
        local: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
        used = used_values(graph)
        used.update((v, None) for v in graph.outputs)
        for inner in graph:
            local.update(inner.outputs)
        captured.update((v, None) for v in used if v not in local)
    return list(captured)


def used_values(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Values the nodes read, those read by their subgraphs included, in order."""
    used: dict[ir.Value, None] = {}
    for node in nodes:
        used.update((v, None) for v in node.inputs if v is not None)
        used.update((v, None) for v in captured_values(node))
    return used


def live_nodes(
    nodes: Sequence[ir.Node] | ir.Graph,
    results: Iterable[ir.Value],
    stop: Collection[ir.Value] = (),
) -> list[ir.Node]:
    """Nodes on which one of the results depends, in their order, not looking behind `stop`."""
    needed, live = {r for r in results if r not in stop}, []
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs):
            continue
        live.append(node)
        needed.update(v for v in used_values([node]) if v not in stop)
    return live[::-1]


def let_go(nodes: Iterable[ir.Node]) -> None:
    """Nodes that no graph has any more, and what is inside of them, read nothing from now on.

    Otherwise they count as readers of values that may be removed.
    """
    for node in nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        for graph in subgraphs(node):
            let_go(graph)


def subgraph_protos(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of a node that is a protobuf."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graph_protos(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs below it."""
    yield graph
    for node in graph.node:
        for inner in subgraph_protos(node):
            yield from graph_protos(inner)


def node_protos(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and all nodes of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraph_protos(node):
            yield from node_protos(graph.node)
