"""onnx's reference evaluator, with the operators of `reference` in the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.reference

from .reference import OPS

Array = np.ndarray[Any, Any]


def evaluator(model: onnx.ModelProto) -> onnx.reference.ReferenceEvaluator:
    """An evaluator of a model."""
    return onnx.reference.ReferenceEvaluator(model, new_ops=OPS)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array] | None:
    """All outputs of a model, None where the evaluator fails on it."""
    try:
        with np.errstate(all="ignore"):
            return list(evaluator(model).run(None, dict(feeds)))
    except Exception:  # it knows not every operator, nor every case of those it knows
        return None
