"""Control flow: If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import GradientRuleError
from ...graph import Constants, Names, OpBuilder, Tensor
from .. import bodies, factors, hoist, loops
from ..registry import graph_gradient
from ..walk import Walk, captured_values

Gradients = Iterable[tuple[ir.Value, Tensor]]


def inner_walks(walk: Walk, node: ir.Node) -> list[tuple[Walk, list[ir.Value]]]:
    """The walks over a node's subgraphs and the values they start from (see `Walk.blockers`)."""
    names = Names()
    op = OpBuilder(names, Constants(names), walk.op.opset)
    if node.op_type == "If":
        graphs = bodies.subgraphs(node)
        return [(bodies.body_walk(walk, op, g, node), list(g.outputs)) for g in graphs]
    form = scan_form(node) if node.op_type == "Scan" else loop_form(node)
    return [(form.walk(walk, op), list(form.body.outputs))]


# --- If ----------------------------------------------------------------------------------------


@graph_gradient("If", inner=inner_walks)
def if_(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    # The backward is an If on the same condition; each branch gives the gradients of the same
    # captured values, zeros for those it does not use.
    op = walk.op
    branches = [node.attributes[k].as_graph() for k in ("then_branch", "else_branch")]
    found = [_branch(walk, node, graph, dys) for graph in branches]
    captured = [v for v in captured_values(node) if any(v in grads for _, grads in found)]
    if not captured:
        return []
    graphs = []
    for forward, (inner, grads) in zip(branches, found):
        results = [grads[v] if v in grads else inner.zeros_like(inner.tensor(v)) for v in captured]
        results = _hand_over_branch(op, node, forward, inner, results)
        outputs = bodies.body_outputs(inner, results)
        graphs.append(ir.Graph([], outputs, nodes=inner.nodes, name=f"{forward.name}_grad"))
    condition = node.inputs[0]
    assert condition is not None
    found_results = op.many(
        "If",
        op.tensor(condition),
        outputs=len(captured),
        then_branch=graphs[0],
        else_branch=graphs[1],
    )
    return [(v, loops.typed(r, v)) for v, r in zip(captured, found_results)]


def _branch(
    walk: Walk, node: ir.Node, graph: ir.Graph, dys: Sequence[Tensor | None]
) -> tuple[OpBuilder, dict[ir.Value, Tensor]]:
    op = bodies.inside(walk.op)
    inner = bodies.body_walk(walk, op, graph, node)
    for output, dy in zip(graph.outputs, dys):
        if dy is not None and output in inner.active:
            inner.add(output, op.tensor(dy.value))
    inner.run()
    grads = {v: g for v in inner.wrt if (g := inner.take(v)) is not None}
    return op, grads


def _hand_over_branch(
    op: OpBuilder, node: ir.Node, forward: ir.Graph, inner: OpBuilder, results: list[Tensor]
) -> list[Tensor]:
    """Make what the backward branch reads of the forward branch outputs of the forward If."""
    local = bodies.values_of(forward)
    inner.nodes[:] = bodies.live_nodes(inner.nodes, [r.value for r in results])
    inner.nodes[:] = bodies.shapes_to_forward(inner, forward, local, inner.nodes)
    used = [*bodies.used_values(inner.nodes), *(r.value for r in results)]
    visible = {}
    for value in dict.fromkeys(v for v in used if v in local):
        if value in forward.outputs:
            visible[value] = node.outputs[list(forward.outputs).index(value)]
            continue
        outer = bodies.add_node_output(op, node, f"{value.name}_of_{node.name}")
        outer.type = value.type
        for graph in bodies.subgraphs(node):
            if graph is forward:
                bodies.add_body_output(op, graph, value)
            else:
                _add_placeholder(op, graph, value)
        visible[value] = outer
    bodies.rewire(inner.nodes, visible)
    return [inner.tensor(visible.get(r.value, r.value)) for r in results]


def _add_placeholder(op: OpBuilder, graph: ir.Graph, like: ir.Value) -> None:
    """An empty tensor, in the branch not taken, for a value only the other branch has."""
    if not isinstance(like.type, ir.TensorType):
        raise GradientRuleError(
            f"The gradient of an If needs {like.name!r} from inside a branch, and that is not a "
            "tensor. Build the sequence before or after the If."
        )
    filler = bodies.inside(op)
    rank = 1 if like.shape is None else len(like.shape)
    filled = filler.full(filler.const(np.zeros(rank, np.int64)), 0, like.type.dtype)
    filled.value.shape = ir.Shape([0] * rank)
    graph.extend(filler.nodes)
    graph.outputs.append(filled.value)


# --- Scan --------------------------------------------------------------------------------------


def scan_form(node: ir.Node) -> loops.Repeat:
    """Take a Scan node apart."""
    body = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - count
    _name_outputs(node, len(body.outputs))

    def ports(outer: Sequence[Any], inner: Sequence[ir.Value], kind: str) -> list[loops.Port]:
        axes = _ints(node, f"scan_{kind}_axes", len(inner))
        directions = _ints(node, f"scan_{kind}_directions", len(inner))
        return [loops.Port(o, i, a, bool(d)) for o, i, a, d in zip(outer, inner, axes, directions)]

    return loops.Repeat(
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


@graph_gradient("Scan", inner=inner_walks)
def scan(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    op = walk.op
    form = scan_form(node)
    dys = [*dys, *[None] * (len(node.outputs) - len(dys))]
    back = loops.differentiate_body(walk, form, dys)
    for value in loops.needed_forward_values(back):
        port = _stack_of(op, form, value)
        inner = bodies.body_input(back.op, f"{value.name}_then", value)
        back.reads.append(loops.Port(port.outer, inner.value, port.axis, not port.backwards))
        back.replace(value, inner.value)
    hoist.before_the_loop(op, back)
    factors.merge_factors(op, back)
    later = hoist.after_the_loop(back)
    sums = loops.accumulate(back, op)
    states = [*back.states, *((a, b, c) for _, a, b, c in sums)]
    stacks = [(p.axis, int(not p.backwards), g) for p, g in back.slices]
    stacks += [(0, 1, g) for g in later.stacked]
    outputs = bodies.body_outputs(back.op, [*(r for _, _, r in states), *(g for *_, g in stacks)])
    used = bodies.used_values(back.op.nodes)
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
    """The stack of a forward value over all iterations; made an output of the Scan if need be."""
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
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in form.node.attributes:
            values = [*form.node.attributes[name].as_ints(), 0]
            form.node.attributes[name] = ir.AttrInt64s(name, values)
    port = loops.Port(outer, inner)
    form.stacked.append(loops.Port(outer, value))
    return port


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


# --- Loop --------------------------------------------------------------------------------------


def loop_form(node: ir.Node) -> loops.Repeat:
    """Take a Loop node apart."""
    body = node.attributes["body"].as_graph()
    states = len(body.inputs) - 2
    _name_outputs(node, len(body.outputs) - 1)
    return loops.Repeat(
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
        [loops.Port(o, i) for o, i in zip(node.outputs[states:], body.outputs[1 + states :])],
    )


@graph_gradient("Loop", inner=inner_walks)
def loop(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    op = walk.op
    form = loop_form(node)
    _refuse_sequences(form, walk)
    dys = [*dys, *[None] * (len(node.outputs) - len(dys))]
    back = loops.differentiate_body(walk, form, dys)
    needed = [v for v in loops.needed_forward_values(back) if v not in form.body.inputs[:2]]
    kept, count = _keep(op, form, needed)
    number = ir.Value(
        name=op.names.fresh("iteration"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
    )
    again = ir.Value(
        name=op.names.fresh("again"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
    )
    head = bodies.inside(op)
    then = head.Sub(head.Sub(head.tensor(count.value), 1), head.tensor(number))
    then.value.shape = ir.Shape([])
    for value, stack in kept.items():
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
    return value.shape is not None and all(
        isinstance(d, int) or d.value in stable for d in value.shape.dims
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


def _keep_sequences(
    op: OpBuilder, node: ir.Node, values: Sequence[ir.Value]
) -> tuple[ir.Node, list[ir.Value]]:
    """Collect values whose shape may change between iterations in sequences that are carried.

    Carried values come before scan outputs, so the node is replaced by one with more outputs.
    """
    graph, body = node.graph, node.attributes["body"].as_graph()
    assert graph is not None
    before, inside = bodies.inside(op), bodies.inside(op)
    starts, old_states = [], len(body.inputs) - 2
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
    body.extend(inside.nodes)
    graph.insert_before(node, before.nodes)
    inputs = [*node.inputs, *[None] * (2 + old_states - len(node.inputs)), *starts]
    added = len(values)
    bigger = ir.Node(
        "", "Loop", inputs, node.attributes.values(), num_outputs=len(node.outputs) + added,
        name=node.name,
    )  # fmt: skip
    new = [*bigger.outputs[:old_states], *bigger.outputs[old_states + added :]]
    graph.insert_before(node, bigger)
    for old, value in zip(node.outputs, new):
        value.name, value.type, value.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(node.outputs, new, replace_graph_outputs=True)
    graph.remove(node)
    kept = list(bigger.outputs[old_states : old_states + added])
    for value, sequence in zip(values, kept):
        sequence.name = op.names.fresh(f"{value.name}_sequence")
        sequence.type = ir.SequenceType(ir.TensorType(value.dtype or ir.DataType.FLOAT))
    return bigger, kept


def _keep(
    op: OpBuilder, form: loops.Repeat, needed: Sequence[ir.Value]
) -> tuple[dict[ir.Value, ir.Value], Tensor]:
    """Keep values of every iteration; also tells how many iterations really ran."""
    stable = _outer_symbols(form)
    varying = [v for v in needed if not _has_fixed_shape(v, stable)]
    kept: dict[ir.Value, ir.Value] = {}
    if varying:
        node, sequences = _keep_sequences(op, form.node, varying)
        kept.update(zip(varying, sequences))
        form = loop_form(node)
    kept.update((v, _keep_stack(op, form, v)) for v in needed if v not in kept)
    if varying:
        return kept, op.SequenceLength(op.tensor(kept[varying[0]]))
    stack = next((p.outer for p in form.stacked if p.outer is not None), None)
    if stack is None:
        stack = _keep_stack(op, form, form.body.inputs[0])
    return kept, op.Squeeze(op.Shape(op.tensor(stack), start=0, end=1), [0])


def _refuse_sequences(form: loops.Repeat, walk: Walk) -> None:
    for _, state, _, final in form.states:
        if isinstance(state.type, ir.SequenceType) and final in walk.active:
            raise GradientRuleError(
                f"Loop {form.node.name!r} carries the sequence {state.name!r} from one iteration "
                "to the next, and a gradient cannot be carried through that. Use a scan output of "
                "the Loop instead of a sequence."
            )
