"""Weights of a few bits in blocks (`MatMulNBits`) as DequantizeLinear, which leaves them as stored.

A block of integers with one scale is a row of a matrix [blocks, size] with one scale per row: so
the bytes of the weight are those of a tensor of 4-bit integers, and nothing is copied. Rows are
also the form that onnxruntime's kernel is fastest in: 3 million weights take 2.8 ms as rows, 6.5 as
blocks along the last axis and 4.0 along the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.few_bits import LARGE_BYTES, same_bytes
from ..graph.nodes import known
from ..graph.schema import MAX_OPSET
from .bits import unpack
from .rewrite import WEIGHT, all_nodes, standard

MS = "com.microsoft"
CODES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}
CHANGED = frozenset({"DFT", "GridSample", "GroupNormalization"})
"""Operators that opset 20 or 21 has in another form than 18."""


def raise_for_four_bits(model: ir.Model) -> ir.Model:
    """Take opset 21 for a model of 18 to 20 with large weights of four bits: it has their type."""
    version = model.opset_imports[""]
    nodes = list(all_nodes(model))
    if version < MAX_OPSET and any(map(_has_four_bits, nodes)):
        standard_names = {n.op_type for n in nodes if not standard(n.domain)}
        if standard_names.isdisjoint(CHANGED):
            model.opset_imports[""] = MAX_OPSET
    return model


def _has_four_bits(node: ir.Node) -> bool:
    if node.domain != MS or node.op_type != "MatMulNBits":
        return False
    attributes = node.attributes
    floats = 4 * attributes.get_int("K", 0) * attributes.get_int("N", 0)
    return attributes.get_int("bits", 4) == 4 and floats >= LARGE_BYTES


def matmul_nbits(
    op: OpBuilder, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None,
    group_index: Tensor | None, bias: Tensor | None,
    *, K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Tensor:  # fmt: skip
    """A·Wᵀ with W [N, K] stored in blocks of `bits`-bit integers, a scale per block.

    The gradient flows to the activation.
    """
    if group_index is not None:
        raise ModelError("MatMulNBits with `g_idx` is not supported.")
    if bits not in (2, 4, 8) or weight_prepacked:
        raise ModelError(f"MatMulNBits with bits={bits} or prepacked weights is not supported.")
    blocks = -(-K // block_size)
    shape = N, blocks, block_size
    weight = _as_rows(op, b, scales, zeros, bits, shape)
    if weight is None:
        weight = _unpacked(op, a, b, scales, zeros, bits, shape)
    weight = op.Reshape(weight, [N, blocks * block_size])
    if blocks * block_size != K:
        weight = op.Slice(weight, [0], [K], [1])
    y = a @ op.Transpose(weight, perm=[1, 0])
    return y if bias is None else y + bias


def _unpacked(
    op: OpBuilder, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None,
    bits: int, shape: tuple[int, int, int],
) -> Tensor:  # fmt: skip
    """The weight by operators that onnxruntime carries out when it loads the model."""
    n, blocks, _ = shape
    codes = unpack(op, op.Reshape(b, [n, blocks, -1]), bits, list(shape))
    codes = op.Cast(codes, to=a.dtype)
    if zeros is None:
        centred = codes - float(2 ** (bits - 1))
    else:
        if zeros.dtype == ir.DataType.UINT8:
            rows = op.Reshape(zeros, [n, -1])
            zeros = op.Slice(unpack(op, rows, bits, [n, -1]), [0], [blocks], [1])
        centred = codes - op.Cast(op.Reshape(zeros, [n, blocks, 1]), to=a.dtype)
    return centred * op.Reshape(scales, [n, blocks, 1])


# --- as DequantizeLinear of rows ------------------------------------------------------------------


def _as_rows(
    op: OpBuilder, b: Tensor, scales: Tensor, zeros: Tensor | None,
    bits: int, shape: tuple[int, int, int],
) -> Tensor | None:  # fmt: skip
    """The weight as rows of integers; None for a small one, or where there is no such form."""
    n, blocks, size = shape
    stored, factors = known(b.value), known(scales.value)
    if stored is None or factors is None or 4 * n * blocks * size < LARGE_BYTES:
        return None
    if bits not in CODES or (bits == 4 and (op.opset < MAX_OPSET or size % 2)):
        return None
    if factors.dtype != ir.DataType.FLOAT and op.opset < 19:
        return None
    if zeros is not None and (zeros.dtype != ir.DataType.UINT8 or known(zeros.value) is None):
        return None
    count = n * blocks
    codes = _view(op, b.value, CODES[bits], (count, size))
    steps = _view(op, scales.value, factors.dtype, (count,))
    middle = _zero_points(op, zeros, bits, n, blocks)
    return op.DequantizeLinear(codes, steps, middle, axis=0)


def _view(op: OpBuilder, value: ir.Value, dtype: ir.DataType, shape: tuple[int, ...]) -> Tensor:
    """An initializer with the bytes of another one; one for all that share it."""
    assert value.const_value is not None
    assert value.graph is not None
    name = f"{value.name}.{dtype.name.lower()}.{'x'.join(map(str, shape))}"
    view = value.graph.initializers.get(name)
    if view is None:
        op.names.reserve(name)
        view = _initializer(same_bytes(value.const_value, dtype, shape, name), name)
    return op.tensor(view)


def _zero_points(op: OpBuilder, zeros: Tensor | None, bits: int, n: int, blocks: int) -> Tensor:
    """One for each block: those that are stored, or the middle of the range."""
    count, dtype = n * blocks, CODES[bits]
    if zeros is None:
        middle = {4: 0x88, 8: 0x80}[bits]
        array = np.full(-(-count * bits // 8), middle, np.uint8)
        key = op.names.fresh(f"{op.scope}.zero_points")
        return op.tensor(_initializer(_packed(array, dtype, count, key), key))
    if blocks * bits % 8 == 0:
        return _view(op, zeros.value, dtype, (count,))
    stored = known(zeros.value)
    assert stored is not None
    packed = stored.numpy().reshape(n, -1)  # each row begins with a byte of its own
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)[:, :blocks].reshape(-1)
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    key = op.names.fresh(f"{zeros.name}.{dtype.name.lower()}")
    return op.tensor(_initializer(_packed(codes[::2] | codes[1::2] << 4, dtype, count, key), key))


def _packed(array: np.ndarray[Any, Any], dtype: ir.DataType, count: int, name: str) -> Any:
    return same_bytes(ir.tensor(array), dtype, (count,), name)


def _initializer(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )  # fmt: skip
    value.meta[WEIGHT] = True
    return value
