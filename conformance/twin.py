"""A model in float64, on onnxruntime where it has the kernels, else on onnx's own evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.evaluate import evaluator
from onnxtrain.graph.retype import to_float64

from .sessions import Session

Array = np.ndarray[Any, Any]


class Twin:
    """Computes a model whose floats are float64.

    onnxruntime takes it literally, without optimizations; it needs some microseconds for a node
    where onnx's evaluator needs forty. It has no float64 kernels for convolutions and some others:
    such models go to the evaluator as a whole.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._inputs = {i.name for i in model.graph.input}
        self._outputs = [o.name for o in model.graph.output]
        self._evaluator: Any = None
        self._has_run = False
        try:
            self._session: Session | None = Session(model, whole=True, optimized=False)
        except Exception:  # its errors have no common base class
            self._session = None

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """All outputs by name; the feeds may have any float type."""
        wide = {n: widened(a) for n, a in feeds.items() if n in self._inputs}
        if self._session is not None:
            try:
                outputs = self._session.run(wide)
            except Exception:
                if self._has_run:  # it can compute the model, and this point has no value
                    raise
                self._session = None
            else:
                self._has_run = True
                return outputs
        if self._evaluator is None:
            self._evaluator = evaluator(self._model)
        with np.errstate(all="ignore"):
            return dict(zip(self._outputs, self._evaluator.run(None, wide)))


def in_float64(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by name; nothing where neither can do it."""
    try:
        return Twin(to_proto(to_float64(load(model)))).run(feeds)
    except Exception:  # neither knows every operator
        return {}


def widened(value: Any) -> Any:
    """The value in float64 if it is a float."""
    floating = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value.astype(np.float64, copy=False) if floating else value
