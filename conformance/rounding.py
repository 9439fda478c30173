"""Models that round: what of their gradients differences can judge.

Through a rounding passes a straight-through estimate, which is no derivative. What lies behind
the last rounding has one.
"""

from __future__ import annotations

import onnx

ROUNDING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM"})


def behind_roundings(model: onnx.ModelProto) -> list[str] | None:
    """Float initializers and inputs that reach outputs only without a rounding; None if all do."""
    graph = model.graph
    if not any(_rounds(n) for n in graph.node):
        return None
    direct = _sources(graph, {o.name for o in graph.output}, through=False)
    rounded = {v for n in graph.node if _rounds(n) for v in n.input}
    hidden = _sources(graph, rounded, through=True) | rounded
    floats = [t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    floats += [v.name for v in graph.input if v.type.tensor_type.elem_type == 1]
    return [n for n in dict.fromkeys(floats) if n in direct and n not in hidden]


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type in ROUNDING or node.op_type.startswith(("QLinear", "QGemm"))


def _sources(graph: onnx.GraphProto, targets: set[str], *, through: bool) -> set[str]:
    """All values that lead to some; not through nodes that round unless `through`."""
    reached = set(targets)
    for node in reversed(graph.node):
        if reached.isdisjoint(node.output) or (_rounds(node) and not through):
            continue
        reached.update(node.input)
    return reached
