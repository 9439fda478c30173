"""Recurrent loops and their gradients, by hand: both are laid out for speed.

A pass writes a layer as a loop with features in rows and sequences in columns
(`passes.recurrent.columns`). What a step multiplies with weights, input and state, is one matrix: a
step is one product with weights on the left, which onnxruntime reads as they lie, and the gradients
of both weights are one product for all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.infer_nodes import infer_nodes
from ...operators import COLUMN_LOOP
from ..bodies import Slices, scan, zero_state
from ..composites import Composite, declare
from ..recurrent_cells import KEEP, MASK, Cell, Product
from ..walk import Walk


@dataclass(frozen=True)
class Lengths:
    """Which steps belong to a sequence, as numbers.

    Attributes:
        mask: 1 where a step does, else 0: [time, 1, batch].
        keep: the opposite.
    """

    mask: Tensor
    keep: Tensor


@dataclass(frozen=True)
class RecurrentLoop:
    """A loop over time, and what its gradient needs.

    Attributes:
        cell: what a step computes.
        x: the inputs of all steps, [time, input size, batch].
        starts: the first states, [hidden size, batch] each; the first one is h.
        lengths: None where all sequences have all steps.
        backwards: whether it starts at the last step.
        stacks: what its steps gave, by name.
        factors: what the gradients of its steps are scaled with.
    """

    cell: Cell
    x: Tensor
    starts: Sequence[Tensor]
    lengths: Lengths | None
    backwards: bool
    stacks: Mapping[str, Tensor]
    factors: Mapping[str, Tensor]

    def gradients(
        self, walk: Walk, dys: Sequence[Tensor | None]
    ) -> list[tuple[ir.Value, Tensor | None]]:
        """Gradients of the operands; `dys` belong to the last states, and to h of all steps."""
        op, count = walk.op, len(self.starts)
        first, of_x = len(op.nodes), self.x.value in walk.active
        turned = {p.name: p.turned(op, with_input=of_x) for p in self.cell.products}
        states = {name: of_state for name, (_, of_state) in turned.items() if of_state is not None}
        dzs, dstarts = self._backward(op, states, dys[:count], dys[count])
        pairs = list(zip(self.starts, dstarts))
        dx = None
        for product in self.cell.products:
            dz = dzs[product.result]
            pairs += product.gradients(op, _side_by_side(op, dz), self._columns(op, product))
            of_input = turned[product.name][0]
            if of_input is not None:
                part = of_input @ dz
                dx = part if dx is None else dx + part
        if dx is not None:
            pairs.append((self.x, dx))
        pairs += self.cell.further_gradients(op, dzs, self.stacks)
        infer_nodes(op.nodes[first:], op.opset)
        return [(operand.value, gradient) for operand, gradient in pairs]

    def _columns(self, op: OpBuilder, product: Product) -> Tensor:
        return _side_by_side(op, self.stacks[product.source])

    def _backward(
        self,
        op: OpBuilder,
        turned: Mapping[str, Tensor],
        dstates: Sequence[Tensor | None],
        dy: Tensor | None,
    ) -> tuple[Mapping[str, Tensor], Sequence[Tensor]]:
        """From the last step to the first: gradients of products, and of the first states."""
        stacks = dict(self.factors)
        if self.lengths is not None:
            stacks[KEEP] = self.lengths.keep
        if dy is not None:
            stacks["dy"] = dy if self.lengths is None else op.Mul(dy, self.lengths.mask)
        turned = self.cell.joined(op, turned)

        def step(
            op: OpBuilder, states: Sequence[Tensor], now: Slices
        ) -> tuple[list[Tensor], dict[str, Tensor]]:
            return self.cell.backward(op, states, now, turned)

        starts = [zero_state(op, h) if d is None else d for h, d in zip(self.starts, dstates)]
        before, dzs = scan(op, starts, stacks, step, not self.backwards)
        _say_what_it_is(before)
        return dzs, before


def recurrent_loop(
    op: OpBuilder,
    cell: Cell,
    x: Tensor,
    starts: Sequence[Tensor],
    lengths: Lengths | None,
    backwards: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Write a loop, and let it be differentiated as one: h of all steps, and the last states."""
    before = cell.before(op, x)
    slices = {"x": x, **{name: before[name] for name in cell.sliced}, **_by_name(lengths)}

    finals, stacks = scan(op, starts, slices, cell.forward, backwards)
    _say_what_it_is(finals)
    y = stacks["y"]
    node, count = y.value.producer(), len(starts)
    assert node is not None
    assert node.outputs[count] is y.value
    stacks = {**before, **stacks, **_by_name(lengths)}
    loop = RecurrentLoop(cell, x, starts, lengths, backwards, stacks, cell.factors(op, stacks))
    inner = [*(p.weights.value for p in cell.products), *(t.value for t in before.values())]
    declare(Composite(node, (*inner, *node.outputs[count + 1 :]), loop.gradients))
    return y, finals


def _say_what_it_is(finals: Sequence[Tensor]) -> None:
    """Leave a word at a loop over columns, which its body alone does not tell."""
    node = finals[0].value.producer()
    assert node is not None
    node.doc_string = COLUMN_LOOP


def _by_name(lengths: Lengths | None) -> dict[str, Tensor]:
    return {} if lengths is None else {MASK: lengths.mask, KEEP: lengths.keep}


def _side_by_side(op: OpBuilder, stack: Tensor) -> Tensor:
    """The columns of all steps in one matrix: [time, rows, batch] as [rows, time · batch]."""
    return op.Flatten(op.transpose(stack, 1, 0, 2), axis=1)
