"""Scan of opset 8, which has a batch axis and sequence lengths, as two of today's."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.tensor import dims_of

INT64 = ir.DataType.INT64


def old_scan(
    op: OpBuilder,
    lengths: Tensor | None,
    *operands: Tensor,
    body: ir.Graph,
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """A Scan over the batch whose body is a Scan over one sequence.

    All sequences run to the end. Behind its own length one keeps its states and gives zeros, and
    what is read from the back is reversed within its length before.
    """
    scanned, states = list(operands), len(operands) - num_scan_inputs
    count = num_scan_inputs
    if lengths is not None:
        for i, backwards in enumerate(directions):
            if backwards:
                scanned[states + i] = op.ReverseSequence(
                    scanned[states + i], lengths, batch_axis=0, time_axis=1
                )
        scanned.append(_is_inside(op, lengths, scanned[states]))
        _stop_at_end(op, body, states)
        directions, count = (), count + 1
    inner = OpBuilder(op.names, op.constants, op.opset)
    inner.scope = f"{op.scope}/sequence"
    slices = [_slice(op, tensor) for tensor in scanned]
    results = inner.many(
        "Scan",
        *(inner.tensor(value) for value in slices),
        outputs=len(body.outputs),
        body=body,
        num_scan_inputs=count,
        scan_input_directions=list(directions) or None,
    )
    for result, output in zip(results, body.outputs):
        result.value.type = _type(output)
    graph = ir.Graph(
        slices, [r.value for r in results], nodes=inner.nodes, name=op.names.fresh("batch")
    )
    return op.many("Scan", *scanned, outputs=len(results), body=graph, num_scan_inputs=len(scanned))


def _is_inside(op: OpBuilder, lengths: Tensor, sequence: Tensor) -> Tensor:
    """For each sequence and step whether it is within the sequence's length."""
    steps = op.Range(0, op.Squeeze(op.Shape(sequence, start=1, end=2), [0]), 1)
    return op.Less(op.Unsqueeze(steps, [0]), op.Unsqueeze(op.Cast(lengths, to=INT64), [1]))


def _stop_at_end(op: OpBuilder, body: ir.Graph, states: int) -> None:
    """Give a body one more input: whether the sequence goes on."""
    inner = OpBuilder(op.names, op.constants, op.opset)
    inner.scope = f"{op.scope}/step"
    goes_on = ir.Value(
        name=op.names.fresh("goes_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
    )
    outputs = []
    for i, output in enumerate(body.outputs):
        kind = _type(output)
        new = inner.tensor(output)
        before = inner.tensor(body.inputs[i]) if i < states else inner.like(0, new)
        result = inner.Where(inner.tensor(goes_on), new, before).value
        result.type, result.shape = kind, output.shape
        outputs.append(result)
    body.inputs.append(goes_on)
    body.extend(inner.nodes)
    body.outputs.clear()
    body.outputs.extend(outputs)


def _type(value: ir.Value) -> ir.TypeProtocol:
    if value.type is None:
        raise ModelError(f"The type of {value.name!r}, which a Scan gives, is not known.")
    return value.type


def _slice(op: OpBuilder, tensor: Tensor) -> ir.Value:
    """What the body sees of a tensor: one element of the batch."""
    dims = dims_of(tensor.value)
    return ir.Value(
        name=op.names.fresh(f"{tensor.name}_of_one"),
        type=ir.TensorType(tensor.dtype),
        shape=None if dims is None else ir.Shape(dims[1:]),
    )
