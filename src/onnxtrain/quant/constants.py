"""What is computed from constants only, computed now, with the numbers that a runtime gets.

Single operations on float32 have one right result, which numpy and onnxruntime both give; so the
integers of a weight are the same here and in the model that was trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..errors import QuantizationError

Array = npt.NDArray[Any]
Compute = Callable[[ir.Node, Sequence[Any]], Array]


Known = dict[ir.Value, "Array | None"]
GROWTH = 1 << 20
"""Elements up to which a result may be larger than what it is computed from."""


def value_of(value: ir.Value | None, known: Known | None = None) -> Array | None:
    """The value of an initializer, or of what simple nodes make of initializers; None for others.

    Integers of four bits come as numpy's extension type for them.

    Args:
        value: of a graph.
        known: what was computed already, and is remembered; a value that is read twice is
            computed once in any case.
    """
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    if node is None:
        return None if value.const_value is None else value.const_value.numpy()
    known = {} if known is None else known
    if value not in known:
        known[value] = _computed(node, known)
    return known[value]


def _computed(node: ir.Node, known: Known) -> Array | None:
    compute = COMPUTED.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
    if compute is None or not node.inputs:
        return None
    operands = []
    for value in node.inputs:
        operand = None if value is None else value_of(value, known)
        if value is not None and operand is None:
            return None
        operands.append(operand)
    if _grows(node, operands):
        return None
    with np.errstate(all="ignore"):
        return compute(node, operands)


def _grows(node: ir.Node, operands: Sequence[Any]) -> bool:
    """Whether a node makes much more of its operands than these are."""
    if node.op_type not in {"Add", "Div", "Mul", "Sub"}:
        return False
    size = math.prod(np.broadcast_shapes(*(o.shape for o in operands)))
    return size > max(GROWTH, *(int(o.size) for o in operands))


def is_constant(value: ir.Value | None, known: dict[ir.Value, bool] | None = None) -> bool:
    """Whether only initializers and simple nodes are behind a value; nothing is computed."""
    if value is None or value.is_graph_input():
        return False
    node = value.producer()
    if node is None:
        return value.const_value is not None
    known = {} if known is None else known
    if value not in known:
        simple = node.domain in {"", "ai.onnx"} and node.op_type in COMPUTED and bool(node.inputs)
        known[value] = simple and all(v is None or is_constant(v, known) for v in node.inputs)
    return known[value]


def quantized(x: Array, scale: Array, zero: Array, axis: int, dtype: ir.DataType) -> Array:
    """What QuantizeLinear gives: rounded half to even, moved by the zero point, cut to the type."""
    low, high = limits(dtype)
    codes = np.rint(x / along(scale, x, axis)) + along(zero.astype(np.float32), x, axis)
    return np.asarray(np.clip(codes, low, high), dtype.numpy())


def dequantized(codes: Array, scale: Array, zero: Array | None, axis: int, block: int = 0) -> Array:
    """What DequantizeLinear gives."""
    moved = codes.astype(np.int32)
    if zero is not None:
        moved = moved - along(zero.astype(np.int32), codes, axis, block)
    return np.asarray(moved.astype(np.float32) * along(scale, codes, axis, block), scale.dtype)


def limits(dtype: ir.DataType) -> tuple[int, int]:
    """Smallest and largest number of an integer type."""
    bits = dtype.bitwidth
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed() else (0, 2**bits - 1)


def along(numbers: Array, like: Array, axis: int, block: int = 0) -> Array:
    """One number, one per index of an axis, or one per block along it, ready to meet `like`."""
    if numbers.size == 1:
        return numbers.reshape(())
    axis %= like.ndim
    if block:
        if not 0 < block <= like.shape[axis]:
            raise QuantizationError(f"A block of {block} along an axis of {like.shape[axis]}.")
        repeated = np.repeat(numbers, block, axis)
        return np.take(repeated, range(like.shape[axis]), axis)
    return numbers.reshape([-1 if i == axis else 1 for i in range(like.ndim)])


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute as a plain value."""
    known = node.attributes.get(name)
    return default if known is None else known.value


def _quantize(node: ir.Node, operands: Sequence[Any]) -> Array:
    x, scale, *rest = operands
    zero = rest[0] if rest and rest[0] is not None else np.zeros(1, np.uint8)
    dtype = ir.DataType.from_numpy(zero.dtype)
    return quantized(x, scale, zero, attribute(node, "axis", 1), dtype)


def _dequantize(node: ir.Node, operands: Sequence[Any]) -> Array:
    codes, scale, *rest = operands
    zero = rest[0] if rest else None
    axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)
    return dequantized(codes, scale, zero, axis, block)


def _cast(node: ir.Node, operands: Sequence[Any]) -> Array:
    return np.asarray(operands[0]).astype(ir.DataType(attribute(node, "to", 1)).numpy())


def _transpose(node: ir.Node, operands: Sequence[Any]) -> Array:
    return np.transpose(operands[0], attribute(node, "perm", None))


def _clip(_: ir.Node, operands: Sequence[Any]) -> Array:
    x, low, high = [*operands, None, None][:3]
    return np.asarray(np.clip(x, low, high))


COMPUTED: dict[str, Compute] = {
    "Add": lambda _, o: np.add(o[0], o[1]),
    "Cast": _cast,
    "Clip": _clip,
    "DequantizeLinear": _dequantize,
    "Div": lambda _, o: np.divide(o[0], o[1]),
    "Identity": lambda _, o: np.asarray(o[0]),
    "Mul": lambda _, o: np.multiply(o[0], o[1]),
    "QuantizeLinear": _quantize,
    "Round": lambda _, o: np.rint(o[0]),
    "Sub": lambda _, o: np.subtract(o[0], o[1]),
    "Transpose": _transpose,
    "Unsqueeze": lambda _, o: np.expand_dims(o[0], tuple(int(a) for a in o[1])),
}
"""What stands between a stored weight and a layer, and what the scales are computed with."""
