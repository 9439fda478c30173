"""What the lowerings of ai.onnx.ml share: inputs as floats, scores transformed, labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .rewrite import weight


def floats(op: OpBuilder, x: Tensor) -> Tensor:
    """The input in float32."""
    return x if x.dtype == ir.DataType.FLOAT else op.Cast(x, to=ir.DataType.FLOAT)


def transform(op: OpBuilder, scores: Tensor, kind: str) -> Tensor:
    """Scores after a `post_transform`."""
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return op.Sigmoid(scores)
    if kind == "SOFTMAX":
        return op.Softmax(scores, axis=-1)
    raise ModelError(f"post_transform {kind!r} is not supported.")


def both(op: OpBuilder, score: Tensor, kind: str) -> Tensor:
    """The scores of two classes of which only the second has one.

    As onnxruntime has it, which of all transforms knows the logistic one alone here.
    """
    if kind == "LOGISTIC":
        score = op.Sigmoid(score)
    elif kind not in ("NONE", "SOFTMAX", "SOFTMAX_ZERO"):
        raise ModelError(f"post_transform {kind!r} is not supported.")
    return op.Concat(1.0 - score, score, axis=1)


def labels(
    op: OpBuilder, chosen: Tensor, integers: Sequence[int], strings: Sequence[str | bytes]
) -> Tensor:
    """The labels of classes given by number."""
    if strings:
        decoded = [s if isinstance(s, str) else s.decode() for s in strings]
        known = np.array(decoded).astype(object)
    else:
        known = np.array(integers, np.int64)
    return op.Gather(weight(op, "labels", known, trained=False), chosen, axis=0)
