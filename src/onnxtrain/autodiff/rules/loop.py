"""Loop: the backward is a Loop over the iterations that really ran, last one first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ...errors import GradientRuleError
from ...graph import OpBuilder, Tensor
from ...graph.subgraphs import captured_values
from .. import bodies, hoist, loops, sequences
from ..registry import graph_gradient
from ..walk import Walk
from .control_flow import Gradients, inner_walks


@dataclass(frozen=True)
class Stack:
    """The values of all iterations as one tensor."""

    tensor: ir.Value

    def at(self, op: OpBuilder, iteration: Tensor) -> Tensor:
        """The value of one iteration."""
        return op.Gather(op.tensor(self.tensor), iteration, axis=0)


@dataclass(frozen=True)
class List:
    """The tensors of all iterations, whose shapes may differ, as one sequence."""

    sequence: ir.Value

    def at(self, op: OpBuilder, iteration: Tensor) -> Tensor:
        """The tensor of one iteration."""
        return op.SequenceAt(op.tensor(self.sequence), iteration)


@dataclass(frozen=True)
class Lists:
    """The sequences of all iterations one after the other, where each begins, how long it is."""

    elements: ir.Value
    starts: Tensor
    lengths: Tensor

    def at(self, op: OpBuilder, iteration: Tensor) -> Tensor:
        """The sequence of one iteration."""
        first, count = (op.Gather(t, iteration, axis=0) for t in (self.starts, self.lengths))
        kind = sequences.element_type(self.elements)
        empty = op.SequenceEmpty(dtype=int(kind.dtype))
        empty.value.type = self.elements.type
        return sequences.extended(op, empty, op.tensor(self.elements), first, count)


Record: TypeAlias = Stack | List | Lists


@graph_gradient("Loop", inner=inner_walks)
def loop(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    op = walk.op
    form = loops.loop_form(node)
    dys = [*dys, *[None] * (len(node.outputs) - len(dys))]
    back = loops.differentiate_body(walk, form, dys)
    needed = [v for v in loops.needed_forward_values(back) if v not in form.body.inputs[:2]]
    stacks, count = _keep(op, form, needed)
    number = ir.Value(
        name=op.names.fresh("iteration"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
    )
    again = ir.Value(
        name=op.names.fresh("again"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
    )
    head = bodies.inside(op)
    then = head.Sub(head.Sub(head.tensor(count.value), 1), head.tensor(number))
    then.value.shape = ir.Shape([])
    for value, stack in stacks.items():
        back.replace(value, loops.typed(stack.at(head, then), value).value)
    for port in back.reads:
        assert port.outer is not None
        pick = loops.typed(head.Gather(head.tensor(port.outer), then, axis=0), port.inner)
        back.replace(port.inner, pick.value)
    back.replace(form.body.inputs[0], then.value)
    back.replace(form.body.inputs[1], head.const(True).value)
    back.op.nodes[:0] = head.nodes
    hoist.out_of_the_loop(op, back, [number, again])
    sums = loops.accumulate(back, op)
    states = [*back.states, *((a, b, c) for _, a, b, c in sums)]
    results = [back.op.tensor(again), *(r for _, _, r in states)]
    body = ir.Graph(
        [number, again, *(b.value for _, b, _ in states)],
        bodies.body_outputs(back.op, results),
        nodes=back.op.nodes,
        name=f"{form.body.name}_grad",
    )
    final = op.many(
        "Loop",
        count,
        None,
        *(start for start, _, _ in states),
        outputs=len(states),
        body=body,
    )
    targets = [*back.firsts, *(v for v, *_ in sums)]
    return [(v, loops.typed(r, v)) for v, r in zip(targets, final)]


def _outer_symbols(form: loops.Repeat) -> set[str]:
    """Dimension names that mean the same number in every iteration."""
    outer = [*form.node.inputs, *captured_values(form.node)]
    names: set[str] = set()
    for value in outer:
        if value is not None and value.shape is not None:
            names.update(
                d.value
                for d in value.shape.dims
                if isinstance(d, ir.SymbolicDim) and d.value is not None
            )
    return names


def _has_fixed_shape(value: ir.Value, stable: set[str]) -> bool:
    is_tensor = isinstance(value.type, ir.TensorType) or value.type is None
    return (
        is_tensor
        and value.shape is not None
        and all(isinstance(d, int) or d.value in stable for d in value.shape.dims)
    )


def _keep_stack(op: OpBuilder, form: loops.Repeat, value: ir.Value) -> ir.Value:
    """The values of all iterations as one tensor: a scan output of the Loop."""
    for port in form.stacked:
        if port.inner is value and port.outer is not None:
            return port.outer
    bodies.add_body_output(op, form.body, value)
    outer = bodies.add_node_output(op, form.node, f"{value.name}_stack")
    loops.typed(op.tensor(outer), value, 0)
    form.stacked.append(loops.Port(outer, value))
    return outer


def _keep_sequences(op: OpBuilder, node: ir.Node, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Collect values whose shape may change between iterations in sequences that are carried."""
    graph, body = node.graph, node.attributes["body"].as_graph()
    assert graph is not None
    before, inside = bodies.inside(op), bodies.inside(op)
    starts, states = [], len(body.inputs) - 2
    for value in values:
        kind = ir.SequenceType(ir.TensorType(_element_type(node, value)))
        empty = before.SequenceEmpty(dtype=int(kind.dtype))
        carried = ir.Value(name=op.names.fresh(f"{value.name}_so_far"), type=kind)
        longer = _with_value(inside, inside.tensor(carried), inside.tensor(value))
        empty.value.type = longer.value.type = kind
        starts.append(empty.value)
        body.outputs.insert(len(body.inputs) - 1, longer.value)
        body.inputs.append(carried)
    inside.place(body)
    before.place(graph, before=node)
    node.resize_inputs(2 + states + len(starts))
    for index, start in enumerate(starts, start=2 + states):
        node.replace_input_with(index, start)
    collected = _outputs_after_states(node, states, len(values))
    for value, sequence in zip(values, collected):
        sequence.name = op.names.fresh(f"{value.name}_sequence")
        sequence.type = ir.SequenceType(ir.TensorType(_element_type(node, value)))
        sequence.shape = None
    return collected


