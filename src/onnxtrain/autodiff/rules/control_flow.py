"""Control flow: If; what it shares with Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ...errors import GradientRuleError
from ...graph import Constants, Names, OpBuilder, Tensor
from ...graph.subgraphs import captured_values, live_nodes, subgraphs, used_values
from .. import bodies, loops
from ..registry import graph_gradient
from ..walk import Walk

Gradients = Iterable[tuple[ir.Value, Tensor]]


def inner_walks(walk: Walk, node: ir.Node) -> list[tuple[Walk, list[ir.Value]]]:
    """The walks over a node's subgraphs and the values they start from (see `Walk.blockers`)."""
    names = Names()
    op = OpBuilder(names, Constants(names), walk.op.opset)
    if node.op_type == "If":
        graphs = subgraphs(node)
        return [(bodies.body_walk(walk, op, g, node), list(g.outputs)) for g in graphs]
    form = loops.scan_form(node) if node.op_type == "Scan" else loops.loop_form(node)
    return [(form.walk(walk, op), list(form.body.outputs))]


# --- If ----------------------------------------------------------------------------------------


@graph_gradient("If", inner=inner_walks)
def if_(walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]) -> Gradients:
    # The backward is an If on the same condition; each branch gives the gradients of the same
    # captured values, zeros for those it does not use.
    op = walk.op
    branches = [node.attributes[k].as_graph() for k in ("then_branch", "else_branch")]
    backward = [_branch(walk, node, graph, dys) for graph in branches]
    captured = [v for v in captured_values(node) if any(v in grads for _, grads in backward)]
    if not captured:
        return []
    graphs = []
    slots = _Slots(op, node)
    for forward, (inner, grads) in zip(branches, backward):
        results = [grads[v] if v in grads else inner.zeros_like(inner.tensor(v)) for v in captured]
        results = _hand_over_branch(slots, forward, inner, results)
        outputs = bodies.body_outputs(inner, results)
        graphs.append(ir.Graph([], outputs, nodes=inner.nodes, name=f"{forward.name}_grad"))
    condition = node.inputs[0]
    assert condition is not None
    gradients = op.many(
        "If",
        op.tensor(condition),
        outputs=len(captured),
        then_branch=graphs[0],
        else_branch=graphs[1],
    )
    return [(v, loops.typed(r, v)) for v, r in zip(captured, gradients)]


def _branch(
    walk: Walk, node: ir.Node, graph: ir.Graph, dys: Sequence[Tensor | None]
) -> tuple[OpBuilder, dict[ir.Value, Tensor]]:
    op = bodies.inside(walk.op)
    inner = bodies.body_walk(walk, op, graph, node)
    for output, dy in zip(graph.outputs, dys):
        if dy is not None and output in inner.active:
            inner.add(output, _of_branch(op, op.tensor(dy.value), op.tensor(output)))
    inner.run()
    grads = {v: g for v in inner.wrt if (g := inner.take(v)) is not None}
    return op, grads


def _of_branch(op: OpBuilder, dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of the If's result as that of a branch's, where the two differ in rank.

    The branch of another rank than what reads the result is never taken; its graph must be valid
    all the same.
    """
    if not isinstance(y.value.type, ir.TensorType) or dy.shape is None or y.shape is None:
        return dy
    return dy if dy.rank == y.rank else op.Reshape(dy, op.shape_of(y))


def _hand_over_branch(
    slots: _Slots, forward: ir.Graph, inner: OpBuilder, results: list[Tensor]
) -> list[Tensor]:
    """Make what the backward branch reads of the forward branch outputs of the forward If."""
    local = bodies.values_of(forward)
    inner.nodes[:] = live_nodes(inner.nodes, [r.value for r in results])
    inner.nodes[:] = bodies.shapes_to_forward(inner, forward, local, inner.nodes)
    used = [*used_values(inner.nodes), *(r.value for r in results)]
    visible = {
        value: slots.output_of(forward, value)
        for value in dict.fromkeys(v for v in used if v in local)
    }
    bodies.rewire(inner.nodes, visible)
    return [inner.tensor(visible.get(r.value, r.value)) for r in results]


class _Slots:
    """Outputs of a forward If that hand over what its branches have for the backward ones.

    A slot has a value in the branch that asked for it, and an empty tensor in the other one, until
    that asks for a slot of the same kind.
    """

    def __init__(self, op: OpBuilder, node: ir.Node) -> None:
        self.op, self.node = op, node
        self.empty: dict[ir.Graph, dict[int, ir.Value]] = {g: {} for g in subgraphs(node)}

    def output_of(self, branch: ir.Graph, value: ir.Value) -> ir.Value:
        """The output of the If that is a value of a branch."""
        if value in branch.outputs:
            return self.node.outputs[list(branch.outputs).index(value)]
        index = self._free(branch, value)
        if index is None:
            return self._new(branch, value)
        del self.empty[branch][index]
        bodies.add_body_output(self.op, branch, value)
        branch.outputs[index] = branch.outputs.pop()
        return self.node.outputs[index]

    def _free(self, branch: ir.Graph, value: ir.Value) -> int | None:
        for index, empty in self.empty[branch].items():
            if empty.type == value.type and _rank(empty) == _rank(value):
                return index
        return None

    def _new(self, branch: ir.Graph, value: ir.Value) -> ir.Value:
        op, node = self.op, self.node
        outer = bodies.add_node_output(op, node, f"{value.name}_of_{node.name}")
        outer.type = value.type
        bodies.add_body_output(op, branch, value)
        for graph, empty in self.empty.items():
            if graph is not branch:
                empty[len(node.outputs) - 1] = _add_placeholder(op, graph, value)
        return outer


def _rank(value: ir.Value) -> int:
    """Of a placeholder: a vector where the rank is not known."""
    return 1 if value.shape is None else len(value.shape)


def _add_placeholder(op: OpBuilder, graph: ir.Graph, like: ir.Value) -> ir.Value:
    """An empty tensor, in the branch not taken, for a value only the other branch has."""
    if not isinstance(like.type, ir.TensorType):
        raise GradientRuleError(
            f"The gradient of an If needs {like.name!r} from inside a branch, and that is not a "
            "tensor. Build the sequence before or after the If."
        )
    filler = bodies.inside(op)
    rank = _rank(like)
    filled = filler.full(filler.const(np.zeros(rank, np.int64)), 0, like.type.dtype)
    filled.value.shape = ir.Shape([0] * rank)
    filler.place(graph)
    graph.outputs.append(filled.value)
    return filled.value
