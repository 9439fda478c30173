"""Merge the factors by which a backward Scan scales gradients, step after step, into one.

Gradients of gated cells are long products: ((dh·o)·(1 − tanh²c))… Everything but `dh` is known
before the backward loop starts. So ``(a·S₁)·S₂`` becomes ``a·(S₁·S₂)`` and
``Concat(a·S₁, b·S₂)`` becomes ``Concat(a, b)·Concat(S₁, S₂)``, with the products of stacks
computed for all iterations at once, outside. For an LSTM one multiplication per step is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from ..graph import OpBuilder
from ..graph.subgraphs import live_nodes, used_values
from .hoist import Stack, known_dims, stacks_of
from .loops import Backward, Port


def merge_factors(op: OpBuilder, back: Backward) -> None:
    """Rewrite the backward body as described above."""
    _Merge(op, back).run()


class _Merge:
    def __init__(self, op: OpBuilder, back: Backward) -> None:
        self.op, self.back = op, back
        self.stacks = stacks_of(op, back)
        self.uses = Counter(_uses(back))
        self.scaled: dict[ir.Value, tuple[ir.Value, Stack]] = {}
        self.original: dict[ir.Value, ir.Node] = {}
        self.joined: dict[ir.Value, ir.Node] = {}
        self.nodes: list[ir.Node] = []

    def run(self) -> None:
        for node in self.back.op.nodes:
            if self._multiply(node) or self._concat(node):
                continue
            self._apply(used_values([node]))
            self.nodes.append(node)
        self._apply([r.value for r in self.back.results()])
        results = [r.value for r in self.back.results()]
        self.back.op.nodes[:] = live_nodes(self.nodes, results)

    def _multiply(self, node: ir.Node) -> bool:
        """Put off ``a·S``; merge it with what was put off for `a`."""
        if node.op_type != "Mul":
            return False
        a, s = node.inputs
        if a is None or s is None:
            return False
        if a in self.stacks:
            a, s = s, a
        if a in self.stacks or s not in self.stacks:
            return False
        output, stack = node.outputs[0], self.stacks[s]
        before = self.scaled.get(a)
        if before is not None and self.uses[a] == 1 and before[1].fits(stack):
            shape = stack.shape if stack.shape == before[1].shape else None
            whole = before[1].whole * stack.whole
            whole.value.type = stack.whole.value.type
            self.scaled[output] = (before[0], Stack(whole, stack.rank, stack.backwards, shape))
        else:
            self._apply([a])
            first, second = node.inputs  # settling may have renamed one of them
            base = second if first is s else first
            assert base is not None
            self.scaled[output] = (base, stack)
            self.original[output] = node
        return True

    def _concat(self, node: ir.Node) -> bool:
        """Put off the scaling of the parts of a Concat: scale the whole instead."""
        parts = [v for v in node.inputs if v is not None]
        if node.op_type != "Concat" or not all(self._is_plain(v) for v in parts):
            return False
        stacks = [self.scaled[v][1] for v in parts]
        if len(parts) < 2 or not all(stacks[0].fits(s) for s in stacks):
            return False
        axis = node.attributes["axis"].as_int()
        bases: list[ir.Value] = []
        for value in parts:
            base = self.scaled[value][0]
            inner = self.joined.get(base)
            if inner is not None and inner.attributes["axis"].as_int() == axis:
                bases.extend(v for v in inner.inputs if v is not None)
            else:
                bases.append(base)
        body = self.back.op
        whole = self.op.Concat(*(s.whole for s in stacks), axis=axis + 1 if axis >= 0 else axis)
        output = node.outputs[0]
        base = ir.Value(
            name=body.names.fresh(f"{output.name}_unscaled"),
            type=output.type,
            shape=None if output.shape is None else output.shape.copy(),
        )
        joined = ir.Node(
            "", "Concat", bases, node.attributes.values(), outputs=[base],
            name=body.names.fresh(f"{node.name}_unscaled"),
        )  # fmt: skip
        self.nodes.append(joined)
        self.joined[base] = joined
        stack = Stack(whole, stacks[0].rank, stacks[0].backwards, known_dims(output))
        self.scaled[output] = (base, stack)
        return True

    def _is_plain(self, value: ir.Value) -> bool:
        """Whether a value is put off, used once, and scaled without broadcasting."""
        if value not in self.scaled or self.uses[value] != 1:
            return False
        base, stack = self.scaled[value]
        return stack.shape is not None and known_dims(base) == stack.shape

    def _apply(self, values: Sequence[ir.Value] | dict[ir.Value, None]) -> None:
        """Emit the scaling that was put off, for values that something needs as they are."""
        for value in list(values):
            if value not in self.scaled:
                continue
            base, stack = self.scaled.pop(value)
            node = self.original.get(value)
            if node is None:
                body = self.back.op
                factor = ir.Value(
                    name=body.names.fresh(f"{value.name}_factor"),
                    type=stack.whole.value.type,
                    shape=None if stack.shape is None else ir.Shape(stack.shape),
                )
                self.back.reads.append(Port(stack.whole.value, factor, 0, stack.backwards))
                scaled = ir.Value(
                    name=body.names.fresh(f"{value.name}_scaled"),
                    type=value.type,
                    shape=None if value.shape is None else value.shape.copy(),
                )
                node = ir.Node(
                    "", "Mul", [base, factor], outputs=[scaled],
                    name=body.names.fresh(f"{value.name}_scale"),
                )  # fmt: skip
                self.back.replace(value, scaled)
            self.nodes.append(node)


def _uses(back: Backward) -> list[ir.Value]:
    """Every use of a value in the backward body, once per use."""
    uses = [r.value for r in back.results()]
    for node in back.op.nodes:
        uses.extend(v for v in node.inputs if v is not None)
        uses.extend(v for v in used_values([node]) if v not in node.inputs)
    return uses
