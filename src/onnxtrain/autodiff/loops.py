"""The gradient of a body that is run again and again: what Loop and Scan have in common.

Forward, iteration t maps states sₜ and slices xₜ to sₜ₊₁ and outputs yₜ. Backward runs the
iterations in reverse order with the gradients of the states as its states, plus one sum per
captured value. Of the forward body it needs some values of each iteration: they become extra
outputs of the forward node, stacked over the iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.subgraphs import captured_values, live_nodes, used_values
from . import bodies, sequences
from .walk import Walk, is_differentiable


@dataclass(frozen=True)
class Port:
    """A stack in the outer graph and its slice in the body, with axis and direction."""

    outer: ir.Value | None
    inner: ir.Value
    axis: int = 0
    backwards: bool = False


@dataclass
class Repeat:
    """A Loop or Scan node, taken apart.

    Attributes:
        states: (initial outer value, body input, body output, final outer value).
        sliced, stacked: stacks that are read and written.
    """

    node: ir.Node
    body: ir.Graph
    states: list[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]
    sliced: list[Port]
    stacked: list[Port]

    def walk(self, outer: Walk, op: OpBuilder) -> Walk:
        """The walk over the body, with respect to all that depends on the outer `wrt`."""
        pairs = [(first, i) for first, i, _, _ in self.states]
        pairs += [(p.outer, p.inner) for p in self.sliced if p.outer is not None]
        return bodies.body_walk(
            outer, op, self.body, self.node, pairs, [(i, o) for _, i, o, _ in self.states]
        )


def scan_form(node: ir.Node) -> Repeat:
    """Take a Scan node apart."""
    body = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - count
    _name_outputs(node, len(body.outputs))

    def ports(outer: Sequence[Any], inner: Sequence[ir.Value], kind: str) -> list[Port]:
        axes = _ints(node, f"scan_{kind}_axes", len(inner))
        directions = _ints(node, f"scan_{kind}_directions", len(inner))
        return [Port(o, i, a, bool(d)) for o, i, a, d in zip(outer, inner, axes, directions)]

    return Repeat(
        node,
        body,
        [
            (first, i, o, final)
            for first, i, o, final in zip(
                node.inputs[:states], body.inputs, body.outputs, node.outputs
            )
            if first is not None
        ],
        ports(node.inputs[states:], body.inputs[states:], "input"),
        ports(node.outputs[states:], body.outputs[states:], "output"),
    )


def _name_outputs(node: ir.Node, count: int) -> None:
    """All outputs of a loop exist, also those nobody asked for."""
    if len(node.outputs) < count:
        node.resize_outputs(count)
    for i, output in enumerate(node.outputs):
        if not output.name:
            output.name = f"{node.name or node.op_type}_output{i}"


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else [int(i) for i in attribute.as_ints()]


def loop_form(node: ir.Node) -> Repeat:
    """Take a Loop node apart."""
    body = node.attributes["body"].as_graph()
    states = len(body.inputs) - 2
    _name_outputs(node, len(body.outputs) - 1)
    return Repeat(
        node,
        body,
        [
            (first, i, o, final)
            for first, i, o, final in zip(
                node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs
            )
            if first is not None
        ],
        [],
        [Port(o, i) for o, i in zip(node.outputs[states:], body.outputs[1 + states :])],
    )


@dataclass
class Backward:
    """The backward body while it is being built.

    Attributes:
        op: its builder.
        states: (outer initial value, body input, body output) of each gradient that is carried.
        sums: captured value and its gradient in one iteration.
        slices: gradients of the slices, by their port.
        reads: stacks that the backward body reads.
        locals: values of the forward body.
        firsts: the outer values whose gradients the states become, in their order.
    """

    op: OpBuilder
    states: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    firsts: list[ir.Value] = field(default_factory=list)
    sums: list[tuple[ir.Value, Tensor]] = field(default_factory=list)
    slices: list[tuple[Port, Tensor]] = field(default_factory=list)
    reads: list[Port] = field(default_factory=list)
    locals: set[ir.Value] = field(default_factory=set)

    def results(self) -> list[Tensor]:
        """Everything the backward body has to compute."""
        return [
            *(r for _, _, r in self.states),
            *(g for _, g in self.sums),
            *(g for _, g in self.slices),
        ]

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let the backward body read another value."""
        self.rewire({old: new})

    def rewire(self, new: Mapping[ir.Value, ir.Value]) -> None:
        """Let the backward body, and what it returns, read other values."""
        bodies.rewire(self.op.nodes, new)
        self.states = [(a, b, _renamed(c, new)) for a, b, c in self.states]
        self.sums = [(v, _renamed(g, new)) for v, g in self.sums]
        self.slices = [(p, _renamed(g, new)) for p, g in self.slices]


