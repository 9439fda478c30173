"""The gradient of the plain LSTM, by hand: a loop that is laid out for speed.

A pass writes the layer as a loop with features in rows and sequences in columns
(`passes.recurrent.columns`). With gates i, f, o and candidate g, a step of it computes

    c = f·c⁻ + i·g,   h = o·tanh(c)

and with the gradients ḣ and ċ of h and c, those of what goes into the gates are

    ċ += ḣ·(o − h·tanh c),   i: ċ·(ig − ig·i),   f: ċ·(fc⁻ − fc⁻·f),   g: ċ·(i − ig·g),
    o: ḣ·(h − h·o),          ċ⁻ = ċ·f

where the factors in brackets come from products the forward step has anyway. They are computed for
all steps at once, and so are the gradients of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.infer_nodes import infer_nodes
from ..bodies import Slices, scan
from ..composites import Composite, declare
from ..walk import Walk


@dataclass(frozen=True)
class LstmLoop:
    """A loop over time that a pass has written, and what its gradient needs.

    Attributes:
        w: weights of the input, [4 · hidden size, input size].
        r: weights of the state, [4 · hidden size, hidden size].
        bias: the sum of both biases.
        order: of the gates, which are blocks of rows: a permutation of "iofg".
        weights: those of input and state side by side.
        x: the inputs of all steps, [time, input size, batch].
        h0, c0: the first states, [hidden size, batch].
        h: the states of all steps.
        xh: what goes into the products of all steps.
        factors: what the gradients of a step are multiplied with, see `factors_of`.
        backwards: whether it starts at the last step.
    """

    w: Tensor
    r: Tensor
    bias: Tensor | None
    order: str
    weights: Tensor
    x: Tensor
    h0: Tensor
    c0: Tensor
    h: Tensor
    xh: Tensor
    factors: Mapping[str, Tensor]
    backwards: bool

    def gradients(
        self, walk: Walk, dys: Sequence[Tensor | None]
    ) -> list[tuple[ir.Value, Tensor | None]]:
        """Gradients of the operands; `dys` belong to the last h, the last c, and all h."""
        op, (dh, dc, dy) = walk.op, dys[:3]
        first = len(op.nodes)
        widths = _widths(op, self.w, self.r)
        of_x = self.x.value in walk.active
        if of_x:  # parts of one: onnxruntime would make the Transpose part of a slower product
            turned = op.transpose(self.weights, 1, 0)
            w_turned, r_turned = op.many("Split", turned, widths, outputs=2, axis=0)
        else:
            r_turned = op.transpose(self.r, 1, 0)
        dz, dh0, dc0 = self._backward(op, r_turned, dy, dh, dc)
        columns = _side_by_side(op, dz)
        both = op.Gemm(columns, _side_by_side(op, self.xh), transB=1)
        dw, dr = op.many("Split", both, widths, outputs=2, axis=1)
        pairs = [(self.w, dw), (self.r, dr), (self.h0, dh0), (self.c0, dc0)]
        if of_x:
            pairs.append((self.x, w_turned @ dz))
        if self.bias is not None:
            pairs.append((self.bias, op.ReduceSum(columns, [1], keepdims=0)))
        infer_nodes(op.nodes[first:], op.opset)
        return [(operand.value, gradient) for operand, gradient in pairs]

    def _backward(
        self,
        op: OpBuilder,
        r_turned: Tensor,
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From the last step to the first: gradients of the gates and of the first states."""
        stacks = dict(self.factors)
        if dy is not None:
            stacks["dy"] = dy

        def step(
            op: OpBuilder, states: Sequence[Tensor], now: Slices
        ) -> tuple[list[Tensor], dict[str, Tensor]]:
            dh, dc = states
            if "dy" in now:
                dh = op.Add(dh, now["dy"])
            dc = op.Add(dc, op.Mul(dh, now["c"]))
            parts = [op.Mul(dh if g == "o" else dc, now[f"to {g}"]) for g in self.order]
            dz = op.Concat(*parts, axis=0)
            return [op.Gemm(r_turned, dz), op.Mul(dc, now["f"])], {"dz": dz}

        starts = [op.zeros_like(self.h0) if d is None else d for d in (dh, dc)]
        (dh0, dc0), stacked = scan(op, starts, stacks, step, not self.backwards)
        return stacked["dz"], dh0, dc0


def declare_loop(loop: LstmLoop) -> None:
    """Let a loop that is built be differentiated in this way."""
    node = loop.h.value.producer()
    assert node is not None
    assert node.outputs[2] is loop.h.value
    declare(Composite(node, (loop.weights.value, *node.outputs[3:]), loop.gradients))


def factors_of(op: OpBuilder, stacks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the gradients of a step are multiplied with, for all steps, from what those gave.

    They are made where the loop is: fewer than what they are made of, they are what is handed over
    to the gradient where the loop is in a branch.
    """
    i, f, o, g, ig, fc = (stacks[k] for k in ("i", "f", "o", "g", "ig", "fc"))
    h, tanh_c = stacks["h"], stacks["tanh c"]
    return {
        "f": f,
        "c": op.Sub(o, op.Mul(h, tanh_c)),
        "to i": op.Sub(ig, op.Mul(ig, i)),
        "to f": op.Sub(fc, op.Mul(fc, f)),
        "to g": op.Sub(i, op.Mul(ig, g)),
        "to o": op.Sub(h, op.Mul(h, o)),
    }


def _widths(op: OpBuilder, w: Tensor, r: Tensor) -> Tensor:
    """Of the two blocks of columns, as Split wants them."""
    known = [d for d in (w.dim(1), r.dim(1)) if isinstance(d, int)]
    if len(known) == 2:
        return op.const(known)
    return op.Concat(op.dim_of(w, 1), op.dim_of(r, 1), axis=0)


def _side_by_side(op: OpBuilder, stack: Tensor) -> Tensor:
    """The columns of all steps in one matrix: [time, rows, batch] as [rows, time · batch]."""
    return op.Flatten(op.transpose(stack, 1, 0, 2), axis=1)