def _element_type(node: ir.Node, value: ir.Value) -> ir.DataType:
    """Type of a tensor, or of the tensors of a sequence."""
    kind = value.type.elem_type if isinstance(value.type, ir.SequenceType) else value.type
    if not isinstance(kind, ir.TensorType):
        raise GradientRuleError(
            f"The gradient of Loop {node.name!r} needs the value of {value.name!r} in every "
            "iteration, and that is neither a tensor nor a sequence of tensors."
        )
    return kind.dtype


def _with_value(op: OpBuilder, so_far: Tensor, value: Tensor) -> Tensor:
    """A sequence with a tensor, or all tensors of another sequence, behind its own."""
    if not sequences.is_sequence(value.value):
        return op.SequenceInsert(so_far, value)
    zero = op.const(np.array(0))
    return sequences.extended(op, so_far, value, zero, op.SequenceLength(value))


def _outputs_after_states(node: ir.Node, states: int, count: int) -> list[ir.Value]:
    """New outputs of a Loop in front of its scan outputs, which move on with names and readers."""
    old = node.outputs
    node.resize_outputs(len(old) + count)
    for index in reversed(range(states, len(old))):
        source, target = old[index], node.outputs[index + count]
        name, target.type, target.shape = source.name, source.type, source.shape
        source.replace_all_uses_with(target, replace_graph_outputs=True)
        source.name, target.name = None, name
    return list(node.outputs[states : states + count])


def _keep(
    op: OpBuilder, form: loops.Repeat, needed: Sequence[ir.Value]
) -> tuple[dict[ir.Value, Record], Tensor]:
    """Keep values of every iteration; also tells how many iterations really ran."""
    stable = _outer_symbols(form)
    varying = [v for v in needed if not _has_fixed_shape(v, stable)]
    lengths = {v: _length(op, form.body, v) for v in varying if sequences.is_sequence(v)}
    collected: dict[ir.Value, ir.Value] = {}
    if varying:
        collected.update(zip(varying, _keep_sequences(op, form.node, varying)))
        form = loops.loop_form(form.node)
    stacked = {v: _keep_stack(op, form, v) for v in (*needed, *lengths.values())
               if v not in collected}  # fmt: skip
    records: dict[ir.Value, Record] = {v: Stack(stacked[v]) for v in needed if v in stacked}
    for value, elements in collected.items():
        if value in lengths:
            counts = op.tensor(stacked[lengths[value]])
            starts = op.CumSum(counts, op.const(np.array(0)), exclusive=1)
            records[value] = Lists(elements, starts, counts)
        else:
            records[value] = List(elements)
    return records, _iterations(op, form, records)


def _length(op: OpBuilder, body: ir.Graph, sequence: ir.Value) -> ir.Value:
    """The length of a sequence, computed in the body."""
    inside = bodies.inside(op)
    length = inside.SequenceLength(inside.tensor(sequence)).value
    length.type, length.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    inside.place(body)
    return length


def _iterations(op: OpBuilder, form: loops.Repeat, records: Mapping[ir.Value, Record]) -> Tensor:
    """How many iterations ran: as many as were kept of anything."""
    listed = next((r.sequence for r in records.values() if isinstance(r, List)), None)
    if listed is not None:
        return op.SequenceLength(op.tensor(listed))
    stack = next((p.outer for p in form.stacked if p.outer is not None), None)
    if stack is None:
        stack = _keep_stack(op, form, form.body.inputs[0])
    return op.Squeeze(op.Shape(op.tensor(stack), start=0, end=1), [0])
