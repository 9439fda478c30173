"""Loop: the backward is a Loop over the iterations that really ran, last one first."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...errors import GradientRuleError
from ...graph import OpBuilder, Tensor
from ...graph.subgraphs import captured_values
from .. import bodies, hoist, loops
from ..registry import graph_gradient
from ..walk import Walk
from .control_flow import Gradients, inner_walks


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
        if isinstance(stack.type, ir.SequenceType):
            pick = loops.typed(head.SequenceAt(head.tensor(stack), then), value)
        else:
            pick = loops.typed(head.Gather(head.tensor(stack), then, axis=0), value)
        back.replace(value, pick.value)
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
        if not isinstance(value.type, ir.TensorType):
            raise GradientRuleError(
                f"The gradient of Loop {node.name!r} needs the value of {value.name!r} in every "
                "iteration, and that is not a tensor."
            )
        kind = ir.SequenceType(ir.TensorType(value.type.dtype))
        empty = before.SequenceEmpty(dtype=int(value.type.dtype))
        carried = ir.Value(name=op.names.fresh(f"{value.name}_so_far"), type=kind)
        longer = inside.SequenceInsert(inside.tensor(carried), inside.tensor(value))
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
        assert isinstance(value.type, ir.TensorType)
        sequence.name = op.names.fresh(f"{value.name}_sequence")
        sequence.type = ir.SequenceType(ir.TensorType(value.type.dtype))
        sequence.shape = None
    return collected


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
) -> tuple[dict[ir.Value, ir.Value], Tensor]:
    """Keep values of every iteration; also tells how many iterations really ran."""
    stable = _outer_symbols(form)
    varying = [v for v in needed if not _has_fixed_shape(v, stable)]
    stacks: dict[ir.Value, ir.Value] = {}
    if varying:
        stacks.update(zip(varying, _keep_sequences(op, form.node, varying)))
        form = loops.loop_form(form.node)
    stacks.update((v, _keep_stack(op, form, v)) for v in needed if v not in stacks)
    if varying:
        return stacks, op.SequenceLength(op.tensor(stacks[varying[0]]))
    stack = next((p.outer for p in form.stacked if p.outer is not None), None)
    if stack is None:
        stack = _keep_stack(op, form, form.body.inputs[0])
    return stacks, op.Squeeze(op.Shape(op.tensor(stack), start=0, end=1), [0])
