"""Random operators: Dropout passes the gradient through the mask it drew, the others stop it."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ...graph.dropout import dropout_scale, never_drops
from ..registry import gradient, zero_gradient


@gradient("Dropout", stops=(1, 2), note="the mask of the forward run")
def dropout(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    ratio: Tensor | None,
    training_mode: Tensor | None,
) -> Any:
    assert op.node is not None
    if never_drops(op.node):
        return dy
    mask = op.Cast(op.output(1), to=dy.dtype)
    return dy * (mask * dropout_scale(op, op.node, dy))


zero_gradient("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike", note="a draw")
