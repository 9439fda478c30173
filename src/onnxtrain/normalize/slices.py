"""Backward slices to the end, of which onnx and onnxruntime say different things.

"To the end" is the largest integer. Backwards, onnxruntime takes it for the first element; onnx's
shape inference takes it for the last, behind which nothing is left. Such a slice is written with
the smallest integer instead, about which both agree.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.nodes import initializer, known
from ..graph.parameters import mark_constant
from ..graph.slices import TO_THE_END
from .rewrite import all_nodes, standard

ENDS, STEPS = 2, 4


def end_backwards(model: ir.Model) -> ir.Model:
    """Write the ends of backward slices so that all agree on what is left."""
    for node in all_nodes(model):
        if node.op_type != "Slice" or standard(node.domain) or len(node.inputs) <= STEPS:
            continue
        ends, steps = known(node.inputs[ENDS]), known(node.inputs[STEPS])
        if ends is None or steps is None:
            continue
        numbers = ends.numpy()
        to_the_end = (steps.numpy() < 0) & np.isin(numbers, TO_THE_END)
        if to_the_end.any():
            smallest = np.iinfo(numbers.dtype).min
            written = np.where(to_the_end, smallest, numbers).astype(numbers.dtype)
            value = initializer(model.graph, f"{node.outputs[0].name}_ends", written)
            mark_constant(value)
            node.replace_input_with(ENDS, value)
    return model
