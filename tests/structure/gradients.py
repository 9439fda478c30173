"""What computes a gradient, as something that can be compared."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import numpy_helper


def structure(
    model: onnx.ModelProto, trained: list[str], gradients: dict[str, str] | None = None
) -> dict[str, int]:
    """What computes each gradient, down to the inputs, whatever values in between are called.

    Args:
        model: gives out the gradients.
        trained: what they are taken with respect to.
        gradients: their names, if they are not `<name>_grad`.
    """
    graph = model.graph
    makers = {o: node for node in graph.node for o in node.output}
    known: dict[str, Any] = {
        t.name: (t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes())
        for t in graph.initializer
        if t.name not in trained
    }

    def shape_of(name: str) -> int:
        if name not in known and name in makers:
            node = makers[name]
            attributes = sorted(a.SerializeToString() for a in node.attribute)
            operands = tuple(shape_of(i) for i in node.input)
            place = list(node.output).index(name)
            known[name] = (node.op_type, tuple(attributes), operands, place)
        return hash(known.get(name, name))

    outputs = {o.name for o in graph.output}
    names = gradients or {name: f"{name}_grad" for name in trained}
    assert outputs.issuperset(names.values())
    return {name: shape_of(names[name]) for name in trained}
