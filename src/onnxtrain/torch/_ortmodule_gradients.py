"""Gradients leave onnxruntime as they were computed: what torch needs no copy for is no node.

Several parameters may share one, and torch has views where a graph copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def unshape(
    backward: onnx.ModelProto, gradients: Mapping[str, str], sizes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Take reshapes at the end out of the graph; what gradients are called then, and their sizes.

    A result of a graph has memory of its own, so that such a Reshape is a copy by one thread: of
    the 45 MB of a ResNet-18, whose convolutions have their gradients from products of matrices.

    Args:
        backward: the graph, which is changed.
        gradients: from names of inputs and parameters to its outputs.
        sizes: of those whose sizes are the same in every call.
    """
    graph = backward.graph
    made = {name: node for node in graph.node for name in node.output}
    results = {output.name: output for output in graph.output}
    read = {name for node in node_protos(graph.node) for name in node.input}
    names, views = dict(gradients), dict[str, tuple[int, ...]]()
    for output, value in list(results.items()):
        node, owners = made.get(output), [n for n, g in gradients.items() if g == output]
        if node is None or node.op_type != "Reshape" or node.domain or output in read:
            continue
        source = node.input[0]
        # Two views of one tensor would look to torch like two tensors, which need no copies
        if source not in made or source in results or len(owners) != 1 or owners[0] not in sizes:
            continue
        results[source] = value  # two of one matrix are two results, of which one stays a copy
        graph.node.remove(node)
        value.name = source
        value.type.tensor_type.ClearField("shape")
        names[owners[0]], views[owners[0]] = source, tuple(sizes[owners[0]])
    return names, views
