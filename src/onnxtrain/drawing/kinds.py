"""Which half of a training graph a node belongs to: forward, backward or update."""

from __future__ import annotations

from collections.abc import Collection

import onnx


def node_kinds(graph: onnx.GraphProto, results: Collection[str] | None) -> list[str]:
    """Of each node whether it is forward, backward or update.

    A node that the forward half needs is forward whatever its name: a pass may have joined it with
    one of the backward half.

    Args:
        graph: of a model in topological order.
        results: outputs of the forward half. None to tell the halves apart by the names that
            onnxtrain gives to nodes.
    """
    by_name = [_kind_by_name(node) for node in graph.node]
    if results is None:
        halves = zip(graph.node, by_name)
        others = {o for node, kind in halves if kind != "forward" for o in node.output}
        results = {o.name for o in graph.output} - others
    else:
        by_name = ["backward"] * len(by_name)
    needed, kinds = set(results), []
    for node, kind in zip(reversed(graph.node), reversed(by_name)):
        if needed.intersection(node.output):
            needed.update(node.input, captured(node))
            kinds.append("forward")
        else:
            kinds.append(kind)
    return kinds[::-1]


def captured(node: onnx.NodeProto) -> list[str]:
    """Names that the node's subgraphs use (those of the outer graph are found in the table)."""
    return [
        name
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs])
        for inner in graph.node
        for name in (*inner.input, *captured(inner))
    ]


def _kind_by_name(node: onnx.NodeProto) -> str:
    """By the scopes of its name; those of PyTorch's exporter begin with a slash."""
    scopes = node.name.strip("/").split("/")
    if scopes[0] in {"gradient", "onnxtrain.accumulate"} or is_gradient(scopes[:-1]):
        return "backward"
    return "update" if scopes[0] == "update" else "forward"


def is_gradient(scopes: Collection[str]) -> bool:
    """Whether a name stands in the scope of a node's or a value's gradient."""
    return any(scope.endswith("_grad") for scope in scopes)