def differentiate_body(walk: Walk, form: Repeat, dys: Sequence[Tensor | None]) -> Backward:
    """Differentiate the body of a loop; `dys` belong to the final states and the stacks."""
    op = bodies.inside(walk.op)
    inner = form.walk(walk, op)
    back = Backward(op)
    carried = [s for s in form.states if s[1] in inner.wrt]
    finals = {s[1]: dy for s, dy in zip(form.states, dys)}
    seeds = []
    for _, state, following, _ in carried:
        seed = bodies.body_input(op, f"{state.name}_grad", state)
        seeds.append(seed)
        if is_differentiable(following):
            inner.add(following, seed)
    for port, dy in zip(form.stacked, dys[len(form.states) :]):
        if dy is not None and port.inner in inner.active:
            slice_ = bodies.body_input(op, f"{port.inner.name}_grad", port.inner)
            inner.add(port.inner, slice_)
            back.reads.append(Port(dy.value, slice_.value, port.axis, not port.backwards))
    inner.run()
    for (first, state, _, final), seed in zip(carried, seeds):
        gradient = inner.take(state)
        dy = finals[state]
        start = _zeros(walk.op, form.node, first, final) if dy is None else dy
        if gradient is None:
            # That of a state which the body replaces; the sequence before may have another length.
            of = state if sequences.is_sequence(state) else seed.value
            gradient = sequences.zeros(op, op.tensor(of))
        back.states.append((start, seed, gradient))
        back.firsts.append(first)
    back.sums = [(v, g) for v in captured_values(form.node) if (g := _taken(inner, v)) is not None]
    back.slices = [(p, g) for p in form.sliced if (g := _taken(inner, p.inner)) is not None]
    back.locals = bodies.values_of(form.body)
    _trim(back, form)
    return back


def _zeros(op: OpBuilder, node: ir.Node, first: ir.Value, final: ir.Value) -> Tensor:
    """What the gradient of a state starts with whose last value nobody reads.

    A state of a Scan keeps its shape, one of a Loop may change it.
    """
    if node.op_type == "Scan":
        return bodies.zero_state(op, op.tensor(first))
    return sequences.zeros(op, op.tensor(final))


def _taken(inner: Walk, value: ir.Value) -> Tensor | None:
    return inner.take(value) if value in inner.wrt else None


def _trim(back: Backward, form: Repeat) -> None:
    """Drop nodes that no result needs, and take loop-invariant values from copies."""
    op = back.op
    live = live_nodes(op.nodes, [r.value for r in back.results()])
    op.nodes[:] = live
    op.nodes[:] = bodies.shapes_to_forward(op, form.body, back.locals, live)
    op.nodes[:] = bodies.sequences_to_forward(op, form.body, back.locals, op.nodes)
    invariants = bodies.Invariants(op, back.locals)
    used = [*used_values(op.nodes), *(r.value for r in back.results())]
    new = {v: invariants.copy(v) for v in used if v in back.locals and invariants.holds(v)}
    back.rewire(new)
    op.nodes[:0] = invariants.nodes


def _renamed(tensor: Tensor, new: Mapping[ir.Value, ir.Value]) -> Tensor:
    return tensor.op.tensor(new.get(tensor.value, tensor.value))


def needed_forward_values(back: Backward) -> list[ir.Value]:
    """Values of the forward body that the backward body reads."""
    used = dict(used_values(back.op.nodes))
    used.update((r.value, None) for r in back.results())
    return [v for v in used if v in back.locals]


def accumulate(back: Backward, op: OpBuilder) -> list[tuple[ir.Value, Tensor, Tensor, Tensor]]:
    """A state for the gradient of each captured value: (value, initial, body input, output)."""
    states = []
    for value, gradient in back.sums:
        total = bodies.body_input(back.op, f"{value.name}_grad_sum", value)
        back.op.scope = f"{value.name}_grad"
        zeros = sequences.zeros(op, op.tensor(value))
        if sequences.is_sequence(value):
            after = sequences.add(back.op, [total, gradient])
        else:
            after = back.op.Add(total, gradient)
        states.append((value, zeros, total, after))
    return states


def typed(tensor: Tensor, like: ir.Value, axis: int | None = None) -> Tensor:
    """Give an output of the backward node its type and, with a stacked axis unknown, its shape."""
    tensor.value.type = like.type
    if like.shape is not None:
        dims = list(like.shape.dims)
        if axis is not None:
            dims.insert(axis % (len(dims) + 1), ir.SymbolicDim(None))
        tensor.value.shape = ir.Shape(dims)
    return tensor
