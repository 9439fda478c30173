"""Integers of a few bits, packed in bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import OpBuilder, Tensor


def unpack(op: OpBuilder, packed: Tensor, bits: int, shape: Sequence[int]) -> Tensor:
    """Small integers out of bytes, the lowest bits first, along the last axis."""
    if bits == 8:
        return op.Reshape(packed, list(shape))
    low = op.const(np.array(2**bits - 1, np.uint8))
    parts = []
    for shift in range(0, 8, bits):
        moved = packed
        if shift:
            moved = op.BitShift(packed, op.const(np.array(shift, np.uint8)), direction="RIGHT")
        parts.append(op.Unsqueeze(op.BitwiseAnd(moved, low), [-1]))
    return op.Reshape(op.Concat(*parts, axis=-1), list(shape))
