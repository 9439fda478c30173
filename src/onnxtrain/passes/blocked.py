"""Marks trained convolutions that a session may carry out in onnxruntime's blocked layout.

Whoever makes a session (`runtime/session/blocked.py`) finds the marks in the bytes of the model.
The file stays one of standard operators; on another device, or in a build without that layout, the
marks say nothing. Rules mark what only they know: the input's gradient, whose weights are turned
around, and the parts of the weights' gradient (`autodiff/rules/conv.py`, `conv_weight.py`).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ..graph.nodes import known
from ..graph.tensor import dims_of
from ..operators import blocked_convolution

IMAGE_AXES = 2


def mark_convolutions(model: ir.Model) -> ir.Model:
    """Mark each Conv of images whose weights are no constant, and of which the sizes are known.

    A kernel of one pixel without a stride is a plain product, which is as fast as it is.
    """
    for node in model.graph:
        sizes = _sizes(node) if node.op_type == "Conv" and not node.domain else None
        if sizes is not None:
            group = node.attributes.get_int("group", 1)
            strides = node.attributes.get_ints("strides", [1, 1])
            if math.prod(sizes[2:]) > 1 or math.prod(strides) > 1:
                node.doc_string = blocked_convolution(sizes, group)
    return model


def _sizes(node: ir.Node) -> list[int] | None:
    """The shape of the weights; None if the layout is not for this Conv."""
    weights = node.inputs[1]
    if weights is None or weights.dtype != ir.DataType.FLOAT or known(weights) is not None:
        return None
    if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    sizes = [d for d in dims_of(weights) or () if isinstance(d, int)]
    return sizes if len(sizes) == len(dims_of(weights) or ()) == IMAGE_AXES + 2 else None
