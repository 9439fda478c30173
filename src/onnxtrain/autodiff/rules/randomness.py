"""Random operators: Dropout passes the gradient through the mask it drew, the others stop it."""

from __future__ import annotations

from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import gradient, zero_gradient
from .elementwise import as_type, scalar_const


@gradient("Dropout", stops=(1, 2), note="the mask of the forward run")
def dropout(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    ratio: Tensor | None,
    training_mode: Tensor | None,
) -> Any:
    training = None if training_mode is None else training_mode.const
    if training_mode is None or (training is not None and not training.any()):
        return dy
    kept = op.Cast(op.output(1), to=dy.dtype)
    return dy * (kept * _scale(op, ratio, None if training is not None else training_mode, dy))


def _scale(op: OpBuilder, ratio: Tensor | None, training: Tensor | None, like: Tensor) -> Tensor:
    """1/(1 - ratio) while training (0 when all is dropped), else 1."""
    known = 0.5 if ratio is None else scalar_const(ratio)
    if known is not None or ratio is None:
        keep = 1.0 - (0.5 if known is None else known)
        scale = op.like(1.0 / keep if keep > 0 else 0.0, like)
    else:
        kept = 1.0 - as_type(op, ratio, like.dtype)
        scale = op.Where(kept > 0, op.Reciprocal(op.Where(kept > 0, kept, 1)), 0)
    return scale if training is None else op.Where(training, scale, op.like(1, like))


zero_gradient("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike", note="a draw")
