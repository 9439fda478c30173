"""Any recurrent layer as one product for all its inputs, and a Scan over rows of states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...autodiff.bodies import Slices, scan
from ...graph import OpBuilder, Tensor
from .layer import Layer

MASK = "mask"


def write(op: OpBuilder, node: ir.Node) -> list[Tensor]:
    """The layer's Y, Y_h and, for an LSTM, Y_c."""
    layer = Layer(op, node)
    steps = steps_of_sequences(op, layer)
    mask = None if steps is None else op.Unsqueeze(steps, [2])
    return layer.results(op, [_direction(op, layer, d, mask) for d in range(layer.count)])


def steps_of_sequences(op: OpBuilder, layer: Layer) -> Tensor | None:
    """Whether a time step belongs to a sequence: BOOL [time, batch]; None if all do."""
    if layer.lengths is None:
        return None
    count = layer.x.dim(0)
    if isinstance(count, int):
        steps = op.const(np.arange(count, dtype=np.int64)[:, None])
    else:
        last = op.Squeeze(op.dim_of(layer.x, 0), [0])
        steps = op.Unsqueeze(op.Range(op.const(np.array(0)), last, op.const(np.array(1))), [1])
    lengths = op.Unsqueeze(op.Cast(layer.lengths, to=ir.DataType.INT64), [0])
    return op.Less(steps, lengths)


def _direction(
    op: OpBuilder, layer: Layer, d: int, mask: Tensor | None
) -> tuple[Tensor, Sequence[Tensor]]:
    """One direction: h of all time steps, and the final states."""
    inputs, cell = layer.make(op, layer.weights(d))
    stacks = {str(i): stack for i, stack in enumerate(inputs)}
    if mask is not None:
        stacks[MASK] = mask

    def step(
        op: OpBuilder, states: Sequence[Tensor], now: Slices
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        after = cell(op, list(states), [now[str(i)] for i in range(len(inputs))])
        h = after[0]
        if MASK in now:  # a sequence that has ended keeps its state
            after = [op.Where(now[MASK], new, old) for new, old in zip(after, states)]
        return after, {"h": h}

    shape = (layer.x.dim(1), layer.size)
    finals, stacked = scan(op, layer.starts(d), stacks, step, layer.backwards[d], shape)
    h = stacked["h"]
    return (h if mask is None else op.Where(mask, h, 0)), finals
