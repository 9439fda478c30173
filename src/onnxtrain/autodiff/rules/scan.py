"""Scan: the backward is a Scan in the opposite direction."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.subgraphs import used_values
from .. import bodies, factors, hoist, loops
from ..registry import graph_gradient
from ..walk import Walk
from .control_flow import Gradients, inner_walks


@graph_gradient("Scan", inner=inner_walks)
def scan(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    op = walk.op
    form = loops.scan_form(node)
    dys = [*dys, *[None] * (len(node.outputs) - len(dys))]
    back = loops.differentiate_body(walk, form, dys)
    for value in loops.needed_forward_values(back):
        port = _stack_of(op, form, value)
        inner = bodies.body_input(back.op, f"{value.name}_then", value)
        back.reads.append(loops.Port(port.outer, inner.value, port.axis, not port.backwards))
        back.replace(value, inner.value)
    hoist.out_of_the_loop(op, back)
    hoist.before_the_loop(op, back)
    factors.merge_factors(op, back)
    later = hoist.after_the_loop(back)
    sums = loops.accumulate(back, op)
    states = [*back.states, *((a, b, c) for _, a, b, c in sums)]
    stacks = [(p.axis, int(not p.backwards), g) for p, g in back.slices]
    stacks += [(0, int(later.backwards), g) for g in later.stacked]
    outputs = bodies.body_outputs(back.op, [*(r for _, _, r in states), *(g for *_, g in stacks)])
    used = used_values(back.op.nodes)
    reads = [p for p in back.reads if p.inner in used]
    if not reads:  # something has to tell how many iterations there are
        reads = [_length_port(back.op, form)]
    body = ir.Graph(
        [*(b.value for _, b, _ in states), *(p.inner for p in reads)],
        outputs,
        nodes=back.op.nodes,
        name=f"{form.body.name}_grad",
    )
    results = op.many(
        "Scan",
        *(start for start, _, _ in states),
        *(op.tensor(p.outer) for p in reads if p.outer is not None),
        outputs=len(outputs),
        body=body,
        num_scan_inputs=len(reads),
        scan_input_axes=[p.axis for p in reads],
        scan_input_directions=[int(p.backwards) for p in reads],
        scan_output_axes=[a for a, _, _ in stacks],
        scan_output_directions=[d for _, d, _ in stacks],
    )
    gradients = [(v, loops.typed(r, v)) for v, r in zip(back.firsts, results)]
    rest = results[len(back.firsts) :]
    gradients += [(v, loops.typed(r, v)) for (v, *_), r in zip(sums, rest)]
    rest = rest[len(sums) :]
    for (port, _), result in zip(back.slices, rest):
        assert port.outer is not None
        gradients.append((port.outer, loops.typed(result, port.outer)))
    return gradients + later.finish(op, rest, len(back.slices))


def _stack_of(op: OpBuilder, form: loops.Repeat, value: ir.Value) -> loops.Port:
    """The stack of a forward value over all iterations; made an output of the Scan if need be.

    It has the order of what the Scan reads: stacks of one order can be multiplied with one another.
    """
    for port in (*form.sliced, *form.stacked):
        if port.inner is value:
            return port
    for first, state, following, _ in form.states:
        later = _port_of(form, following)
        if state is value and later is not None:
            return loops.Port(_shifted(op, first, later), value, 0, later.backwards)
    inner = bodies.add_body_output(op, form.body, value)
    outer = bodies.add_node_output(op, form.node, f"{value.name}_stack")
    loops.typed(op.tensor(outer), value, 0)
    attributes = form.node.attributes
    backwards = "scan_output_directions" in attributes and all(p.backwards for p in form.sliced)
    for name, number in (("scan_output_axes", 0), ("scan_output_directions", int(backwards))):
        if name in attributes:
            attributes[name] = ir.AttrInt64s(name, [*attributes[name].as_ints(), number])
    form.stacked.append(loops.Port(outer, value, 0, backwards))
    return loops.Port(outer, inner, 0, backwards)


def _port_of(form: loops.Repeat, value: ir.Value) -> loops.Port | None:
    """The stack of a value, or of a copy of it, when there is one along axis 0."""
    for port in form.stacked:
        node = port.inner.producer()
        copied = node is not None and node.op_type == "Identity" and node.inputs[0] is value
        if port.axis == 0 and (port.inner is value or copied):
            return port
    return None


def _shifted(op: OpBuilder, first: ir.Value, port: loops.Port) -> ir.Value:
    """The states before each iteration, from the first one and the stack of those after it."""
    assert port.outer is not None
    start, stack = op.Unsqueeze(op.tensor(first), [0]), op.tensor(port.outer)
    if port.backwards:
        moved = op.Concat(op.Slice(stack, [1], [2**63 - 1], [0]), start, axis=0)
    else:
        moved = op.Concat(start, op.Slice(stack, [0], [-1], [0]), axis=0)
    return loops.typed(moved, port.outer).value


def _length_port(op: OpBuilder, form: loops.Repeat) -> loops.Port:
    port = form.sliced[0]
    inner = bodies.body_input(op, f"{port.inner.name}_length", port.inner)
    return loops.Port(port.outer, inner.value, port.axis)
