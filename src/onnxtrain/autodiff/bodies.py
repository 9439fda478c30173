"""Tools for the gradients of operators that hold subgraphs (If, Loop, Scan).

A body is differentiated by a walk of its own. The nodes which that walk emits form a backward
body; they refer to values of the forward body, which live in another graph. Here is what finds
those references, decides which values must be handed over, and rewires them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ..graph import Dim, OpBuilder, Tensor
from ..graph.edit import copy_node
from ..graph.nodes import identity, is_zeros, producer_of
from ..graph.subgraphs import captured_values, subgraphs, used_values
from ..operators import RANDOM
from .walk import Walk, is_differentiable

Slices: TypeAlias = Mapping[str, Tensor]
"""What one step of a loop reads or returns, or the stacks of all steps, by name."""

Step: TypeAlias = Callable[
    [OpBuilder, Sequence[Tensor], Slices], tuple[Sequence[Tensor], Mapping[str, Tensor]]
]
"""(builder of the body, states, slices) → new states, and what is to be stacked."""


def inside(op: OpBuilder) -> OpBuilder:
    """A builder for a subgraph: its own nodes, the names and constants of the outer one."""
    return OpBuilder(op.names, op.constants, op.opset)


def body_walk(
    walk: Walk,
    op: OpBuilder,
    body: ir.Graph,
    node: ir.Node,
    inputs: Iterable[tuple[ir.Value | None, ir.Value]] = (),
    states: Sequence[tuple[ir.Value, ir.Value]] = (),
) -> Walk:
    """A walk over a body, with respect to everything in it that depends on the outer `wrt`.

    Args:
        walk: the outer walk.
        op: builder of the backward body.
        body: the subgraph.
        node: the operator that holds it.
        inputs: pairs of outer value and body input.
        states: pairs of body input and the body output that becomes it in the next iteration:
            a state that is constant at first may depend on a parameter from then on.
    """
    wrt = [v for v in captured_values(node) if v in walk.active]
    wrt += [i for outer, i in inputs if outer in walk.active and is_differentiable(i)]
    while True:
        inner = Walk(body, op, wrt, walk.stop)
        more = [i for i, o in states if o in inner.active and i not in wrt and is_differentiable(i)]
        if not more:
            return inner
        wrt += more


def values_of(body: ir.Graph) -> set[ir.Value]:
    """Values that live in a graph: its inputs, initializers and the outputs of its nodes."""
    values = {*body.inputs, *body.initializers.values()}
    for node in body:
        values.update(node.outputs)
    return values


def rewire(nodes: Iterable[ir.Node], new: Mapping[ir.Value, ir.Value]) -> None:
    """Let nodes, and their subgraphs, read other values."""
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is not None and value in new:
                node.replace_input_with(i, new[value])
        for graph in subgraphs(node):
            rewire(list(graph), new)
            for i, value in enumerate(graph.outputs):
                if value in new:
                    graph.outputs[i] = new[value]


def shapes_to_forward(
    op: OpBuilder, body: ir.Graph, local: set[ir.Value], live: Sequence[ir.Node]
) -> list[ir.Node]:
    """Move Shape nodes that read a forward value into the forward body.

    A gradient often needs no more than the shape of a value: then that is handed over, not the
    value itself.
    """
    backward = []
    for node in list(live):
        source = node.inputs[0] if node.op_type == "Shape" else None
        if source is not None and source in local:
            op.nodes.remove(node)
            body.append(node)
            if source.shape is not None:
                ends = {k: a.as_int() for k, a in node.attributes.items()}
                picked = source.shape.dims[ends.get("start") : ends.get("end")]
                node.outputs[0].shape = ir.Shape([len(picked)])
            local.add(node.outputs[0])
        else:
            backward.append(node)
    return backward


def sequences_to_forward(
    op: OpBuilder, body: ir.Graph, local: set[ir.Value], live: Sequence[ir.Node]
) -> list[ir.Node]:
    """Move what is computed from a forward sequence into the forward body, up to a tensor.

    A sequence cannot be handed over for every iteration; its length, or an element's shape can.
    """
    backward = {o: node for node in live for o in node.outputs}
    moved: dict[ir.Node, None] = {}
    for node in live:
        if any(_is_local_sequence(v, local, moved) for v in node.inputs):
            needed = _forward_only(node, backward, local)
            moved.update(dict.fromkeys(needed or ()))
    staying = [n for n in live if n not in moved]
    for node in [n for n in live if n in moved]:
        op.nodes.remove(node)
        body.append(node)
        local.update(node.outputs)
    return staying


def _is_local_sequence(
    value: ir.Value | None, local: set[ir.Value], moved: Collection[ir.Node]
) -> bool:
    if value is None or not isinstance(value.type, ir.SequenceType):
        return False
    return value in local or value.producer() in moved


def _forward_only(
    node: ir.Node, backward: Mapping[ir.Value, ir.Node], local: set[ir.Value]
) -> list[ir.Node] | None:
    """A node and what it needs, if no gradient is among that; else None."""
    needed: list[ir.Node] = []
    for value in used_values([node]):
        if value in local or value.const_value is not None:
            continue
        maker = backward.get(value)
        if maker is None:
            if value.producer() is None and not value.is_graph_input():
                return None  # a gradient that the backward body is given
            continue
        before = _forward_only(maker, backward, local)
        if before is None:
            return None
        needed += before
    return [*needed, node]


class Invariants:
    """Copies, into a backward body, forward nodes that depend on outer values only."""

    def __init__(self, op: OpBuilder, local: Collection[ir.Value]) -> None:
        self.op, self.local = op, local
        self._known: dict[ir.Value, bool] = {}
        self._copies: dict[ir.Node, ir.Node] = {}
        self.nodes: list[ir.Node] = []

    def holds(self, value: ir.Value) -> bool:
        """Whether the value is the same in every iteration."""
        if value not in self.local:
            return True
        if value not in self._known:
            node = value.producer()
            self._known[value] = (
                node is not None
                and node.op_type not in RANDOM
                and not subgraphs(node)
                and all(v is None or self.holds(v) for v in node.inputs)
            )
        return self._known[value]

    def copy(self, value: ir.Value) -> ir.Value:
        """The value, computed again in the backward body."""
        node = value.producer()
        if value not in self.local or node is None:
            return value
        if node not in self._copies:
            inputs = [None if v is None else self.copy(v) for v in node.inputs]
            copied = copy_node(node, inputs, self.op.names)
            self._copies[node] = copied
            self.nodes.append(copied)
        return self._copies[node].outputs[value.index() or 0]


def body_input(op: OpBuilder, stem: str, like: ir.Value) -> Tensor:
    """A new input for a backward body, of the type and shape of a forward value."""
    value = ir.Value(
        name=op.names.fresh(stem),
        type=like.type,
        shape=None if like.shape is None else like.shape.copy(),
    )
    return op.tensor(value)


def body_outputs(op: OpBuilder, results: Sequence[Tensor]) -> list[ir.Value]:
    """Outputs for a backward body: each is the output of a node of it, and no two are the same."""
    own = {o for node in op.nodes for o in node.outputs}
    outputs: list[ir.Value] = []
    for result in results:
        value = result.value
        if value not in own or value in outputs:
            copied = op.Identity(op.tensor(value))
            copied.value.type = value.type
            copied.value.shape = None if value.shape is None else value.shape.copy()
            value = copied.value
        outputs.append(value)
    return outputs


def zero_state(op: OpBuilder, first: Tensor) -> Tensor:
    """Zeros like the first state of a loop: that state itself where it is zeros."""
    value: ir.Value | None = first.value
    while (turned := producer_of(value, "Transpose")) is not None:
        value = turned.inputs[0]
    return first if is_zeros(value) else op.zeros_like(first)


def add_body_output(op: OpBuilder, body: ir.Graph, value: ir.Value) -> ir.Value:
    """Make a value of a forward body one more output of it."""
    if value.producer() is None or value.is_graph_output():
        names = (op.names.fresh(f"{value.name}{ending}") for ending in ("/keep", "_kept"))
        node = identity(value, *names)
        body.append(node)
        value = node.outputs[0]
    body.outputs.append(value)
    return value


def add_node_output(op: OpBuilder, node: ir.Node, stem: str) -> ir.Value:
    """One more output of a forward node."""
    node.resize_outputs(len(node.outputs) + 1)
    output = node.outputs[-1]
    output.name = op.names.fresh(stem)
    return output


def scan(
    op: OpBuilder,
    starts: Sequence[Tensor],
    stacks: Slices,
    step: Step,
    backwards: bool,
    state_shape: Sequence[Dim] | None = None,
) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
    """A loop over the first axis of stacks: the final states, and what the steps give, stacked.

    Args:
        op: builder of the graph that holds it.
        starts: the states before the first step.
        stacks: what the steps read, by name.
        step: (builder of the body, states, slices) → new states, and what is to be stacked.
        backwards: start at the end.
        state_shape: dimensions of a state, where more is known than the first ones tell.
    """
    body = inside(op)
    body.scope = op.scope
    states = [body_input(body, f"{op.scope}/state", s.value) for s in starts]
    for state in states if state_shape is not None else ():
        state.value.shape = ir.Shape(list(state_shape or ()))
    slices = {name: _slice(body, stack) for name, stack in stacks.items()}
    after, stacked = step(body, states, slices)
    outputs = body_outputs(body, [*after, *stacked.values()])
    graph = ir.Graph(
        [t.value for t in (*states, *slices.values())],
        outputs,
        nodes=body.nodes,
        name=op.names.fresh(f"{op.scope}/step"),
    )
    results = op.many(
        "Scan",
        *starts,
        *stacks.values(),
        outputs=len(outputs),
        body=graph,
        num_scan_inputs=len(stacks),
        scan_input_directions=[int(backwards)] * len(stacks),
        scan_output_directions=[int(backwards)] * len(stacked),
    )
    return results[: len(starts)], dict(zip(stacked, results[len(starts) :]))


def _slice(body: OpBuilder, stack: Tensor) -> Tensor:
    value = ir.Value(name=body.names.fresh(f"{stack.name}_now"), type=ir.TensorType(stack.dtype))
    if stack.shape is not None:
        value.shape = ir.Shape(stack.shape[1:])
    return body.tensor(value)
