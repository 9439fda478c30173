"""Nodes whose best form depends on a batch size that is open: both forms, and an If."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ..graph import Dim, OpBuilder, Tensor
from ..graph.edit import copy_node, remove_nodes, take_over
from ..graph.subgraphs import subgraphs
from .cleanup import duplicate_key


class BothForms:
    """Ifs on the number of rows.

    Args:
        op: builder of a model; its constants are registered by who has it.
        graph: the model's own graph.
        fewest, most: numbers of rows for the first form; there is no upper limit without `most`.
    """

    def __init__(
        self, op: OpBuilder, graph: ir.Graph, fewest: int, most: int | None = None
    ) -> None:
        self.op, self.graph, self.fewest, self.most = op, graph, fewest, most
        self._conditions: dict[Dim, Tensor] = {}

    def split(
        self, nodes: Sequence[ir.Node], x: ir.Value, axis: int = 0
    ) -> tuple[ir.Graph, ir.Graph]:
        """Put an If in the place of the first of the nodes.

        Args:
            nodes: in the order of the graph. What they read of others is there before the first.
            x: whose size along the axis decides.
            axis: where the batch is.

        Returns:
            The branches, each with a copy of the nodes that is to be rewritten.
        """
        op, first, inside = self.op, nodes[0], set(nodes)
        results = [o for n in nodes for o in n.outputs if is_read_outside(o, inside)]
        branches = self._branch(nodes, results, "many"), self._branch(nodes, results, "few")
        op.scope = first.name or first.op_type
        condition = self._condition(op.tensor(x), axis)
        values = op.many(
            "If",
            condition,
            outputs=len(results),
            then_branch=branches[0],
            else_branch=branches[1],
        )
        op.place(self.graph, before=first)
        for old, new in zip(results, values):
            new.value.type, new.value.shape = old.type, old.shape
            take_over(old, new.value)
        remove_nodes(self.graph, nodes)
        return branches

    def _branch(self, nodes: Sequence[ir.Node], results: list[ir.Value], rows: str) -> ir.Graph:
        copies: dict[ir.Value | None, ir.Value] = {}
        copied_nodes = []
        for node in nodes:
            copied = copy_node(node, [copies.get(v, v) for v in node.inputs], self.op.names, rows)
            for old, new in zip(node.outputs, copied.outputs):
                copies[old] = new
                new.name = new.name if old.name else ""  # an optional output that is left out
            copied_nodes.append(copied)
        name = self.op.names.fresh(f"{nodes[0].name}/{rows}")
        return ir.Graph([], [copies[v] for v in results], nodes=copied_nodes, name=name)

    def _condition(self, x: Tensor, axis: int) -> Tensor:
        """Whether the number of rows is one for the first form; equal numbers share the answer."""
        op, rows = self.op, x.dim(axis)
        if rows is None or rows not in self._conditions:
            count = op.Shape(x, start=axis, end=axis + 1)
            if self.most is None:
                is_many = op.GreaterOrEqual(count, self.fewest)
            else:
                is_many = op.Equal(
                    op.Clip(count, op.const(self.fewest), op.const(self.most)), count
                )
            self._conditions[rows] = is_many
        return self._conditions[rows]


def share_common(
    graph: ir.Graph, branches: tuple[ir.Graph, ir.Graph], trained: Collection[str]
) -> None:
    """Move what both branches of an If compute of outer values alone before it.

    One of the branches would compute it anyway, and its gradient is taken once. What depends on
    constants alone stays: onnxruntime folds it, and lays a product's weight out for that product
    only if it finds the weight beside it.

    Args:
        graph: that has the If.
        branches: of it; of nodes that are the same those of the first are moved.
        trained: names of values that change, though they may have a value now.
    """
    first, second = branches
    holder = next(n for n in graph if n.op_type == "If" and first in subgraphs(n))
    moved = True
    while moved:  # what reads only what was moved can be moved next
        known = {duplicate_key(node): node for node in second if _is_movable(node, second, trained)}
        moved = False
        for node in [n for n in first if _is_movable(n, first, trained)]:
            key = duplicate_key(node)
            same = known.pop(key, None) if key is not None else None
            if same is None or len(same.outputs) != len(node.outputs):
                continue
            for old, new in zip(same.outputs, node.outputs):
                old.replace_all_uses_with(new)
            remove_nodes(second, [same])
            first.remove(node)
            graph.insert_before(holder, node)
            moved = True


def _is_movable(node: ir.Node, branch: ir.Graph, trained: Collection[str]) -> bool:
    """Whether a node of a branch reads outer values only, and gives none of its results."""
    if any(o.is_graph_output() for o in node.outputs):
        return False
    read = [v for v in node.inputs if v is not None]
    if all(v.const_value is not None and v.name not in trained for v in read):
        return False
    return all((maker := v.producer()) is None or maker.graph is not branch for v in read)


def is_read_outside(value: ir.Value, inside: set[ir.Node]) -> bool:
    """Whether others than these nodes need a value."""
    return value.is_graph_output() or any(user not in inside for user, _ in value.uses())
