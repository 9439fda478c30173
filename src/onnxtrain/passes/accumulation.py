"""Gradients that are added up over batches in the graph, as onnxruntime-training's models do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ..graph import Inputs, OpBuilder
from ..graph.tensor import dims_of

ACCUMULATION = "onnxtrain.accumulate/"
RESET = "lazy_reset_grad"


def accumulate(
    model: ir.Model, gradients: Mapping[str, str], names: Sequence[str]
) -> tuple[list[str], list[ir.Value]]:
    """Append the accumulation of gradients, which are outputs of the model, over batches.

    Returns:
        The names of the inputs that were added, and the accumulated gradients.
    """
    op = OpBuilder.on(model)
    inputs = Inputs(model)
    reset = inputs.add(RESET, ir.TensorType(ir.DataType.BOOL), [1])
    op.scope = f"{ACCUMULATION}{RESET}"
    flag = op.Reshape(op.tensor(reset), op.const(np.zeros(0, np.int64)))
    outputs = {o.name: o for o in model.graph.outputs}
    accumulated = []
    buffers = []
    for name in names:
        gradient = outputs[gradients[name]]
        dims = dims_of(inputs.values[name]) or ()
        buffer = inputs.add(f"{name}_grad.accumulation.buffer", gradient.type, dims)
        buffers.append(buffer)
        op.scope = f"{ACCUMULATION}{name}"
        added = op.tensor(buffer) + op.tensor(gradient)
        result = op.Where(flag, op.tensor(gradient), added).value
        result.name = f"{name}_grad.accumulation.out"
        result.type, result.shape = buffer.type, buffer.shape
        accumulated.append(result)
    op.attach(model.graph)
    return [*(b.name or "" for b in buffers), RESET], accumulated
