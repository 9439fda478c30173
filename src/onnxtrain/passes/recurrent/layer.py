"""A recurrent node taken apart: what each direction reads, and how the results are joined."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...autodiff.walk import attributes_of
from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ...graph.nodes import ints, is_zeros, producer_of, scalar
from .cells import CELLS, Weights, activations


class Layer:
    """The operands of a recurrent node, direction by direction, with time first."""

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        self.op, self.node = op, node
        self._parts: dict[tuple[ir.Value, int], Sequence[Tensor]] = {}
        self._zeros: dict[bool, Tensor] = {}
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
        wb, rb = self._biases(d)
        w, r = self._part(self.w, d), self._part(self.r, d)
        assert w is not None
        assert r is not None
        each = len(self.functions) // self.count
        functions = self.functions[d * each : (d + 1) * each]
        p = self._part(self.p, d)
        return Weights(self.x, w, r, wb, rb, p, self.size, self.flags, functions)

    def _biases(self, d: int) -> Sequence[Tensor | None]:
        """The biases of input and state of direction `d`: one Split for those of all directions."""
        op, b = self.op, self.b
        if b is None:
            return None, None
        is_joined = _before_joining(b.value, d, self.count, 0) is not None
        if self.count == 1 or is_joined:
            both = self._part(b, d)
            assert both is not None
            return op.many("Split", both, outputs=2, axis=0, num_outputs=2)
        if (b.value, 0) not in self._parts:
            number = 2 * self.count
            row = op.Reshape(b, op.const([-1]))
            self._parts[b.value, 0] = op.many(
                "Split", row, outputs=number, axis=0, num_outputs=number
            )
        return self._parts[b.value, 0][2 * d : 2 * d + 2]

    def peepholes(self, d: int) -> dict[str, Tensor]:
        """Peephole weights of direction `d` by gate, if there are any."""
        p = self._part(self.p, d)
        return (
            {}
            if p is None
            else dict(zip("iof", self.op.many("Split", p, outputs=3, axis=0, num_outputs=3)))
        )

    def starts(self, d: int, *, in_columns: bool = False) -> list[Tensor]:
        """The states before the first step: h and, for an LSTM, c; features in rows or columns."""
        initial = [self.h0] if self.node.op_type != "LSTM" else [self.h0, self.c0]
        parts = [self._start(x, d) for x in initial]
        turned: dict[ir.Value, Tensor] = {}
        for part in parts if in_columns else ():
            if part is not None and part.value not in turned:
                state = turned[part.value] = self.op.transpose(part, 1, 0)
                state.value.shape = ir.Shape([self.size, self.x.dim(1)])
        return [self._nothing(in_columns) if p is None else turned.get(p.value, p) for p in parts]

    def _start(self, initial: Tensor | None, d: int) -> Tensor | None:
        """The state that direction `d` begins with; None if it is zero."""
        if initial is None or _is_zero(initial.value):
            return None
        start = self._part(initial, d, 1 if self.by_batch else 0)
        return None if start is None or _is_zero(start.value) else start

    def _nothing(self, in_columns: bool) -> Tensor:
        """A state of zeros, one for all that need it."""
        if in_columns not in self._zeros:
            op, batch = self.op, self.x.dim(1)
            parts = [op.const([self.size]), op.dim_of(self.x, 1)]
            parts = parts if in_columns else parts[::-1]
            sizes = [self.size, batch] if in_columns else [batch, self.size]
            shape = op.const(sizes) if isinstance(batch, int) else op.Concat(*parts, axis=0)
            zeros = self._zeros[in_columns] = op.full(shape, 0, self.x.dtype)
            zeros.value.shape = ir.Shape(sizes)
        return self._zeros[in_columns]


def _is_zero(value: ir.Value | None, depth: int = 4) -> bool:
    """Whether a value is zeros, which exporters make in the size of the batch."""
    if value is None or not depth:
        return False
    if is_zeros(value) or scalar(value) == 0:
        return True
    node = producer_of(value, "Concat", "Expand", "Squeeze", "Unsqueeze")
    read = () if node is None else node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return bool(read) and all(_is_zero(v, depth - 1) for v in read)


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
