"""An If whose condition is a constant is its branch.

torch's scripted models ask at run time what is fixed in the export ("is the input batched?"), and
the branches differ in rank: as long as such an If stays, nothing behind it has a known rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ..errors import ShapeInferenceError
from ..graph import Names
from ..graph.infer import infer_shapes
from ..graph.nodes import identity
from .rewrite import all_nodes, names_in, standard
from .symbolic import infer_symbolic


def decide_branches(model: ir.Model) -> ir.Model:
    """Put the branch in the place of every If that is decided, until none is left."""
    while decided := _inline_decided(model):
        try:
            model = infer_shapes(model)
        except ShapeInferenceError:  # what is behind was inferred from the other branch
            _forget_behind(decided)
            model = infer_shapes(model)
        model = infer_symbolic(model)
    return model


def _forget_behind(values: Iterable[ir.Value]) -> None:
    """Forget the shapes of some values and of all that is computed from them."""
    todo = list(values)
    seen = set(todo)
    while todo:
        value = todo.pop()
        value.shape = None
        following = {o for user, _ in value.uses() for o in user.outputs}
        todo += following - seen
        seen |= following


def _inline_decided(model: ir.Model) -> list[ir.Value]:
    """What the branches gave that were put in the place of an If."""
    decided = [n for n in all_nodes(model) if n.op_type == "If" and not standard(n.domain)]
    results: list[ir.Value] = []
    for node in decided:
        condition = node.inputs[0]
        if condition is None or condition.const_value is None or condition.is_graph_input():
            continue
        if node.graph is None:  # was part of a branch that is gone
            continue
        taken = bool(condition.const_value.numpy().reshape(-1)[0])
        branch = node.attributes["then_branch" if taken else "else_branch"].as_graph()
        results += _put(model, node, branch)
    return results


def _put(model: ir.Model, node: ir.Node, branch: ir.Graph) -> list[ir.Value]:
    graph = node.graph
    assert graph is not None
    names = names_in(model)
    results = list(branch.outputs)
    inner = list(branch)
    produced = {o for n in inner for o in n.outputs}
    branch.outputs.clear()
    branch.remove(inner)
    _avoid_clashes(graph, inner, names)
    new_nodes = list(inner)
    new_values: list[ir.Value] = []
    for value in results:
        if value not in produced or any(value is v for v in new_values):
            copy = identity(value, names.fresh(f"{node.name}/Identity"))
            new_nodes.append(copy)
            value = copy.outputs[0]  # noqa: PLW2901
        new_values.append(value)
    old = list(node.outputs)
    for before, after in zip(old, new_values):
        if after.type is not None:  # what the branch knows, not what both had in common
            before.type = after.type
        before.shape = after.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], new_nodes, old, new_values)
    return new_values


def _avoid_clashes(graph: ir.Graph | ir.Function, nodes: list[ir.Node], names: Names) -> None:
    """Names only have to be unique within their scope; the nodes are about to change theirs."""
    around = list(graph)
    node_names = {n.name for n in around}
    value_names = {o.name for n in around for o in n.outputs} | {v.name for v in graph.inputs}
    for node in nodes:
        if node.name in node_names:
            node.name = names.fresh(node.name or node.op_type)
        for output in node.outputs:
            if output.name in value_names:
                output.name = names.fresh(output.name or "value")
