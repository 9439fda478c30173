"""Recurrent layers that gradients pass, LSTM, GRU and RNN, become Scans.

The fused forward kernels keep neither gates nor cell states, and computing them again costs a third
of the whole step (ADR 7). As a Scan with a small body a layer returns what its gradient needs. The
plain LSTM has a form of its own, laid out for speed (ADR 12).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ...autodiff import walk_between
from ...autodiff.bodies import inside
from ...autodiff.registry import lookup
from ...graph import OpBuilder, Tensor
from ...graph.edit import remove_nodes, take_over
from ...graph.infer_nodes import infer_nodes
from . import columns, rows
from .cells import CELLS


def recurrent_layers_as_scans(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Write layers on the path from `wrt` to `of` as Scans; others keep the fused kernel.

    An operator for which a gradient is registered stays as it is: whoever registered the rule
    wants it used.
    """
    walk, targets = walk_between(model, wrt, of, no_gradient)
    op = OpBuilder.on(model)
    layers = [n for _, _, path in walk.levels(targets) for n in path if _is_layer(n)]
    for node in layers:
        _rewrite(inside(op), node)
    op.attach(model.graph)
    return model


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in CELLS and not node.domain and lookup("", node.op_type) is None


def _rewrite(op: OpBuilder, node: ir.Node) -> None:
    op.scope = node.name or node.op_type
    write = columns.write if columns.is_plain(node) else rows.write
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
