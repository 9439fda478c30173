"""Gradients that several parameters share are computed, and handed to torch, once."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ..graph.subgraphs import node_protos


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
