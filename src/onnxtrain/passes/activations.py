"""Marks activations that sessions put together with the layers before them.

onnxruntime would do the same by itself, once for convolutions and once for matrix products, and
have all shapes inferred again each time: a quarter of the time that the session of a small network
takes. Whoever makes a session (`runtime/session/layers.py`) finds the marks in the bytes of the
model.
"""

from __future__ import annotations

import onnx_ir as ir

from ..operators import ACTIVATED, OF_LAYERS
from .transposed import only_reader

LAYERS = frozenset({"Conv", "Gemm"})
OF_OTHERS = frozenset({"DequantizeLinear", "Pad", "Transpose"})
"""What onnxruntime may put together with the layer that reads it, as long as that is a layer."""


def mark_activated(model: ir.Model) -> ir.Model:
    """Mark the activations that alone read a layer, unless something else is to compute them."""
    for node in model.graph:
        activation = only_reader(node) if _is_plain_layer(node) else None
        if activation is not None and activation.graph is model.graph and _is_plain(activation):
            activation.doc_string = ACTIVATED
    return model


def _is_plain_layer(node: ir.Node) -> bool:
    if node.op_type not in LAYERS or node.domain or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    sources = [v.producer() for v in node.inputs if v is not None]
    return not any(source is not None and source.op_type in OF_OTHERS for source in sources)


def _is_plain(activation: ir.Node) -> bool:
    is_own = activation.op_type in OF_LAYERS and not activation.domain
    return is_own and (activation.doc_string or "") in ("", ACTIVATED)
