"""Weights stored in a few bits, and the same bytes under another type and shape."""

from __future__ import annotations

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
    tensor: ir.TensorProtocol, dtype: ir.DataType, shape: Sequence[int], name: str
) -> ir.TensorProtocol:
    """The bytes of a tensor, not copied, taken for another type: two 4-bit integers in each.

    What is in a file stays there.
    """
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location, tensor.offset, tensor.length, dtype,
            shape=ir.Shape(shape), name=name, base_dir=tensor.base_dir,
        )  # fmt: skip
    stored = tensor.numpy().reshape(-1)
    if dtype.bitwidth < 8:
        packed = stored.view(np.uint8)
        return ir.PackedTensor(packed, dtype, shape=ir.Shape(shape), name=name)
    array = stored.view(dtype.numpy()).reshape(shape)
    return ir.Tensor(array, dtype=dtype, shape=ir.Shape(shape), name=name)
