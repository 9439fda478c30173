"""Layers and the activations behind them become one node each before onnxruntime sees the model.

onnxruntime puts a Conv or a Gemm together with a Relu that alone reads it (its `FusedConv` and
`FusedGemm`), which saves a kernel and a pass over memory, and then infers all shapes and looks
through all optimizers once more, for convolutions and for products: of 2.2 ms for a network of two
convolutions 0.66. What it would write is written here instead, into the bytes of the model.
`passes/activations.py` has marked the activations.

A model that was changed since then may read a layer's result elsewhere. onnxruntime refuses it
then, and gets the model as it was (`devices.create_session`).
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Container

from ...errors import ModelFileError
from ...operators import ACTIVATED, OF_LAYERS
from ..files.outline import ATTRIBUTE, DOMAIN, INPUT, NAME, OPERATOR, OUTPUT, Node, Outline
from ..files.wire import Message, varint
from .edits import field, marked, tag

CONTRIBUTED = b"com.microsoft"
CONV, GEMM = b"Conv", b"Gemm"
FLOAT, STRING, FLOATS = 1, 3, 6
"""Kinds of attributes."""
SLOPE = 0.01
"""Of a LeakyRelu that says nothing."""


def activated_layers(outline: Outline, taken: Container[int] = ()) -> dict[int, list[bytes]]:
    """What stands in the places of marked activations, and of the layers before them.

    Args:
        outline: of the model; an `IndexError` or a `ModelFileError` if that is damaged.
        taken: places of nodes that something else stands for already.
    """
    changes = dict[int, list[bytes]]()
    for node in marked(outline, ACTIVATED):
        layer = _layer(outline, node)
        if layer is not None and node.place not in taken and layer.place not in taken:
            changes |= {layer.place: [], node.place: [_together(layer, node)]}
    return changes


def _layer(outline: Outline, activation: Node) -> Node | None:
    """The layer that makes what an activation reads; None if it is not there.

    It is near, and names are looked for backwards: how all nodes hang together takes ten times as
    long.
    """
    if activation.operator.decode() not in OF_LAYERS or len(activation.inputs) != 1:
        return None
    (name,) = activation.inputs
    needle = tag(OUTPUT) + varint(len(name)) + name
    first, at = outline.nodes[0][0], outline.nodes[activation.place][0]
    while (at := outline.model.rfind(needle, first, at)) >= 0:
        node = outline.node(bisect_right(outline.node_begins, at) - 1)
        if node is None or node.outputs == [name]:
            return node if node is not None and node.operator in (CONV, GEMM) else None
    return None


def _together(layer: Node, activation: Node) -> bytes:
    """One node that does the work of both.

    In bytes: a `Message` of it takes as long as all else that is done here.
    """
    parts = [field(INPUT, name) for name in layer.inputs]
    parts += [field(OUTPUT, activation.outputs[0]), field(NAME, layer.name)]
    parts += [field(ATTRIBUTE, said) for said in layer.attributes]
    slope = _slope(activation) if activation.operator == b"LeakyRelu" else 0.0
    parts.append(_kind(layer.operator, activation.operator, slope))
    return b"".join(parts)


@functools.lru_cache(maxsize=64)
def _kind(layer: bytes, activation: bytes, slope: float) -> bytes:
    """What the one node says of its operator and the activation."""
    parts = [field(OPERATOR, b"Fused" + layer), field(DOMAIN, CONTRIBUTED)]
    named = Message().add(1, "activation").add(4, activation).add(20, STRING)
    parts.append(field(ATTRIBUTE, named))
    if activation == b"LeakyRelu":
        number = struct.pack("<f", slope)
        if layer == CONV:
            parameters = Message().add(1, "activation_params").add_fixed32(7, number)
            parts.append(field(ATTRIBUTE, parameters.add(20, FLOATS)))
        else:
            alpha = Message().add(1, "activation_alpha").add_fixed32(2, number)
            parts.append(field(ATTRIBUTE, alpha.add(20, FLOAT)))
    return b"".join(parts)


def _slope(activation: Node) -> float:
    for content in activation.attributes:
        attribute = Message.parse(content)
        if attribute.string(1) == "alpha":
            (value,) = attribute.values(2)
            if not isinstance(value, bytes) or len(value) != 4:
                raise ModelFileError("the slope of a LeakyRelu is no number")
            return float(struct.unpack("<f", value)[0])
    return SLOPE
