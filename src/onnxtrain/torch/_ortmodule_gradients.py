"""Gradients that are copies of others, or are theirs in another shape, are not copied."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import onnx

from ..graph.subgraphs import node_protos
from ..operators import VIEWS

SMALL = 4096
"""Elements of a gradient below which a node more costs no more than torch's view. Not measured."""


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

    onnxruntime copies what a Reshape makes where that is an output; to torch it is a view. What
    other nodes or gradients have, too, stays as it is, and so does what has no known shape.

    Args:
        backward: the graph, which is changed.
        gradients: from names of inputs and parameters to its outputs.

    Returns:
        The same with the new outputs, and the shape that each of these is to be given.
    """
    graph, shapes = backward.graph, dict[str, tuple[int, ...]]()
    makers = {name: node for node in graph.node for name in node.output}
    read = Counter(name for node in node_protos(graph.node) for name in node.input)
    types = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    renamed = dict[str, str]()
    for output in graph.output:
        shape = tuple(d.dim_value for d in output.type.tensor_type.shape.dim)
        source = _viewed(makers, read, output.name) if math.prod(shape) >= SMALL else output.name
        if source != output.name and source not in types:
            renamed[output.name], shapes[source] = source, shape
    nodes = [node for node in graph.node if node.output[0] not in renamed]
    outputs = [
        onnx.helper.make_tensor_value_info(renamed[v.name], types[v.name], None)
        if v.name in renamed
        else v
        for v in graph.output
    ]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(outputs)
    return {name: renamed.get(output, output) for name, output in gradients.items()}, shapes


def _viewed(makers: Mapping[str, onnx.NodeProto], read: Mapping[str, int], name: str) -> str:
    """What a value is a view of, if nobody else reads that, and a node computes it; or itself."""
    node = makers.get(name)
    if node is None or node.domain or node.op_type not in VIEWS or read[name]:
        return name
    source = makers.get(node.input[0])
    is_own = source is not None and len(source.output) == 1 and read[node.input[0]] == 1
    is_view = source is not None and not source.domain and source.op_type in VIEWS
    return node.input[0] if is_own and not is_view else name
