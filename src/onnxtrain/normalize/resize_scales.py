"""Scales of Resize that onnx and onnxruntime round to different sizes.

Exporters store 7/12 as a float a little below it. Twelve times that is 6.9999998 to onnx's shape
inference, which takes the 6, and rounds to 7.0 in onnxruntime's kernel. Such a scale is raised by
the last bit, until both say what the kernel does.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.nodes import initializer, known
from ..graph.parameters import mark_constant
from ..graph.tensor import dims_of
from .custom_types import infer_with_custom
from .rewrite import all_nodes, standard

SCALES = 2


def agree_on_sizes(model: ir.Model) -> ir.Model:
    """Write scales so that their products with the sizes are not a little below a number."""
    # One at a time: the sizes behind it follow from how it is written.
    while any(_raise_scales(model.graph, node) for node in all_nodes(model)):
        for node in all_nodes(model):
            for value in node.outputs:
                value.shape = None
        model = infer_with_custom(model)
    return model


def _raise_scales(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether the scales of a Resize had to be written anew."""
    if node.op_type != "Resize" or standard(node.domain) or len(node.inputs) <= SCALES:
        return False
    scales, image = known(node.inputs[SCALES]), node.inputs[0]
    dims = dims_of(image) if image is not None else None
    axes = list(node.attributes.get_ints("axes", ()) or range(len(dims or ())))
    if scales is None or dims is None or scales.size != len(axes):
        return False
    factors = scales.numpy().astype(np.float32).reshape(-1)
    agreed = [_agreed(factor, dims[axis]) for factor, axis in zip(factors, axes)]
    if agreed == list(factors):
        return False
    value = initializer(graph, f"{node.outputs[0].name}_scales", np.array(agreed, np.float32))
    mark_constant(value)
    node.replace_input_with(SCALES, value)
    return True


def _agreed(factor: np.float32, size: int | str | None) -> np.float32:
    """The factor, or the next one above it for which float32 and float64 give the same size."""
    if not isinstance(size, int):
        return factor
    target = int(np.floor(factor * np.float32(size)))
    while np.floor(np.float64(factor) * size) < target:
        factor = np.nextafter(factor, np.float32(np.inf))
    return factor
