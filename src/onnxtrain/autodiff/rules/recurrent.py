"""Recurrent layers: LSTM, GRU and RNN.

The fused forward kernels keep neither gates nor cell states, and computing them again costs a third
of the whole step. So a layer that is differentiated is written as one big product over all time
steps, a Scan with a small body that also returns what the backward needs, and that Scan's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ...graph.infer_nodes import infer_nodes
from .. import bodies
from ..registry import graph_gradient
from ..walk import Walk, attributes_of
from .recurrent_cells import CELLS, Weights, activations


@graph_gradient("LSTM", "GRU", "RNN", stops=(4,))
def recurrent(
    walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]
) -> Iterable[tuple[ir.Value, Tensor]]:
    op = walk.op
    forward = bodies.inside(op)
    forward.scope = node.name or node.op_type
    results = _Layer(forward, node).build()
    infer_nodes(forward.nodes, op.opset)
    wrt = dict.fromkeys(v for v in node.inputs if v is not None and v in walk.active)
    inner = Walk(forward.nodes, op, wrt, walk.stop)
    for result, dy in zip(results, dys):
        if dy is not None:
            inner.add(result.value, dy)
    scope = op.scope
    _put_in_place(node, forward.nodes, results)
    inner.run()
    op.scope = scope
    return [(v, g) for v in inner.wrt if (g := inner.take(v)) is not None]


def _put_in_place(node: ir.Node, nodes: Sequence[ir.Node], results: Sequence[Tensor]) -> None:
    """Replace the layer by the nodes that compute the same."""
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, nodes)
    new = [r.value for r in results[: len(node.outputs)]]
    for old, value in zip(node.outputs, new):
        if old.name:
            value.name = old.name
            value.type = old.type or value.type
            value.shape = old.shape or value.shape
    ir.convenience.replace_all_uses_with(node.outputs, new, replace_graph_outputs=True)
    graph.remove(node)


class _Layer:
    """Writes one recurrent node as nodes around a Scan per direction."""

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        self.op, self.node = op, node
        self.flags = attributes_of(node, None)
        self.make, self.gates, default = CELLS[node.op_type]
        inputs = [None if v is None else op.tensor(v) for v in node.inputs]
        inputs += [None] * (8 - len(inputs))
        x, w, r = inputs[:3]
        assert x is not None
        assert w is not None
        assert r is not None
        self.by_batch = bool(self.flags.get("layout"))
        self.x = x
        if self.by_batch:
            self.x = op.transpose(x, 1, 0, 2)
            self.x.value.shape = ir.Shape([x.dim(1), x.dim(0), x.dim(2)])
        self.w, self.r, self.b, self.lengths, self.h0, self.c0, self.p = w, r, *inputs[3:]
        direction = str(self.flags.get("direction", "forward"))
        self.backwards = {
            "forward": [False], "reverse": [True], "bidirectional": [False, True],
        }[direction]  # fmt: skip
        self.count = len(self.backwards)
        self.size = self._hidden_size()
        names = self.flags.get("activations") or default * self.count
        self.functions = activations(
            [n.decode() if isinstance(n, bytes) else n for n in names],
            self.flags.get("activation_alpha") or [],
            self.flags.get("activation_beta") or [],
        )

    def _hidden_size(self) -> int:
        size = self.flags.get("hidden_size") or self.r.dim(2)
        if not isinstance(size, int):
            raise ModelError(
                f"{self.node.op_type} {self.node.name!r} has no hidden_size, and the shape of its "
                "weights is not known: give it the attribute."
            )
        return size

    def build(self) -> list[Tensor]:
        """Y, Y_h and, for an LSTM, Y_c."""
        op = self.op
        mask = self._mask()
        found = [self._direction(d, mask) for d in range(self.count)]
        axis = 2 if self.by_batch else 1
        y = [op.transpose(ys, 1, 0, 2) if self.by_batch else ys for ys, _ in found]
        results = [self._joined(y, axis)]
        finals = zip(*(states for _, states in found))
        axis = 1 if self.by_batch else 0
        return results + [self._joined(list(states), axis) for states in finals]

    def _joined(self, parts: list[Tensor], axis: int) -> Tensor:
        """The directions along an axis of their own."""
        op = self.op
        parts = [op.Unsqueeze(p, [axis]) for p in parts]
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)

    def _of(self, x: Tensor | None, d: int, axis: int = 0) -> Tensor | None:
        """The part of an operand that belongs to direction `d`."""
        if x is None:
            return None
        if self.count == 1:
            return self.op.Squeeze(x, [axis])
        return self.op.Gather(x, self.op.const(np.array(d, np.int64)), axis=axis)

    def _mask(self) -> Tensor | None:
        """Whether a time step belongs to a sequence: BOOL [time, batch, 1]."""
        op = self.op
        if self.lengths is None:
            return None
        count = op.Squeeze(op.dim_of(self.x, 0), [0])
        steps = op.Unsqueeze(op.Range(op.const(np.array(0)), count, op.const(np.array(1))), [1])
        lengths = op.Unsqueeze(op.Cast(self.lengths, to=ir.DataType.INT64), [0])
        return op.Unsqueeze(op.Less(steps, lengths), [2])

    def _weights(self, d: int) -> Weights:
        op = self.op
        wb: Tensor | None = None
        rb: Tensor | None = None
        both = self._of(self.b, d)
        if both is not None:
            wb, rb = op.many("Split", both, outputs=2, axis=0, num_outputs=2)
        w, r = self._of(self.w, d), self._of(self.r, d)
        assert w is not None
        assert r is not None
        each = len(self.functions) // self.count
        functions = self.functions[d * each : (d + 1) * each]
        p = self._of(self.p, d)
        return Weights(self.x, w, r, wb, rb, p, self.size, self.flags, functions)

    def _start(self, given: Tensor | None, d: int) -> Tensor:
        op = self.op
        if given is not None:
            start = self._of(given, d, 1 if self.by_batch else 0)
            assert start is not None
            return start
        shape = op.Concat(op.dim_of(self.x, 1), op.const([self.size]), axis=0)
        return op.full(shape, 0, self.x.dtype)

    def _direction(self, d: int, mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """One direction: h of all time steps, and the final states."""
        op = self.op
        slices, step = self.make(op, self._weights(d))
        given = [self.h0] if self.node.op_type != "LSTM" else [self.h0, self.c0]
        starts = [self._start(g, d) for g in given]
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
        turned = int(self.backwards[d])
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
