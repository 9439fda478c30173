"""BatchNormalization in training mode: statistics of the batch, and the operator in inference mode.

The gradient needs x − μ and the variance, which the operator in training mode keeps to itself, and
few execution providers have that kernel at all. Written like this the forward half computes both
once, and the backward half reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from ..autodiff import walk_between
from ..autodiff.bodies import inside
from ..autodiff.composites import Composite, Gradient, declare
from ..autodiff.registry import is_rule
from ..autodiff.rules.elementwise import as_type
from ..autodiff.rules.normalization import (
    BatchStatistics,
    batch_gradient,
    batch_normalization,
    batch_statistics,
)
from ..autodiff.walk import Walk
from ..graph import OpBuilder, Tensor
from ..graph.edit import take_over
from ..graph.infer_nodes import infer_nodes


def split_batch_norms(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Split the BatchNormalization nodes in training mode that gradients pass.

    A node whose running statistics lead to the loss stays: they carry no gradient, and only the
    whole operator says so. So do all, where a user has registered another rule.
    """
    if not is_rule(batch_normalization, "BatchNormalization"):
        return model
    walk, targets = walk_between(model, wrt, of, no_gradient)
    outer = OpBuilder.on(model)
    for level, values, path in list(walk.levels(targets)):
        nodes = [n for n in path if _trains(n)]
        leading = level.connected(values) if nodes else set()
        op = inside(outer)
        new = [
            n for node in nodes if leading.isdisjoint(node.outputs[1:]) for n in _split(op, node)
        ]
        if new:
            infer_nodes(new, op.opset)
    outer.attach(model.graph)
    return model


def _trains(node: ir.Node) -> bool:
    is_norm = node.op_type == "BatchNormalization" and not node.domain
    return is_norm and node.attributes.get_int("training_mode", 0) == 1


def _split(op: OpBuilder, node: ir.Node) -> list[ir.Node]:
    """Split a node; the nodes that come before it now."""
    graph = node.graph
    assert graph is not None
    op.scope = node.name or node.op_type
    x, scale, _, *running = (op.tensor(v) for v in node.inputs if v is not None)
    batch = batch_statistics(op, x, scale)
    momentum = node.attributes.get_float("momentum", 0.9)
    for old, before, now in zip(node.outputs[1:], running, (batch.mean, batch.variance)):
        if old.name:
            new = before * momentum + as_type(op, now, before.dtype) * (1 - momentum)
            new.value.shape = before.value.shape
            take_over(old, new.value)
    statistics = op.place(graph, before=node)
    node.resize_outputs(1)
    node.replace_input_with(3, batch.mean.value)
    node.replace_input_with(4, batch.variance.value)
    node.attributes.pop("training_mode")
    node.attributes.pop("momentum", None)
    inner = tuple(o for n in statistics for o in n.outputs)
    declare(Composite(node, inner, _gradient(node, batch)))
    return statistics


def _gradient(node: ir.Node, batch: BatchStatistics) -> Gradient:
    """The gradient of the operator as a whole."""
    epsilon = node.attributes.get_float("epsilon", 1e-5)

    def gradient(walk: Walk, dys: Sequence[Tensor | None]) -> Iterable[tuple[ir.Value, Tensor]]:
        op, dy = walk.op, dys[0]
        values = [v for v in node.inputs[:3] if v is not None]
        x, scale, bias = (op.tensor(v) for v in values)
        assert dy is not None
        return zip(values, batch_gradient(op, dy, x, scale, bias, batch, epsilon))

    return gradient
