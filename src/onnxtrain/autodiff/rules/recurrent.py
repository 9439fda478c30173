"""Recurrent layers: LSTM, GRU and RNN.

The fused forward kernels keep neither gates nor cell states, and computing them again costs a third
of the whole step. So a layer that is differentiated is written as one big product over all time
steps, a Scan with a small body that also returns what the backward needs, and that Scan's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.infer_nodes import infer_nodes
from .. import bodies
from ..registry import graph_gradient
from ..walk import Walk
from . import lstm
from .recurrent_layer import Layer, active_operands, put_in_place


@graph_gradient("LSTM", "GRU", "RNN", stops=(4,))
def recurrent(
    walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]
) -> Iterable[tuple[ir.Value, Tensor]]:
    if lstm.is_plain(node):
        return lstm.gradient(walk, node, dys)
    op = walk.op
    forward = bodies.inside(op)
    forward.scope = node.name or node.op_type
    results = _Loops(forward, node).build()
    infer_nodes(forward.nodes, op.opset)
    inner = Walk(forward.nodes, op, active_operands(walk, forward.nodes), walk.stop)
    for result, dy in zip(results, dys):
        if dy is not None:
            inner.add(result.value, dy)
    scope = op.scope
    put_in_place(node, forward.nodes, results)
    inner.run()
    op.scope = scope
    return [(v, g) for v in inner.wrt if (g := inner.take(v)) is not None]


class _Loops:
    """Writes a layer as nodes around a Scan per direction; its gradient is that of the nodes."""

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        self.op, self.node, self.layer = op, node, Layer(op, node)
        self.x, self.size = self.layer.x, self.layer.size

    def build(self) -> list[Tensor]:
        """Y, Y_h and, for an LSTM, Y_c."""
        mask = self._mask()
        found = [self._direction(d, mask) for d in range(self.layer.count)]
        return self.layer.results(self.op, found)

    def _mask(self) -> Tensor | None:
        """Whether a time step belongs to a sequence: BOOL [time, batch, 1]."""
        op = self.op
        if self.layer.lengths is None:
            return None
        count = op.Squeeze(op.dim_of(self.x, 0), [0])
        steps = op.Unsqueeze(op.Range(op.const(np.array(0)), count, op.const(np.array(1))), [1])
        lengths = op.Unsqueeze(op.Cast(self.layer.lengths, to=ir.DataType.INT64), [0])
        return op.Unsqueeze(op.Less(steps, lengths), [2])

    def _direction(self, d: int, mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """One direction: h of all time steps, and the final states."""
        op = self.op
        slices, step = self.layer.make(op, self.layer.weights(d))
        starts = self.layer.starts(d)
        stacks = slices if mask is None else [*slices, mask]
        body = bodies.inside(op)
        body.scope = op.scope
        states = [self._input(body, f"{op.scope}/state", (self.size,)) for _ in starts]
        parts = [self._slice(body, s) for s in stacks]
        after = step(body, states, parts[: len(slices)])
        shown = after[0]
        if mask is not None:
            after = [body.Where(parts[-1], new, old) for new, old in zip(after, states)]
        outputs = bodies.body_outputs(body, [*after, shown])
        graph = ir.Graph(
            [t.value for t in (*states, *parts)],
            outputs,
            nodes=body.nodes,
            name=op.names.fresh(f"{op.scope}/step"),
        )
        turned = int(self.layer.backwards[d])
        *finals, ys = op.many(
            "Scan",
            *starts,
            *stacks,
            outputs=len(starts) + 1,
            body=graph,
            num_scan_inputs=len(stacks),
            scan_input_directions=[turned] * len(stacks),
            scan_output_directions=[turned],
        )
        if mask is not None:
            ys = op.Where(mask, ys, 0)
        return ys, finals

    def _input(self, body: OpBuilder, stem: str, width: tuple[int, ...]) -> Tensor:
        batch = self.x.dim(1)
        value = ir.Value(
            name=body.names.fresh(stem),
            type=ir.TensorType(self.x.dtype),
            shape=ir.Shape([batch, *width]),
        )
        return body.tensor(value)

    def _slice(self, body: OpBuilder, stack: Tensor) -> Tensor:
        value = ir.Value(
            name=body.names.fresh(f"{stack.name}_now"), type=ir.TensorType(stack.dtype)
        )
        return body.tensor(value)
