"""The order of the nodes in the file, from which onnxruntime derives the order it runs them in.

onnxruntime walks from the results back to the inputs, depth first. It starts with the last node
without readers in the file, and of a node's operands visits the one that comes last in the file
first. Left as differentiation emits them, all weight gradients would run at the very end, with
every tensor they need kept until then and long gone from the caches. Here they are put in the
order that makes this walk visit

- the results next to the loss first, so that each weight gradient is made when its operands are;
- the deepest operand first, so that what only depends on the forward pass (the slope of an
  activation, say) is made when the gradient that it is multiplied with is there, not before.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.subgraphs import captured_values


def schedule(graph: ir.Graph) -> None:
    """Sort the nodes by depth, with those nobody reads at the end, deepest first."""
    nodes = list(graph)
    depth: dict[ir.Value | None, int] = {}
    keys: dict[ir.Node, tuple[int, int]] = {}
    for node in nodes:
        sources = (*node.inputs, *captured_values(node))
        level = 1 + max((depth.get(v, 0) for v in sources), default=0)
        for output in node.outputs:
            depth[output] = level
        is_last = not any(output.uses() for output in node.outputs)
        keys[node] = (1, -level) if is_last else (0, level)
    ordered = sorted(nodes, key=keys.__getitem__)
    if ordered != nodes:
        graph.remove(nodes)
        graph.extend(ordered)
