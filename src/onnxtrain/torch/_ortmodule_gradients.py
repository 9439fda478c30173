"""Gradients leave onnxruntime as they were computed: what torch needs no copy for is no node.

Several parameters may share one, and torch has views where a graph copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from ..graph.subgraphs import node_protos
from ..operators import VIEWS


def share(backward: onnx.ModelProto, gradients: Mapping[str, str]) -> dict[str, str]:
    """Take copies of results out of the graph; what each name finds its gradient under then.

    Outputs of a graph have names of their own, so a gradient that two parameters have is an
    Identity for one of them: a copy, by one thread. torch may be given one tensor for both, as by
    the backward function of a sum: it copies where a gradient is kept, with all its threads.

    Args:
        backward: the graph, which is changed.
        gradients: from names of inputs and parameters to its outputs.
    """
    graph, outputs = backward.graph, set(gradients.values())
    shared, first = dict[str, str](), {name: name for name in outputs}
    for node in graph.node:
        if node.op_type != "Identity" or node.domain or node.output[0] not in outputs:
            continue
        original = first.setdefault(node.input[0], node.output[0])
        if original != node.output[0]:
            shared[node.output[0]] = shared.get(original, original)
    others = [node for node in graph.node if node.output[0] not in shared]
    read = {name for node in node_protos(others) for name in node.input}
    nodes = [n for n in graph.node if n.output[0] not in shared or n.output[0] in read]
    for node in nodes:
        if node.output[0] in shared:
            node.input[0] = shared[node.output[0]]
    results = [output for output in graph.output if output.name not in shared]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(results)
    return {name: shared.get(output, output) for name, output in gradients.items()}


def without_views(
    backward: onnx.ModelProto, gradients: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Let gradients leave the graph in the shape that they are computed in.

    A result of a graph has memory of its own, so that a Reshape at the end is a copy by one thread:
    of the 45 MB of a ResNet-18, whose convolutions have their gradients from products of matrices.

    Args:
        backward: the graph, which is changed.
        gradients: from names of inputs and parameters to its outputs.

    Returns:
        The same with the new outputs, and which gradients torch has to give which shape.
    """
    graph = backward.graph
    makers = {name: node for node in graph.node for name in node.output}
    read = {name for node in node_protos(graph.node) for name in node.input}
    results = {value.name for value in graph.output}
    shared = {output for output, count in Counter(gradients.values()).items() if count > 1}
    renamed, shapes = dict[str, str](), dict[str, tuple[int, ...]]()
    for value in graph.output:
        shape, source = _fixed_shape(value), _viewed(makers, value.name)
        # Two views of one tensor would look to torch like two tensors, which need no copies
        if shape is None or value.name in read or value.name in shared or source in results:
            continue
        renamed[value.name], shapes[value.name] = source, shape
        results.add(source)  # another view of it stays a copy
        value.name = source
        value.type.tensor_type.ClearField("shape")
    nodes = [node for node in graph.node if node.output[0] not in renamed]
    del graph.node[:]
    graph.node.extend(nodes)
    views = {name: shapes[output] for name, output in gradients.items() if output in shapes}
    return {name: renamed.get(output, output) for name, output in gradients.items()}, views


def _viewed(makers: Mapping[str, onnx.NodeProto], name: str) -> str:
    """What a value is a view of, if a node computes that; or itself."""
    node = makers.get(name)
    source = makers.get(node.input[0]) if node is not None and _is_view(node) else None
    return name if node is None or source is None or _is_view(source) else node.input[0]


def _is_view(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type in VIEWS


def _fixed_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or any(not d.HasField("dim_value") for d in kind.shape.dim):
        return None
    return tuple(d.dim_value for d in kind.shape.dim)
