"""Weights stored in a few bits, and the same bytes under another type and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

LARGE_BYTES = 1 << 20
"""Bytes, counted as floats, from which on a weight stays in its few bits while a model runs.

Measured with onnxruntime on two cores: to turn 1 MB of floats out of 4-bit integers takes some
250 µs in every run, the nodes that let it wait some 15 µs. Smaller weights become floats once, when
the model is loaded.
"""


def same_bytes(
    tensor: ir.TensorProtocol, dtype: ir.DataType, start: int, shape: Sequence[int], name: str
) -> ir.TensorProtocol:
    """Bytes of a tensor, not copied, taken for another type: two 4-bit integers in each.

    What is in a file stays there.

    Args:
        tensor: where the bytes are.
        dtype: what to take them for.
        start: where to begin, counted in numbers of this type.
        shape: of the result.
        name: of the result.
    """
    begin = start * dtype.bitwidth // 8
    length = -(-math.prod(shape) * dtype.bitwidth // 8)
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location, (tensor.offset or 0) + begin, length, dtype,
            shape=ir.Shape(shape), name=name, base_dir=tensor.base_dir,
        )  # fmt: skip
    stored = tensor.numpy().reshape(-1).view(np.uint8)[begin : begin + length]
    if dtype.bitwidth < 8:
        return ir.PackedTensor(stored, dtype, shape=ir.Shape(shape), name=name)
    array = stored.view(dtype.numpy()).reshape(shape)
    return ir.Tensor(array, dtype=dtype, shape=ir.Shape(shape), name=name)
