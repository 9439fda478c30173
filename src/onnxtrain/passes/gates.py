"""Gates: nodes that give a value unchanged, but only once another value is there.

A runtime orders nodes as it likes among those orders that their data allow. A gate is a real data
dependency, so it holds in all of them, and because no runtime can prove that a gate changes
nothing, what reads it is never merged with what reads the value itself, nor computed beforehand.

A gate is a Reshape to the shape ``[0, 0, …]`` ("as it is"): no data is touched. The zeros are
computed from one element ``a`` of each value waited for, as ``a < a``, which is false for every
number, infinity and NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..graph import FLOATS, OpBuilder, Tensor


def zero_after(op: OpBuilder, values: Sequence[ir.Value]) -> Tensor:
    """An INT64 that is 0, once all these values are known; they are numbers."""
    firsts = []
    for value in values:
        # Two axes: of a vector, onnx's inference would follow every single element
        column = op.Reshape(op.tensor(value), [-1, 1])
        first = op.Slice(column, [0], [1], [0])  # none, of an empty value
        if value.dtype != ir.DataType.FLOAT:
            first = op.Cast(first, to=ir.DataType.FLOAT)
        firsts.append(first)
    together = op.Concat(*firsts, axis=0) if len(firsts) > 1 else firsts[0]
    zeros = op.Cast(op.Less(together, together), to=ir.DataType.INT64)
    return op.ReduceSum(zeros, [0], keepdims=0)


def reshape_gate(op: OpBuilder, value: ir.Value, zero: Tensor) -> ir.Value:
    """A gate that touches no data; the value has at least one dimension, and their number is known.

    A runtime may drop it in front of another Reshape: there it has to be an `arithmetic_gate`.
    """
    assert value.shape is not None
    gate = op.Reshape(op.tensor(value), op.Expand(zero, [len(value.shape)]))
    return _like(gate, value)


def arithmetic_gate(op: OpBuilder, value: ir.Value, zero: Tensor) -> ir.Value:
    """A gate that copies the value; none of its elements changes."""
    tensor = op.tensor(value)
    if value.dtype == ir.DataType.BOOL:
        gate = op.Or(tensor, op.Cast(zero, to=ir.DataType.BOOL))
    elif value.dtype in FLOATS:
        gate = op.Mul(tensor, op.Cast(op.Add(zero, 1), to=value.dtype))
    else:
        gate = op.Add(tensor, op.Cast(zero, to=value.dtype))
    return _like(gate, value)


def _like(gate: Tensor, value: ir.Value) -> ir.Value:
    gate.value.type = value.type
    gate.value.shape = None if value.shape is None else value.shape.copy()
    return gate.value
