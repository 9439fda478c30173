"""What a Dropout does to what it keeps."""

from __future__ import annotations

from .builder import OpBuilder
from .tensor import Tensor

DEFAULT_RATIO = 0.5


def known_ratio(ratio: Tensor | None) -> float | None:
    """The share that is dropped, if it is a constant."""
    if ratio is None:
        return DEFAULT_RATIO
    array = ratio.const
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def never_drops(ratio: Tensor | None, training: Tensor | None) -> bool:
    """Whether a Dropout certainly gives its input unchanged."""
    mode = None if training is None else training.const
    return training is None or (mode is not None and not mode.any()) or known_ratio(ratio) == 0


def scale_of_kept(
    op: OpBuilder, ratio: Tensor | None, training: Tensor | None, like: Tensor
) -> Tensor:
    """1/(1 − ratio) while training (0 when all is dropped), else 1; a scalar."""
    known = known_ratio(ratio)
    if known is not None or ratio is None:
        keep = 1.0 - (DEFAULT_RATIO if known is None else known)
        scale = op.like(1.0 / keep if keep > 0 else 0.0, like)
    else:
        kept = 1.0 - (ratio if ratio.dtype == like.dtype else op.Cast(ratio, to=like.dtype))
        scale = op.Where(kept > 0, op.Reciprocal(op.Where(kept > 0, kept, 1)), 0)
    if training is None or training.const is not None:
        return scale
    return op.Where(training, scale, op.like(1, like))
