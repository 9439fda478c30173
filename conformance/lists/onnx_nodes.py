"""ONNX's own node tests, function bodies included: differences of the operator decide."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx

from ..cases import OnnxCase
from ..rounding import behind_roundings

PACKAGES = ["ml_dtypes", "pillow"]
BATCH = 2000
NEWEST_OPSET, NEWEST_IR = 26, 13
"""What onnxruntime 1.31 reads."""
SETTINGS = {
    "Dropout": (1,), "Resize": (1, 2), "Upsample": (1,), "MelWeightMatrix": (0, 1, 2, 3, 4),
}  # fmt: skip
"""Float inputs that are no tensors in torch: rates, scales, edges. They are not differentiated."""


def names() -> list[str]:
    """Tests that have a float among their inputs and among their outputs, expanded ones last."""
    floats = [name for name, test in _tests().items() if _is_float(test)]
    return sorted(floats, key=lambda name: "_expanded" in name)


def case(name: str) -> OnnxCase:
    """The model of a test with its first data set."""
    test = _tests()[name]
    inputs, outputs = test.data_sets[0]
    model = _as_onnxruntime_reads_it(test.model)
    graph = model.graph
    behind = behind_roundings(model)
    return OnnxCase(
        model,
        {i.name: _feed(v) for i, v in zip(graph.input, inputs) if v is not None},
        family="expanded" if name.endswith(("_expanded", "_expanded_ver18")) else "operator",
        exporter="",
        wrt=[
            i.name
            for i, value in zip(graph.input, inputs)
            if _has_gradient(value)
            and (behind is None or i.name in behind)
            and not _is_a_setting(graph, i.name)
        ],
        of=[o.name for o in graph.output if not _is_a_running_statistic(graph, o.name)],
        expected={o.name: v for o, v in zip(graph.output, outputs) if isinstance(v, np.ndarray)},
        timing=False,
    )


def _as_onnxruntime_reads_it(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at the newest versions that onnxruntime reads, where these know its operators.

    The onnx package is ahead of onnxruntime: it stamps tests of old operators with versions that
    only let them take more types. What onnxruntime computes is compared with the test's outputs.
    """
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(model.ir_version, NEWEST_IR)
    standard = [n for n in model.graph.node if not n.domain]
    if all(onnx.defs.has(n.op_type, NEWEST_OPSET, "") for n in standard):
        for imported in older.opset_import:
            if not imported.domain:
                imported.version = min(imported.version, NEWEST_OPSET)
    return older


def _is_a_setting(graph: onnx.GraphProto, name: str) -> bool:
    return any(name in [n.input[i] for i in SETTINGS.get(n.op_type, ()) if i < len(n.input)]
               for n in graph.node)  # fmt: skip


def _is_a_running_statistic(graph: onnx.GraphProto, name: str) -> bool:
    """Those of a normalization carry no gradient, as in torch."""
    return any(n.op_type == "BatchNormalization" and name in n.output[1:] for n in graph.node)


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
