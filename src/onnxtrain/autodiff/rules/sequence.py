"""Sequences of tensors, and optional values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from ...errors import GradientRuleError
from ...graph import Constants, Names, OpBuilder, Tensor
from ...graph.subgraphs import captured_values, let_go, live_nodes
from ...operators import RANDOM
from .. import bodies, sequences
from ..registry import gradient, graph_gradient, zero_gradient
from ..walk import Walk

zero_gradient("SequenceLength", "SequenceEmpty", "OptionalHasElement")


def _position(op: OpBuilder, pos: Tensor, like: Tensor, longer: int = 0) -> Tensor:
    """A position counted from the front, in a sequence that is longer than `like`."""
    pos = op.Cast(pos, to=ir.DataType.INT64)
    if pos.const is not None and pos.const >= 0:
        return pos
    length = op.Add(op.SequenceLength(like), longer) if longer else op.SequenceLength(like)
    return op.Where(op.Less(pos, 0), op.Add(pos, length), pos)


@gradient("SequenceConstruct")
def sequence_construct(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor) -> Any:
    return [_at(op, dy, op.const(i), x) for i, x in enumerate(inputs)]


def _at(op: OpBuilder, dy: Tensor, pos: Tensor, like: Tensor) -> Tensor:
    picked = op.SequenceAt(dy, pos)
    picked.value.type = like.value.type
    return picked


@graph_gradient("SequenceAt")
def sequence_at(
    walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]
) -> Iterable[tuple[ir.Value, Tensor]]:
    # Added to the gradient that the sequence has already, or put between zeros.
    op, (dy,) = walk.op, dys
    seq, pos = (op.tensor(v) for v in node.inputs if v is not None)
    if dy is None:
        return []
    so_far = walk.withdraw(seq.value)
    start = sequences.zeros_like(op, seq) if so_far is None else so_far
    position = _position(op, pos, start)
    if so_far is not None:
        dy = dy + _at(op, so_far, position, dy)
    others = sequences.typed_like(op.SequenceErase(start, position), seq.value)
    return [(seq.value, sequences.typed_like(op.SequenceInsert(others, dy, position), seq.value))]


@gradient("SequenceInsert", stops=(2,))
def sequence_insert(
    op: OpBuilder, dy: Tensor, y: Tensor, seq: Tensor, x: Tensor, pos: Tensor | None
) -> Any:
    position = None if pos is None else _position(op, pos, dy, longer=-1)
    rest = sequences.typed_like(op.SequenceErase(dy, position), seq.value)
    return rest, _at(op, dy, op.const(-1) if position is None else position, x)


@gradient("SequenceErase", stops=(1,))
def sequence_erase(op: OpBuilder, dy: Tensor, y: Tensor, seq: Tensor, pos: Tensor | None) -> Any:
    gone = op.SequenceAt(seq, op.const(-1) if pos is None else pos)
    gone.value.type = ir.TensorType(seq.dtype)
    position = None if pos is None else _position(op, pos, dy, longer=1)
    return sequences.typed_like(op.SequenceInsert(dy, op.zeros_like(gone), position), seq.value)


@gradient("SplitToSequence", stops=(1,))
def split_to_sequence(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    split: Tensor | None,
    *,
    axis: int = 0,
    keepdims: int = 1,
) -> Any:
    without_axis = split is None and not keepdims
    dx = op.ConcatFromSequence(dy, axis=axis, new_axis=int(without_axis))
    dx.value.type = x.value.type
    return dx


@gradient("ConcatFromSequence")
def concat_from_sequence(
    op: OpBuilder, dy: Tensor, y: Tensor, seq: Tensor, *, axis: int, new_axis: int = 0
) -> Any:
    if new_axis:
        return sequences.typed_like(op.SplitToSequence(dy, axis=axis, keepdims=0), seq.value)

    def length(body: OpBuilder, each: list[Tensor]) -> Tensor:
        return body.Shape(each[0], start=axis, end=None if axis == -1 else axis + 1)

    lengths = sequences.map_elements(op, length, [seq], ir.DataType.INT64, [1])
    split = op.ConcatFromSequence(lengths, axis=0)
    split.value.type = ir.TensorType(ir.DataType.INT64)
    return sequences.typed_like(op.SplitToSequence(dy, split, axis=axis), seq.value)


# An optional value has the gradient of what it holds.


@gradient("Optional", "OptionalGetElement")
def optional(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor) -> Any:
    return dy


# --- SequenceMap -------------------------------------------------------------------------------


def _map_walk(walk: Walk, op: OpBuilder, node: ir.Node) -> Walk:
    body = node.attributes["body"].as_graph()
    return bodies.body_walk(walk, op, body, node, zip(node.inputs, body.inputs))


def _inner_walks(walk: Walk, node: ir.Node) -> list[tuple[Walk, list[ir.Value]]]:
    names = Names()
    op = OpBuilder(names, Constants(names), walk.op.opset)
    return [(_map_walk(walk, op, node), list(node.attributes["body"].as_graph().outputs))]


@graph_gradient("SequenceMap", inner=_inner_walks)
def sequence_map(
    walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]
) -> Iterable[tuple[ir.Value, Tensor]]:
    # A SequenceMap over the same elements and the gradients, whose body computes the forward
    # body again and then its gradient. What all elements share gets the sum over a sequence.
    op = walk.op
    body = node.attributes["body"].as_graph()
    _refuse_random(node, body)
    inner_op = bodies.inside(op)
    inner = _map_walk(walk, inner_op, node)
    seeds: list[tuple[Tensor, Tensor]] = []
    for output, dy in zip(body.outputs, dys):
        if dy is not None and output in inner.active:
            seed = bodies.body_input(inner_op, f"{output.name}_grad", output)
            inner.add(output, seed)
            seeds.append((dy, seed))
    inner.run()
    outer_of = {i: v for v, i in zip(node.inputs, body.inputs) if v is not None}
    targets = [*(i for i in body.inputs if i in inner.wrt), *captured_values(node)]
    inner_gradients = [
        (t, g) for t in targets if t in inner.wrt and (g := inner.take(t)) is not None
    ]
    elements, results = _with_forward(inner_op, body, [g for _, g in inner_gradients])
    outputs = bodies.body_outputs(inner_op, results)
    for value, (target, _) in zip(outputs, inner_gradients):
        value.type = ir.TensorType(target.dtype or ir.DataType.FLOAT)
    graph = ir.Graph(
        [*elements, *(s.value for _, s in seeds)],
        outputs,
        nodes=inner_op.nodes,
        name=op.names.fresh(f"{body.name}_grad"),
    )
    operands = [op.tensor(outer_of[i]) for i in body.inputs] + [dy for dy, _ in seeds]
    mapped = op.emit("SequenceMap", operands, len(outputs), body=graph)
    gradients = []
    for (target, _), result in zip(inner_gradients, mapped):
        result.value.type = ir.SequenceType(ir.TensorType(target.dtype or ir.DataType.FLOAT))
        outer = outer_of.get(target, target)
        if not sequences.is_sequence(outer):
            stacked = op.ConcatFromSequence(result, axis=0, new_axis=1)
            stacked.value.type = outer.type
            gradients.append((outer, op.ReduceSum(stacked, [0], keepdims=0)))
        else:
            gradients.append((outer, result))
    return gradients


def _refuse_random(node: ir.Node, body: ir.Graph) -> None:
    drawn = [n.op_type for n in body.all_nodes() if n.op_type in RANDOM]
    if drawn:
        raise GradientRuleError(
            f"SequenceMap {node.name!r} draws random numbers ({drawn[0]}) that its gradient could "
            "not repeat. Draw them before it and pass them in as a sequence."
        )


def _with_forward(
    op: OpBuilder, body: ir.Graph, gradients: list[Tensor]
) -> tuple[list[ir.Value], list[Tensor]]:
    """Put a copy of the forward body before the backward nodes; gives its inputs, the results."""
    copied = body.clone(allow_outer_scope_values=True)
    elements, nodes = list(copied.inputs), list(copied)
    new: dict[ir.Value, ir.Value] = dict(zip(body.inputs, elements))
    for old_node, new_node in zip(body, copied):
        new.update(zip(old_node.outputs, new_node.outputs))
        new_node.name = op.names.fresh(f"{new_node.name}_again")
    copied.outputs.clear()
    copied.inputs.clear()
    copied.remove(nodes)
    for value in new.values():
        value.name = op.names.fresh(f"{value.name}_again")
    live = live_nodes(op.nodes, [g.value for g in gradients])
    bodies.rewire(live, new)
    results = [op.tensor(new.get(g.value, g.value)) for g in gradients]
    candidates = [*nodes, *live]
    op.nodes[:] = live_nodes(candidates, [r.value for r in results])
    let_go(set(candidates).difference(op.nodes))
    return elements, results
