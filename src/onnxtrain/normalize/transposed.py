"""Transposed convolutions whose size onnx and onnxruntime say differently.

With `auto_pad` SAME the result is `stride` times as large as the image. onnx's shape inference adds
`output_padding` to that, onnxruntime crops it off again. Such a node is written with explicit pads
instead, about which both agree.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.tensor import dims_of
from .pools import shared_out
from .rewrite import all_nodes, standard


def name_crops(model: ir.Model) -> ir.Model:
    """Write out what SAME crops off where there is `output_padding`."""
    for node in all_nodes(model):
        if node.op_type == "ConvTranspose" and not standard(node.domain):
            _write_out(node)
    return model


def _write_out(node: ir.Node) -> None:
    attributes, weight = node.attributes, node.inputs[1]
    extra = attributes.get_ints("output_padding", ())
    way = attributes.get_string("auto_pad", "NOTSET")
    if not any(extra) or not way.startswith("SAME") or "output_shape" in attributes:
        return
    dims = dims_of(weight) if weight is not None else None
    sizes = attributes.get_ints("kernel_shape") or (dims or ())[2:]
    kernel = [size for size in sizes if isinstance(size, int)]
    if len(kernel) != len(extra):
        return
    strides = attributes.get_ints("strides", [1] * len(kernel))
    dilations = attributes.get_ints("dilations", [1] * len(kernel))
    totals = [
        more + (k - 1) * dilation + 1 - stride
        for more, k, dilation, stride in zip(extra, kernel, dilations, strides)
    ]
    pads = shared_out([max(total, 0) for total in totals], way)
    behind = [more + max(-total, 0) for more, total in zip(extra, totals)]  # what no window reaches
    attributes["pads"] = ir.AttrInt64s("pads", pads)
    attributes["output_padding"] = ir.AttrInt64s("output_padding", behind)
    del attributes["auto_pad"]
