"""What a group of elementwise nodes keeps for the backward pass is computed there, where it pays.

A GELU makes its result, which its layer and a gradient of weights read, and its slope, which only
its own gradient reads: two tensors wait for the backward pass. Both are functions of one that could
wait in their place. Here the nodes are repeated where the gradient is due, on what they were
computed from, and the slope is made there alone. It costs no pass over memory: what is written once
more in the backward pass is weighed against what the forward pass writes no longer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import onnx_ir as ir

from ..graph import Names
from ..graph.edit import all_names, copy_node
from ..graph.subgraphs import live_nodes, used_values
from ..operators import OPERAND, VIEWS
from .sizes import elements_of


class Apart(NamedTuple):
    """Nodes of the forward pass, and nodes that are late: no group has nodes of both."""

    early: frozenset[ir.Node] = frozenset()
    late: frozenset[ir.Node] = frozenset()

    def may_join(self, nodes: Collection[ir.Node]) -> bool:
        """Whether nodes may be in one group."""
        return self.late.isdisjoint(nodes) or self.early.isdisjoint(nodes)


NONE_APART = Apart()


def compute_late(
    graph: ir.Graph, groups: Sequence[Sequence[ir.Node]], gradients: Collection[str]
) -> Apart:
    """Repeat the nodes of groups in the backward pass where less waits for it then.

    Args:
        graph: a differentiated graph whose shapes are known; it is changed.
        groups: nodes that are computed in one pass over memory.
        gradients: names of the outputs that are gradients; without any nothing is done.

    Returns:
        Nodes that are to be in no group together, if anything has changed.
    """
    results = [o for o in graph.outputs if o.name not in gradients]
    if not gradients or not results:
        return NONE_APART
    lateness = _Lateness(graph, results)
    plans = [plan for nodes in groups if (plan := _Plan(nodes, lateness)).pays()]
    names, late = Names(all_names(graph) if plans else ()), set[ir.Node]()
    for plan in plans:
        late.update(plan.carry_out(graph, names))
    return Apart(frozenset(lateness.forward), frozenset(late)) if late else NONE_APART


class _Lateness:
    """Which nodes of a graph only its gradients need."""

    def __init__(self, graph: ir.Graph, results: Collection[ir.Value]) -> None:
        self.forward = set(live_nodes(list(graph), results))

    def readers(self, value: ir.Value, without: Collection[ir.Node] = ()) -> list[ir.Node]:
        """Nodes of the backward pass that read a value or a view of it."""
        late = list[ir.Node]()
        for user, _ in value.uses():
            if user in without:
                continue
            if user not in self.forward:
                late.append(user)
            elif _is_view(user, value):
                late += self.readers(user.outputs[0], without)
        return late

    def waits_anyway(self, value: ir.Value, members: Collection[ir.Node]) -> bool:
        """Whether a value waits for the backward pass anyway, or takes next to nothing."""
        maker = value.producer()
        if maker is None or _elements(value) == 0:
            return True
        while maker is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
            value = maker.inputs[0]
            maker = value.producer()
        return maker is None or bool(self.readers(value, members))


class _Plan:
    """What would be computed late of one group.

    Of the results that wait, those that the forward pass reads are written by it in any case. They
    may go on waiting, and the others are computed of them and of what the group reads; or they are
    computed again, too.
    """

    def __init__(self, group: Sequence[ir.Node], lateness: _Lateness) -> None:
        self._group, self._lateness = group, lateness
        self._members = set(group)
        outputs = [node.outputs[0] for node in group]
        self._late = [v for v in outputs if lateness.readers(v, self._members)]
        self._again = list[ir.Node]()

    def pays(self) -> bool:
        """Whether less waits, and no more is written; the plan is made then."""
        values = {v for node in self._group for v in (*node.outputs, *used_values([node]))}
        is_early = not self._lateness.forward.isdisjoint(self._group)
        if len(self._late) < 2 or not is_early or any(v.is_graph_output() for v in values):
            return False
        written = {v for v in self._late if self._is_read_forward(v)}
        choices = [written, set[ir.Value]()] if 2 * len(written) <= len(self._late) else [written]
        least = sum(map(_elements, self._late))
        for stays in choices:
            again = live_nodes(self._group, [v for v in self._late if v not in stays], stop=stays)
            waits = self._waits(again, stays)
            if waits is not None and waits < least:
                least, self._again = waits, again
        return bool(self._again)

    def _waits(self, again: Sequence[ir.Node], stays: Collection[ir.Value]) -> int | None:
        """How many elements wait if some nodes are late; None if they cannot be repeated."""
        inside = {node.outputs[0] for node in again}
        read = {v for v in used_values(again) if v not in inside} | set(stays)
        makers = {v.producer() for v in read}
        if not again or not makers <= {*self._lateness.forward, None}:
            return None  # they are of the backward pass
        outside = (v for v in read if v not in stays)
        waiting = [v for v in outside if not self._lateness.waits_anyway(v, self._members)]
        return sum(map(_elements, (*stays, *waiting)))

    def _is_read_forward(self, value: ir.Value) -> bool:
        users = [user for user, _ in value.uses()]
        return any(u in self._lateness.forward and u not in self._members for u in users)

    def carry_out(self, graph: ir.Graph, names: Names) -> list[ir.Node]:
        """Repeat the nodes before the first that reads of them, and let the others go.

        Nothing is done if that reader stands before something that would be read, or if one is
        inside of a branch or a loop. Gives the copies.
        """
        late = [node.outputs[0] for node in self._again if node.outputs[0] in self._late]
        views = [view for value in late for view in self._views(value)]
        repeated = [*self._again, *views]
        readers = self._readers([*late, *(view.outputs[0] for view in views)])
        place = {node: number for number, node in enumerate(graph)}
        if any(user not in place for user, _ in readers):
            return []
        first = min((user for user, _ in readers), key=place.__getitem__)
        makers = {v.producer() for v in used_values(repeated)} - {*repeated, None}
        if any(place[maker] > place[first] for maker in makers if maker is not None):
            return []
        copies, nodes = dict[ir.Value | None, ir.Value | None](), list[ir.Node]()
        for node in repeated:
            again = copy_node(node, [copies.get(v, v) for v in node.inputs], names)
            copies[node.outputs[0]] = again.outputs[0]
            nodes.append(again)
        graph.insert_before(first, nodes)
        for user, index in readers:
            _read_instead(user, index, copies[user.inputs[index]])
        for node in reversed(self._group):
            if not node.outputs[0].uses():
                graph.remove(node, safe=True)
        return nodes

    def _readers(self, values: Sequence[ir.Value]) -> list[tuple[ir.Node, int]]:
        """Nodes of the backward pass that read values, each with the place of the operand."""
        without = self._lateness.forward | self._members
        return [use for value in values for use in value.uses() if use[0] not in without]

    def _views(self, value: ir.Value) -> list[ir.Node]:
        """Views of the forward pass that the backward pass reads, too."""
        views = list[ir.Node]()
        for user, _ in value.uses():
            is_early = user in self._lateness.forward and user not in self._members
            is_view = is_early and _is_view(user, value)
            if is_view and self._lateness.readers(user.outputs[0], self._members):
                views += [user, *self._views(user.outputs[0])]
        return views


def _read_instead(user: ir.Node, index: int, value: ir.Value | None) -> None:
    """Let a node read another value, which has the same numbers: a mark with its name holds on."""
    old, mark = user.inputs[index], user.doc_string or ""
    if old is not None and value is not None and mark.endswith(f"{OPERAND}{old.name}"):
        user.doc_string = f"{mark.removesuffix(old.name or '')}{value.name}"
    user.replace_input_with(index, value)


def _is_view(node: ir.Node, value: ir.Value) -> bool:
    return node.op_type in VIEWS and not node.domain and node.inputs[0] is value


def _elements(value: ir.Value) -> int:
    """Of a tensor that is worth while; 0 for one of unknown rank."""
    return 0 if value.shape is None else elements_of(value.shape)
