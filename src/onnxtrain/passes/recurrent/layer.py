"""A recurrent node taken apart: what each direction reads, and how the results are joined."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...autodiff.walk import attributes_of
from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ...graph.nodes import ints
from .cells import CELLS, Weights, activations


class Layer:
    """The operands of a recurrent node, direction by direction, with time first."""

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        self.op, self.node = op, node
        self._parts: dict[tuple[ir.Value, int], Sequence[Tensor]] = {}
        self._zeros: Tensor | None = None
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
        names = [n.decode() if isinstance(n, bytes) else n for n in names]
        self.activations = [n.lower() for n in names]
        self.functions = activations(
            names,
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

    def results(
        self, op: OpBuilder, directions: Sequence[tuple[Tensor, Sequence[Tensor]]]
    ) -> list[Tensor]:
        """Y, Y_h and, for an LSTM, Y_c, from h of all steps and the final states of directions."""
        axis = 2 if self.by_batch else 1
        y = [op.transpose(ys, 1, 0, 2) if self.by_batch else ys for ys, _ in directions]
        results = [_joined(op, y, axis)]
        finals = zip(*(states for _, states in directions))
        axis = 1 if self.by_batch else 0
        return results + [_joined(op, states, axis) for states in finals]

    def _part(self, x: Tensor | None, d: int, axis: int = 0) -> Tensor | None:
        """The part of an operand that belongs to direction `d`."""
        if x is None:
            return None
        joined = _before_joining(x.value, d, self.count, axis)
        if joined is not None:
            return self.op.tensor(joined)
        if self.count == 1:
            return self.op.Squeeze(x, [axis])
        return self._directions(x, axis)[d]

    def _directions(self, x: Tensor, axis: int) -> Sequence[Tensor]:
        """The parts of an operand that belong to the directions: one Split, once.

        A Gather each is what onnxruntime makes a Split of, and has a gradient of more nodes.
        """
        if (x.value, axis) not in self._parts:
            op, count, dims = self.op, self.count, x.shape
            sizes = [size for size in dims[2:] if isinstance(size, int)] if dims else []
            if axis == 0 and dims is not None and len(sizes) == len(dims) - 2:
                rows = op.Reshape(x, op.const([-1, *sizes]))
                parts: Sequence[Tensor] = op.many(
                    "Split", rows, outputs=count, axis=0, num_outputs=count
                )
                for part in parts:
                    part.value.type, part.value.shape = x.value.type, ir.Shape([dims[1], *sizes])
            else:
                split = op.many("Split", x, outputs=count, axis=axis, num_outputs=count)
                parts = [op.Squeeze(part, [axis]) for part in split]
            self._parts[x.value, axis] = parts
        return self._parts[x.value, axis]

    def weights(self, d: int) -> Weights:
        """Weights and biases of direction `d`."""
        op = self.op
        wb: Tensor | None = None
        rb: Tensor | None = None
        both = self._part(self.b, d)
        if both is not None:
            wb, rb = op.many("Split", both, outputs=2, axis=0, num_outputs=2)
        w, r = self._part(self.w, d), self._part(self.r, d)
        assert w is not None
        assert r is not None
        each = len(self.functions) // self.count
        functions = self.functions[d * each : (d + 1) * each]
        p = self._part(self.p, d)
        return Weights(self.x, w, r, wb, rb, p, self.size, self.flags, functions)

    def peepholes(self, d: int) -> dict[str, Tensor]:
        """Peephole weights of direction `d` by gate, if there are any."""
        p = self._part(self.p, d)
        return (
            {}
            if p is None
            else dict(zip("iof", self.op.many("Split", p, outputs=3, axis=0, num_outputs=3)))
        )

    def starts(self, d: int) -> list[Tensor]:
        """The states before the first step: h and, for an LSTM, c."""
        initial = [self.h0] if self.node.op_type != "LSTM" else [self.h0, self.c0]
        return [self._start(g, d) for g in initial]

    def _start(self, initial: Tensor | None, d: int) -> Tensor:
        op = self.op
        if initial is not None:
            start = self._part(initial, d, 1 if self.by_batch else 0)
            assert start is not None
            return start
        if self._zeros is None:
            shape = op.Concat(op.dim_of(self.x, 1), op.const([self.size]), axis=0)
            self._zeros = op.full(shape, 0, self.x.dtype)
        return self._zeros


def _joined(op: OpBuilder, parts: Sequence[Tensor], axis: int) -> Tensor:
    """The directions along an axis of their own."""
    parts = [op.Unsqueeze(p, [axis]) for p in parts]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def _before_joining(value: ir.Value, d: int, count: int, axis: int) -> ir.Value | None:
    """What an exporter gave the axis of directions, and joined with that of other directions."""
    node = value.producer()
    if node is not None and node.op_type == "Concat" and count > 1:
        if len(node.inputs) != count or node.attributes.get_int("axis", 0) != axis:
            return None
        part = node.inputs[d]
        node = part.producer() if part is not None else None
    elif count > 1:
        return None
    if node is None or node.op_type != "Unsqueeze" or ints(node.inputs[1]) != [axis]:
        return None
    return node.inputs[0]
