"""Weights of a few bits in blocks (`MatMulNBits`) as DequantizeLinear, which leaves them as stored.

A block of integers with one scale is a row of a matrix [blocks, size] with one scale per row: so
the bytes of the weight are those of a tensor of 4-bit integers, and nothing is copied. Rows are
also the form that onnxruntime's kernel is fastest in: 3 million weights take 2.8 ms as rows, 6.5 as
blocks along the last axis and 4.0 along the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.few_bits import LARGE_BYTES, same_bytes
from ..graph.nodes import known
from ..graph.schema import MAX_OPSET
from .attention import untrained
from .bits import unpack
from .rewrite import WEIGHT, all_nodes, standard, weight

MS = "com.microsoft"
PART = 1 << 26
"""Bytes that a weight has at most as floats; a larger one (of the last layer of a language model,
say) is used in parts."""
SMALL_BYTES = 1 << 18
"""Bytes that a weight has at most as floats if it is stored so: a file may have hundreds."""
CODES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}
CHANGED = frozenset({"DFT", "GridSample", "GroupNormalization"})
"""Operators that opset 20 or 21 has in another form than 18."""


def raise_for_four_bits(model: ir.Model) -> ir.Model:
    """Take opset 21 for a model of 18 to 20 with large weights of four bits: it has their type."""
    if model.opset_imports[""] < MAX_OPSET and any(map(_has_four_bits, all_nodes(model))):
        raise_version(model)
    return model


def raise_version(model: ir.Model) -> bool:
    """Take opset 21 for a model of 18 to 20; gives whether its operators mean the same there."""
    used = {n.op_type for n in all_nodes(model) if not standard(n.domain)}
    if used.isdisjoint(CHANGED):
        model.opset_imports[""] = MAX_OPSET
        return True
    return False


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

    The gradient flows to the activation; scales are trained only when they are asked for by name,
    like those of DequantizeLinear.
    """
    untrained(scales, zeros)
    if group_index is not None:
        raise ModelError("MatMulNBits with `g_idx` is not supported.")
    if bits not in (2, 4, 8) or weight_prepacked:
        raise ModelError(f"MatMulNBits with bits={bits} or prepacked weights is not supported.")
    blocks = -(-K // block_size)
    shape = N, blocks, block_size
    floats = _floats(op, a, b, scales, zeros, bits, shape)
    if floats is not None:
        y = a @ weight(op, "floats", np.ascontiguousarray(floats[:, :K].T), trained=False)
        return y if bias is None else y + bias
    parts = _as_rows(op, b, scales, zeros, bits, shape)
    if not parts:
        parts = [_unpacked(op, a, b, scales, zeros, bits, shape)]
    results = []
    for part in parts:
        matrix = op.Reshape(part, [-1, blocks * block_size])
        if blocks * block_size != K:
            matrix = op.Slice(matrix, [0], [K], [1])
        results.append(a @ op.Transpose(matrix, perm=[1, 0]))
    y = results[0] if len(results) == 1 else op.Concat(*results, axis=-1)
    return y if bias is None else y + bias


def _floats(
    op: OpBuilder, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None,
    bits: int, shape: tuple[int, int, int],
) -> np.ndarray[Any, Any] | None:  # fmt: skip
    """A small weight as floats [outputs, inputs], computed now; None if it is large or no constant.

    onnxruntime would do the same by some twelve nodes whenever the model is loaded.
    """
    n, blocks, size = shape
    tensors = [known(t.value) for t in (b, scales, zeros) if t is not None]
    if 4 * n * blocks * size > SMALL_BYTES or any(t is None for t in tensors):
        return None
    stored, factors, *points = (t for t in tensors if t is not None)
    packed_zeros = points[0] if points and points[0].dtype == ir.DataType.UINT8 else None
    _check_sizes(stored, factors, packed_zeros, bits, shape)
    dtype = a.dtype.numpy()
    codes = _codes(stored.numpy(), bits, (n * blocks, size)).astype(dtype).reshape(shape)
    middle: Any = dtype.type(2 ** (bits - 1))
    if packed_zeros is not None:
        rows = _codes(packed_zeros.numpy(), bits, (n, -1))[:, :blocks]
        middle = rows.astype(dtype).reshape(n, blocks, 1)
    elif points:
        middle = points[0].numpy().astype(dtype).reshape(n, blocks, 1)
    floats: np.ndarray[Any, Any] = (codes - middle) * factors.numpy().astype(dtype).reshape(
        n, blocks, 1
    )
    return floats.reshape(n, -1)


def _codes(packed: np.ndarray[Any, Any], bits: int, shape: tuple[int, int]) -> Any:
    """Small integers out of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed.reshape(-1, 1) >> shifts & np.uint8(2**bits - 1)).reshape(shape)


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
) -> list[Tensor]:  # fmt: skip
    """The weight as rows of integers, a very large one in parts of its outputs.

    Nothing where it is small, or where there is no such form.
    """
    n, blocks, size = shape
    stored, factors = known(b.value), known(scales.value)
    if stored is None or factors is None or 4 * n * blocks * size < LARGE_BYTES:
        return []
    if bits not in CODES or (bits == 4 and (op.opset < MAX_OPSET or size % 2)):
        return []
    if factors.dtype != ir.DataType.FLOAT and op.opset < 19:
        return []
    if zeros is not None and (zeros.dtype != ir.DataType.UINT8 or known(zeros.value) is None):
        return []
    _check_sizes(stored, factors, None if zeros is None else known(zeros.value), bits, shape)
    points = _zero_points(op, zeros, bits, n, blocks)
    rows = _Rows(op, b.value, scales.value, points, CODES[bits], shape)
    outputs = max(PART // (4 * blocks * size) & -2, 2)  # even: no byte belongs to two parts
    return [rows.of(start, min(start + outputs, n)) for start in range(0, n, outputs)]


def _check_sizes(
    stored: ir.TensorProtocol, factors: ir.TensorProtocol, zeros: ir.TensorProtocol | None,
    bits: int, shape: tuple[int, int, int],
) -> None:  # fmt: skip
    """Raise unless the tensors have the bytes that the attributes speak of."""
    n, blocks, size = shape
    expected = [(stored, n * blocks * (size * bits // 8)), (factors, n * blocks)]
    if zeros is not None:
        expected.append((zeros, n * -(-blocks * bits // 8)))
    for tensor, count in expected:
        if tensor.size != count:
            raise ModelError(
                f"MatMulNBits: {tensor.name!r} has {tensor.size} elements, and N={n}, {blocks} "
                f"blocks of {size} and bits={bits} ask for {count}."
            )


def _zero_points(
    op: OpBuilder, zeros: Tensor | None, bits: int, n: int, blocks: int
) -> ir.Value | None:
    """One for each block, packed without gaps; None for the middle of the range."""
    stored = None if zeros is None else known(zeros.value)
    if zeros is None or stored is None or blocks * bits % 8 == 0:
        return None if zeros is None else zeros.value
    packed = stored.numpy().reshape(n, -1)  # each row begins with a byte of its own
    codes: npt.NDArray[Any] = (
        np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)[:, :blocks].reshape(-1)
    )
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    name = op.names.fresh(f"{zeros.name}.dense")
    return _initializer(ir.tensor(codes[::2] | codes[1::2] << 4, name=name), name)


@dataclass
class _Rows:
    """A weight as a matrix with a block in each row.

    Attributes:
        op: the builder.
        codes, scales, zeros: what is stored, as bytes; without zero points it is the middle.
        dtype: of the codes and the zero points.
        shape: outputs, blocks of each, numbers in a block.
    """

    op: OpBuilder
    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    dtype: ir.DataType
    shape: tuple[int, int, int]

    def of(self, start: int, end: int) -> Tensor:
        """The rows of the outputs from `start` to before `end`, as floats."""
        op, (_, blocks, size) = self.op, self.shape
        first, count = start * blocks, (end - start) * blocks
        codes = self._view(self.codes, self.dtype, first * size, (count, size))
        assert self.scales.const_value is not None
        steps = self._view(self.scales, self.scales.const_value.dtype, first, (count,))
        if self.zeros is None:
            middle = self._middle(count)
        else:
            middle = self._view(self.zeros, self.dtype, first, (count,))
        return op.DequantizeLinear(codes, steps, middle, axis=0)

    def _view(
        self, value: ir.Value, dtype: ir.DataType, start: int, shape: tuple[int, ...]
    ) -> Tensor:
        """An initializer with bytes of another one; one for all layers that share it."""
        assert value.const_value is not None
        sizes = "x".join(map(str, shape))
        name = f"{value.name}.{dtype.name.lower()}.{start}.{sizes}"
        view = None if value.graph is None else value.graph.initializers.get(name)
        if view is None:
            self.op.names.reserve(name)
            view = _initializer(same_bytes(value.const_value, dtype, start, shape, name), name)
        return self.op.tensor(view)

    def _middle(self, count: int) -> Tensor:
        """Zero points in the middle of the range."""
        bits = self.dtype.bitwidth
        array = np.full(-(-count * bits // 8), 0x88 if bits == 4 else 0x80, np.uint8)
        name = self.op.names.fresh(f"{self.op.scope}.zero_points")
        tensor = same_bytes(ir.tensor(array), self.dtype, 0, (count,), name)
        return self.op.tensor(_initializer(tensor, name))


def _initializer(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )  # fmt: skip
    value.meta[WEIGHT] = True
    return value
