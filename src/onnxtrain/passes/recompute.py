"""Recompute activations instead of keeping them: less memory for at most one more forward run.

The forward half is cut into segments. Values at the cuts are kept; when the gradients of a segment
are due, a copy of its nodes computes the rest again. The copy reads the kept values through a
*gate* (see `gates`), after the gradients of the next segment are there. A random draw is never
repeated: masks of Dropout are kept, as is whatever operators with bodies (Loop, Scan, If) return.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ..autodiff.bodies import rewire
from ..errors import model_errors
from ..graph import FLOATS, Constants, Names, OpBuilder, Tensor
from ..graph.edit import GATE, all_names, copy_node
from ..graph.subgraphs import live_nodes, subgraphs, used_values
from ..graph.tensor import dims_of
from ..operators import PRODUCTS, RANDOM, VIEWS
from .gates import arithmetic_gate, reshape_gate, zero_after
from .segments import Recompute, assign, check_recompute, named_values, weight

STORED_BYTES = 1 << 14
"""Values below this many bytes are kept: to compute them again would gain nothing."""


@model_errors("Choosing what to compute again")
def recompute_activations(model: ir.Model, how: Recompute, gradients: Collection[str]) -> ir.Model:
    """Let the backward half compute values of the forward half again; the model is changed.

    Args:
        model: a differentiated and optimized model.
        how: a number of segments; "auto", which chooses it; "cheap", which also keeps the results
            of matrix products and convolutions; or names of the values to keep.
        gradients: those of its outputs that are gradients.
    """
    check_recompute(how)
    if how is None:
        return model
    work = _Recomputation(model, how, set(gradients))
    work.run()
    return model


class _Recomputation:
    """One application of the pass to one model.

    Attributes:
        segment: forward node → its segment.
        last: the number of the last segment, which stays as it is.
        stored: forward values that stay alive until the backward half has read them.
        level: backward node → the segment it belongs to, `last` for those that need no copy.
    """

    def __init__(self, model: ir.Model, how: Recompute, gradients: set[str]) -> None:
        self.graph = graph = model.graph
        names = Names(all_names(graph))
        self.op = OpBuilder(names, Constants(names), model.opset_imports[""])
        self.results = [o for o in graph.outputs if o.name not in gradients]
        self.gradients = [o for o in graph.outputs if o.name in gradients]
        nodes = list(graph)
        ancestors = set(live_nodes(nodes, self.results))
        self.forward = [n for n in nodes if n in ancestors]
        self.backward = [n for n in nodes if n not in ancestors]
        self._make_masks()
        self.stored = self._always_stored(how)
        read = {v for node in self.backward for v in used_values([node])}
        needed = {v for n in self.forward for v in n.outputs if v in read and v not in self.stored}
        self.segment = assign(how, self.forward, needed, self.stored)
        self.last = max(self.segment.values(), default=0)
        self._keep_what_crosses()
        self.fixed: set[ir.Node] = set()
        self.level: dict[ir.Node, int] = {}
        self.follows: dict[ir.Node, int] = {}
        self._copies: dict[ir.Node, ir.Node] = {}
        self._gates: dict[tuple[ir.Value, int], ir.Value] = {}
        self._zeros: dict[int, Tensor] = {}
        self._late: set[ir.Value] = set()

    def run(self) -> None:
        """Rewire the backward half, then put all nodes in order."""
        self._read_shapes_elsewhere()
        self._find_levels()
        self.waits = [self._waited_for(s) for s in range(self.last)]
        for node in self.backward:
            self._rewire(node)
        self._protect_gates()
        self.op.attach(self.graph)
        self.graph.sort()

    # -- what is stored ----------------------------------------------------------------------------

    def _make_masks(self) -> None:
        """Ask every Dropout for its mask."""
        for node in self.forward:
            if _can_reapply(node):
                self.op.node = node
                mask, x = self.op.output(1).value, node.inputs[0]
                if mask.shape is None and x is not None and x.shape is not None:
                    mask.shape = x.shape.copy()
        self.op.node = None

    def _always_stored(self, how: Recompute) -> set[ir.Value]:
        """Values that are alive anyway, tiny, or must not be computed twice."""
        stored = set(self.results)
        if not isinstance(how, (int, str)) and how is not None:
            stored.update(named_values(how, self.forward))
        constants: set[ir.Value] = set()
        for node in self.forward:
            if all(v in constants or _is_constant(v) for v in used_values([node])):
                constants.update(node.outputs)  # of parameters alone: transposed weights, say
                stored.update(node.outputs)
            if _can_reapply(node):
                stored.add(node.outputs[1])
            elif (
                node.op_type in RANDOM
                or subgraphs(node)
                or (how == "cheap" and node.op_type in PRODUCTS)
            ):
                stored.update(node.outputs)
            stored.update(o for o in node.outputs if weight(o) < STORED_BYTES)
        return stored

    def _keep_what_crosses(self) -> None:
        """What a later segment reads is kept; only so can each be repeated on its own."""
        for node in self.forward:
            for value in used_values([node]):
                producer = value.producer()
                if producer is not None and self.segment[producer] < self.segment[node]:
                    self.stored.add(value)
        for node in self.forward:
            if node.op_type in VIEWS and self._is_there(node.inputs[0]):
                self.stored.update(node.outputs)  # shares the memory

    def _is_there(self, value: ir.Value | None) -> bool:
        return value is not None and (value.producer() is None or value in self.stored)

    def _is_dropped(self, value: ir.Value) -> bool:
        """Whether a value is one that the backward half must compute again."""
        segment = self.segment.get(value.producer())  # type: ignore[arg-type]
        return segment is not None and segment < self.last and value not in self.stored

    # -- when the backward nodes run ---------------------------------------------------------------

    def _read_shapes_elsewhere(self) -> None:
        """Take the shape of a dropped value from one that is there anyway."""
        known: dict[object, ir.Value] = {}
        for value in (*self.graph.inputs, *(o for n in self.forward for o in n.outputs)):
            if not self._is_dropped(value) and (dims := dims_of(value)) and None not in dims:
                known.setdefault(dims, value)
        for node in self.backward:
            source = node.inputs[0] if node.op_type in ("Shape", "Size") else None
            if source is not None and self._is_dropped(source):
                other = known.get(dims_of(source))
                if other is not None:
                    node.replace_input_with(0, other)

    def _find_levels(self) -> None:
        """To which segment each backward node belongs.

        A node belongs to the first of the segments whose dropped values it depends on. One that
        depends on kept values alone could run at any time, and would, if left alone, run early and
        hold its result: it belongs to the node that reads it.
        """
        for node in self.backward:
            level, follows = self.last, -1
            for value in used_values([node]):
                producer = value.producer()
                if producer in self.segment:
                    follows = max(follows, self.segment[producer])
                    if self._is_dropped(value):
                        level = min(level, self.segment[producer])
                elif producer in self.level:
                    level = min(level, self.level[producer])
                    follows = max(follows, self.follows[producer])
            self.level[node], self.follows[node] = level, follows
        for node in reversed(self.backward):
            if not self._is_early(node) or self.level[node] < self.last:
                continue
            readers = [user for o in node.outputs for user, _ in o.uses()]
            leaves = any(o.is_graph_output() for o in node.outputs)
            if leaves or any(user not in self.level for user in readers) or _is_small(node):
                self.fixed.add(node)
            else:
                self.level[node] = max((self.level[user] for user in readers), default=self.last)

    def _is_early(self, node: ir.Node) -> bool:
        """Whether a backward node depends on nothing that the last segment computes."""
        return self.follows[node] < self.last

    def _waited_for(self, segment: int) -> list[ir.Value]:
        """Gradients that must be there before a segment is computed again.

        Those that its own gradients start from, and those of the parameters used after it: they
        read what is to be freed.
        """
        candidates: dict[ir.Value, None] = {}
        for node in self.backward:
            if node in self.fixed or self.level[node] > segment:
                continue
            candidates.update((v, None) for v in used_values([node]) if self._is_after(v, segment))
        next_levels = [v for v in self.gradients if self._is_after(v, segment)]
        done = {v for v in next_levels if self._is_after(v, segment + 1)}
        candidates.update((v, None) for v in next_levels if v not in done)
        waits = [v for v in candidates if v.dtype in FLOATS]
        return waits or [v for v in self.results if v.dtype in FLOATS and v.producer()][:1]

    def _is_after(self, value: ir.Value, segment: int) -> bool:
        """Whether a value is a gradient that belongs to a segment behind this one."""
        node = value.producer()
        if node is None or node not in self.level or node in self.fixed:
            return False
        return self.level[node] > segment and not (
            self._is_early(node) and self.level[node] == self.last
        )

    # -- copies and gates ------------------------------------------------------------------------

    def _rewire(self, node: ir.Node) -> None:
        """Let a backward node read copies; an early one wait if nothing else makes it wait."""
        reads = used_values([node])
        new = {v: self._copy(v) for v in reads if self._is_dropped(v)}
        late = bool(new) or any(v in self._late for v in reads)
        if not late and node not in self.fixed and self._is_early(node):
            level = self.level[node]
            if level < self.last:
                new = {v: self._gate(v, level) for v in reads if v.producer() in self.segment}
                late = bool(new)
        if late:
            self._late.update(node.outputs)
        if new:
            rewire([node], new)

    def _copy(self, value: ir.Value) -> ir.Value:
        """A forward value, computed again."""
        start = value.producer()
        assert start is not None
        todo = [start]
        while todo:  # a stack: chains can be longer than Python likes to recurse
            node = todo[-1]
            missing = [
                v.producer()
                for v in node.inputs
                if v is not None and self._is_dropped(v) and v.producer() not in self._copies
            ]
            if missing:
                todo.extend(n for n in missing if n is not None)
                continue
            todo.pop()
            if node not in self._copies:
                self._copies[node] = self._copy_node(node)
        return self._copies[start].outputs[value.index() or 0]

    def _copy_node(self, node: ir.Node) -> ir.Node:
        segment = self.segment[node]
        inputs: list[ir.Value | None] = []
        late = False
        for value in node.inputs:
            new = value
            if value is not None and value.producer() in self.segment:
                late = True
                if self._is_dropped(value):
                    producer = value.producer()
                    assert producer is not None
                    new = self._copies[producer].outputs[value.index() or 0]
                else:
                    new = self._gate(value, segment)
            inputs.append(new)
        if not late:  # it reads the model's inputs: the copy must differ from the original
            i = _first_input(node)
            value = inputs[i]
            assert value is not None
            inputs[i] = self._gate(value, segment)
        if _can_reapply(node):
            return self._dropped_again(node, inputs[0])
        copied = copy_node(node, inputs, self.op.names)
        self.op.nodes.append(copied)
        return copied

    def _dropped_again(self, node: ir.Node, x: ir.Value | None) -> ir.Node:
        """Dropout with the mask that was drawn, bit for bit what the kernel computes."""
        assert x is not None
        op = self.op
        op.scope = f"{GATE}/{node.name}"
        ratio = _ratio(node)
        assert ratio is not None
        keep = float(np.float32(1) - np.float32(ratio))
        tensor = op.tensor(x)
        mask = op.tensor(self._gate(node.outputs[1], self.segment[node]))
        again = tensor * op.Cast(mask, to=tensor.dtype) / op.like(keep, tensor)  # it divides
        division = again.value.producer()
        assert division is not None
        again.value.type, again.value.shape = node.outputs[0].type, node.outputs[0].shape
        return division

    def _gate(self, value: ir.Value, segment: int) -> ir.Value:
        """The same value, later: when the gradients of the next segment are there."""
        if not value.shape or value.dtype is None or value.dtype == ir.DataType.STRING:
            return value  # a scalar, or of unknown rank
        key = (value, segment)
        if key not in self._gates:
            zero = self._zero(segment)
            self.op.scope = f"{GATE}/{segment}/{value.name}"
            self._gates[key] = reshape_gate(self.op, value, zero)
        return self._gates[key]

    def _zero(self, segment: int) -> Tensor:
        """An INT64 that is 0, once the gradients that the segment waits for are known."""
        if segment not in self._zeros:
            self.op.scope = f"{GATE}/{segment}"
            self._zeros[segment] = zero_after(self.op, self.waits[segment])
        return self._zeros[segment]

    def _protect_gates(self) -> None:
        """A Reshape in front of another one may be dropped by a runtime: then it is arithmetic."""
        for (value, segment), gate in self._gates.items():
            if not any(user.op_type in VIEWS for user, _ in gate.uses()):
                continue
            self.op.scope = f"{GATE}/{segment}/{value.name}"
            guarded = arithmetic_gate(self.op, value, self._zeros[segment])
            old = gate.producer()
            gate.replace_all_uses_with(guarded)
            self.op.nodes.remove(old)  # type: ignore[arg-type]


# -- small pieces ----------------------------------------------------------------------------------


def _ratio(node: ir.Node) -> float | None:
    """The constant ratio of a Dropout."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return 0.5
    tensor = node.inputs[1].const_value
    return None if tensor is None or node.inputs[1].is_graph_input() else float(tensor.numpy())


def _can_reapply(node: ir.Node) -> bool:
    """Whether a node is a Dropout that certainly draws, with a ratio that is known."""
    if node.op_type != "Dropout" or node.domain or len(node.inputs) < 3:
        return False
    mode = node.inputs[2]
    if mode is None or mode.const_value is None or mode.is_graph_input():
        return False
    ratio = _ratio(node)
    return bool(mode.const_value.numpy().all()) and ratio is not None and ratio < 1


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is a parameter or a constant."""
    return value.producer() is None and value.const_value is not None


def _is_small(node: ir.Node) -> bool:
    return all(weight(o) < STORED_BYTES for o in node.outputs)


def _first_input(node: ir.Node) -> int:
    """The input to delay: rather data than a parameter, rather a small one."""
    present = [(i, v) for i, v in enumerate(node.inputs) if v is not None and v.shape]
    if not present:
        return next(i for i, v in enumerate(node.inputs) if v is not None)
    return min(present, key=lambda p: (p[1].const_value is not None, weight(p[1]), p[0]))[0]
