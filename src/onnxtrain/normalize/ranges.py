"""Range takes single numbers; onnxruntime also takes vectors of one, and exporters write them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.nodes import constant


def scalar_ranges(model: ir.Model) -> ir.Model:
    """Reshape the operands of Range that are no single numbers: inference refuses them."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "Range" and node.domain in ("", "ai.onnx"):
            for index, value in enumerate(node.inputs):
                if value is not None and value.shape is not None and len(value.shape):
                    _as_scalar(node, index, value)
    return model


def _as_scalar(node: ir.Node, index: int, value: ir.Value) -> None:
    name = f"{node.name}/{('start', 'limit', 'delta')[index]}"
    no_axes = constant(node, np.zeros(0, np.int64), f"{index}/shape")
    reshape = ir.Node("", "Reshape", [value, no_axes], name=name)
    scalar = reshape.outputs[0]
    scalar.name, scalar.type, scalar.shape = f"{name}/scalar", value.type, ir.Shape([])
    assert node.graph is not None
    node.graph.insert_before(node, reshape)
    node.replace_input_with(index, scalar)
