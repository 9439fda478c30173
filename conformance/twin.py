"""A model in float64, on onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.evaluate import evaluate
from onnxtrain.graph.retype import to_float64

Array = np.ndarray[Any, Any]


def in_float64(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by name; nothing where the evaluator cannot do it."""
    exact = to_proto(to_float64(load(model)))
    inputs = {i.name for i in exact.graph.input}
    wide = {n: widened(a) for n, a in feeds.items() if n in inputs}
    values = evaluate(exact, wide)
    return {} if values is None else dict(zip([o.name for o in exact.graph.output], values))


def widened(value: Any) -> Any:
    """The value in float64 if it is a float."""
    floating = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value.astype(np.float64) if floating else value
