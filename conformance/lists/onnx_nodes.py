"""ONNX's own node tests, function bodies included: differences of the operator decide."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from ..cases import OnnxCase

PACKAGES = ["ml_dtypes", "pillow"]
BATCH = 300


def names() -> list[str]:
    """Tests that have a float among their inputs and among their outputs, expanded ones last."""
    floats = [name for name, test in _tests().items() if _is_float(test)]
    return sorted(floats, key=lambda name: "_expanded" in name)


def case(name: str) -> OnnxCase:
    """The model of a test with its first data set."""
    test = _tests()[name]
    inputs, outputs = test.data_sets[0]
    graph = test.model.graph
    return OnnxCase(
        test.model,
        {i.name: _feed(v) for i, v in zip(graph.input, inputs) if v is not None},
        family="expanded" if name.endswith(("_expanded", "_expanded_ver18")) else "operator",
        exporter="",
        wrt=[i.name for i, value in zip(graph.input, inputs) if _has_gradient(value)],
        expected={o.name: v for o, v in zip(graph.output, outputs) if isinstance(v, np.ndarray)},
        timing=False,
    )


@cache
def _tests() -> dict[str, Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {test.name: test for test in collect_testcases() if test.data_sets}


def _is_float(test: Any) -> bool:
    inputs, outputs = test.data_sets[0]
    return any(map(_has_gradient, inputs)) and any(map(_has_gradient, outputs))


def _feed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _has_gradient(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype in (np.float32, np.float64)
