"""Recurrent layers that gradients pass, LSTM, GRU and RNN, become Scans.

The fused forward kernels keep neither gates nor cell states, and computing them again costs a third
of the whole step (ADR 7). As a Scan with a small body a layer returns what its gradient needs. The
form in columns is laid out for speed (ADR 12); for few sequences the one in rows is faster. So
where their number is open the graph has both, and an If.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ...autodiff import walk_between
from ...autodiff.bodies import inside
from ...autodiff.registry import lookup
from ...graph import OpBuilder, Tensor
from ...graph.edit import remove_nodes, take_over
from ...graph.infer_nodes import infer_nodes
from ...graph.subgraphs import live_nodes, used_values
from ..both_forms import BothForms, share_common
from . import columns, rows
from .cells import CELLS

Write: TypeAlias = Callable[[OpBuilder, ir.Node], list[Tensor]]


def recurrent_layers_as_scans(
    model: ir.Model,
    wrt: Sequence[str],
    of: Sequence[str],
    no_gradient: Collection[str],
    *,
    open_batches: bool = False,
) -> ir.Model:
    """Write layers on the path from `wrt` to `of` as Scans; others keep the fused kernel.

    An operator for which a gradient is registered stays as it is: whoever registered the rule
    wants it used. With `open_batches` a layer whose best form depends on a batch size that is not
    known gets both; without, the one for many sequences.
    """
    walk, targets = walk_between(model, wrt, of, no_gradient)
    op = OpBuilder.on(model)
    layers = [n for _, _, path in walk.levels(targets) for n in path if _is_layer(n)]
    forms = BothForms(op, model.graph, columns.FEWEST_SEQUENCES)
    split: set[ir.Node] = set()
    for chain in _chains(model.graph, layers) if open_batches else ():
        split.update(chain)
        x, axis = columns.batch_axis(chain[0])
        branches = forms.split(chain, x, axis)
        for graph, write in zip(branches, (columns.write, rows.write)):
            for node in [n for n in graph if n.op_type in CELLS]:
                _rewrite(inside(op), node, write)
        share_common(model.graph, branches, wrt)
    for node in (n for n in layers if n not in split):
        _rewrite(inside(op), node, columns.write if columns.has_form(node) else rows.write)
    op.attach(model.graph)
    return model


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in CELLS and not node.domain and lookup("", node.op_type) is None


def _chains(graph: ir.Graph, layers: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Layers of the graph that may have few or many sequences, with those that directly follow.

    In one branch, a layer takes what the one before it gives without turning it back in between.
    """
    chains: list[list[ir.Node]] = []
    chain_of: dict[ir.Node, list[ir.Node]] = {}
    for node in layers:
        if node.graph is not graph or not columns.has_form(node) or not columns.is_open(node):
            continue
        chain: list[ir.Node] = []
        source = _layer_before(node)
        if source is not None and source[0] in chain_of:
            chain = chain_of[source[0]]
        if source is not None and chain and _moved_together(graph, [*chain, source[1], node]):
            chain += [source[1], node]
        else:
            chain = [node]
            chains.append(chain)
        chain_of[node] = chain
    return chains


def _layer_before(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The layer that a layer reads, and the Squeeze in between."""
    squeeze = _producer(node)
    if squeeze is None or squeeze.op_type != "Squeeze" or squeeze.domain:
        return None
    layer = _producer(squeeze)
    return None if layer is None else (layer, squeeze)


def _producer(node: ir.Node) -> ir.Node | None:
    x = node.inputs[0]
    return x.producer() if x is not None else None


def _moved_together(graph: ir.Graph, chain: Sequence[ir.Node]) -> bool:
    """Let what later nodes of a chain read be there before the first, where that can be."""
    first, own = chain[0], {o for node in chain for o in node.outputs}
    order = list(graph)
    between = order[order.index(first) : order.index(chain[-1])]
    needed = live_nodes(between, [v for v in used_values(chain) if v not in own])
    if not set(chain).isdisjoint(needed):
        return False
    if needed:
        graph.remove(needed)
        graph.insert_before(first, needed)
    return True


def _rewrite(op: OpBuilder, node: ir.Node, write: Write) -> None:
    op.scope = node.name or node.op_type
    results = write(op, node)
    infer_nodes(op.nodes, op.opset)
    _put_in_place(node, op, results)


def _put_in_place(node: ir.Node, op: OpBuilder, results: Sequence[Tensor]) -> None:
    """Replace a layer by the nodes that were built, which compute the same."""
    graph = node.graph
    assert graph is not None
    op.place(graph, before=node)
    for old, new in zip(node.outputs, results):
        if old.name:
            new.value.type = old.type or new.value.type
            new.value.shape = old.shape or new.value.shape
            take_over(old, new.value)
    remove_nodes(graph, [node])
