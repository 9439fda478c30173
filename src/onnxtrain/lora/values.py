"""The numbers that a layer multiplies with, whatever form they are stored in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..errors import AdapterError
from .layers import MS, Layer, integer

Array = npt.NDArray[Any]


def weight_of(layer: Layer) -> Array:
    """The weight of a layer: [inputs, outputs], of a convolution [outputs, inputs, *kernel]."""
    node = layer.nodes[0]
    if node.domain == MS:
        return _from_blocks(node, layer)
    weight = _operand(node.inputs[1], layer)
    return weight.T if integer(node, "transB", 0) else weight


def fingerprint(layers: Sequence[Layer]) -> str:
    """What tells the weights of layers from others: a hash of their names, forms and bytes."""
    digest = hashlib.sha256()
    for layer in sorted(layers, key=lambda one: one.name):
        stored = layer.weight.const_value
        assert stored is not None
        digest.update(f"{layer.name} {stored.dtype} {list(stored.shape.numpy())};".encode())
        digest.update(stored.tobytes())
    return digest.hexdigest()


def _operand(value: ir.Value | None, layer: Layer) -> Array:
    """The value of an operand: the nodes between it and what is stored, carried out."""
    node = None if value is None else value.producer()
    if node is None:
        return _array(value)
    if node.op_type == "DequantizeLinear":
        return _as(_dequantized(node), layer.dtype)
    before = _operand(node.inputs[0], layer)
    if node.op_type == "Transpose":
        return np.transpose(before)
    if node.op_type == "Cast":
        return _as(before, ir.DataType(integer(node, "to", 1)))
    return before


def _as(array: Array, dtype: ir.DataType) -> Array:
    return np.asarray(array, dtype.numpy())


def _array(value: ir.Value | None) -> Array:
    assert value is not None
    if value.const_value is None:
        raise AdapterError(f"{value.name!r} is part of a quantised weight and is not stored.")
    return value.const_value.numpy()


def _dequantized(node: ir.Node) -> Array:
    codes = _array(node.inputs[0]).astype(np.float32)
    scale = _array(node.inputs[1]).astype(np.float32)
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    axis, block = integer(node, "axis", 1), integer(node, "block_size", 0)
    if zero is not None:
        codes = codes - _spread(_array(zero).astype(np.float32), codes, axis, block)
    return codes * _spread(scale, codes, axis, block)


def _spread(values: Array, like: Array, axis: int, block: int) -> Array:
    """One value, one per index of an axis, or one per block along it: one for each element."""
    axis %= like.ndim
    if values.size == 1:
        return values.reshape(())
    if values.ndim == like.ndim:
        repeated = np.repeat(values, block or -(-like.shape[axis] // values.shape[axis]), axis)
        return np.take(repeated, range(like.shape[axis]), axis)
    return values.reshape([-1 if i == axis else 1 for i in range(like.ndim)])


def _from_blocks(node: ir.Node, layer: Layer) -> Array:
    """The weight of a MatMulNBits, [inputs, outputs]."""
    bits, block = integer(node, "bits", 4), integer(node, "block_size", 32)
    if bits not in (2, 4, 8) or (len(node.inputs) > 4 and node.inputs[4] is not None):
        raise AdapterError(
            f"{layer.name}: MatMulNBits with bits={bits} or `g_idx` is not supported."
        )
    count = -(-layer.inputs // block)
    shape = (layer.outputs, count, block)
    codes = _unpacked(_array(node.inputs[1]).reshape(layer.outputs, count, -1), bits).reshape(shape)
    zero = _array(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if zero is None:
        zero = np.array(2 ** (bits - 1), np.float32)
    elif zero.dtype == np.uint8:
        zero = _unpacked(zero.reshape(layer.outputs, -1), bits)[:, :count, None]
    else:
        zero = zero.reshape(layer.outputs, count, 1)
    scales = _array(node.inputs[2]).reshape(layer.outputs, count, 1)
    weight = (codes.astype(np.float32) - zero.astype(np.float32)) * scales.astype(np.float32)
    return _as(weight.reshape(layer.outputs, -1)[:, : layer.inputs].T, layer.dtype)


def _unpacked(packed: Array, bits: int) -> Array:
    """Small integers out of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts: Array = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1)
