"""Gradients that are sequences: as long as the sequence they belong to, element for element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ..graph import OpBuilder, Tensor


def is_sequence(value: ir.Value) -> bool:
    """Whether a value is a sequence of tensors."""
    return isinstance(value.type, ir.SequenceType)


def element_type(value: ir.Value) -> ir.TensorType:
    """Type of the elements of a sequence."""
    return ir.TensorType(value.dtype or ir.DataType.FLOAT)


def typed_like(result: Tensor, sequence: ir.Value) -> Tensor:
    """Say that a new value is a sequence like another."""
    result.value.type = ir.SequenceType(ir.TensorType(sequence.dtype or ir.DataType.FLOAT))
    result.value.shape = None if sequence.shape is None else sequence.shape.copy()
    return result


def map_elements(
    op: OpBuilder,
    function: Callable[[OpBuilder, list[Tensor]], Tensor],
    sequences: Sequence[Tensor],
    dtype: ir.DataType | None = None,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """Apply a function to the elements of sequences of one length; gives a sequence.

    Args:
        op: builder of the graph.
        function: builds the nodes for one element of each sequence.
        sequences: the sequences; the elements of the first tell the shape of the results.
        dtype: element type of the result; that of the first sequence by default.
        shape: shape of the resulting elements, when it differs.
    """
    first = sequences[0].value
    body = OpBuilder(op.names, op.constants, op.opset)
    inputs = []
    for sequence in sequences:
        value = sequence.value
        inputs.append(
            body.tensor(
                ir.Value(
                    name=op.names.fresh(f"{value.name}_element"),
                    type=ir.TensorType(value.dtype or ir.DataType.FLOAT),
                    shape=None if value.shape is None else value.shape.copy(),
                )
            )
        )
    result = function(body, inputs)
    kind = dtype or first.dtype or ir.DataType.FLOAT
    result.value.type = ir.TensorType(kind)
    if shape is not None:
        result.value.shape = ir.Shape(shape)
    elif first.shape is not None:
        result.value.shape = first.shape.copy()
    graph = ir.Graph(
        [i.value for i in inputs],
        [result.value],
        nodes=body.nodes,
        name=op.names.fresh("element"),
    )
    mapped = op.emit("SequenceMap", list(sequences), 1, body=graph)[0]
    mapped.value.type = ir.SequenceType(ir.TensorType(kind))
    return mapped


def add(op: OpBuilder, parts: Sequence[Tensor]) -> Tensor:
    """The element-wise sum of sequences of equal length."""
    return map_elements(op, lambda body, each: body.Sum(*each), parts)


def zeros_like(op: OpBuilder, sequence: Tensor) -> Tensor:
    """A sequence of zeros."""
    return map_elements(op, lambda body, each: body.zeros_like(each[0]), [sequence])


def zeros(op: OpBuilder, value: Tensor) -> Tensor:
    """Zeros like a tensor, or like every tensor of a sequence."""
    return zeros_like(op, value) if is_sequence(value.value) else op.zeros_like(value)


def extended(op: OpBuilder, start: Tensor, source: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """A sequence with `count` elements of another behind its own, from the position `first` on."""
    element = element_type(source.value)
    body = OpBuilder(op.names, op.constants, op.opset)
    scalar = ir.Shape([])

    def value(name: str, kind: ir.TypeProtocol, shape: ir.Shape | None = None) -> ir.Value:
        return ir.Value(name=op.names.fresh(name), type=kind, shape=shape)

    number = value("number", ir.TensorType(ir.DataType.INT64), scalar)
    again = value("again", ir.TensorType(ir.DataType.BOOL), scalar)
    so_far = value("so_far", ir.SequenceType(element))
    picked = body.SequenceAt(source, body.Add(body.tensor(number), first))
    picked.value.type = element
    longer = typed_like(body.SequenceInsert(body.tensor(so_far), picked), so_far)
    graph = ir.Graph(
        [number, again, so_far],
        [body.Identity(body.tensor(again)).value, longer.value],
        nodes=body.nodes,
        name=op.names.fresh("extend"),
    )
    return typed_like(op.many("Loop", count, None, start, outputs=1, body=graph)[0], source.value)
