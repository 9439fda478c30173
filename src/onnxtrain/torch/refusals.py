"""What onnxruntime says when it refuses a graph, in words that help."""

from __future__ import annotations

import re

import onnx

_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(\d+\)")
_UNUSUAL = {
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


def explain(model: onnx.ModelProto, error: Exception) -> str:
    """Why onnxruntime refuses a graph, and what to do about it."""
    missing = _NO_KERNEL.search(str(error))
    types = {v.type.tensor_type.elem_type for v in model.graph.input}
    unusual = sorted(name for kind, name in _UNUSUAL.items() if kind in types)
    if missing is None or not unusual:
        return f"onnxruntime refuses the graph: {error}"
    return (
        f"onnxruntime has no kernel for {missing[1]} in {' or '.join(unusual)} on this device. Use "
        "float32 (module.float(), and arguments alike), or let torch do the work "
        "(ORTModule(..., fallback='UNSUPPORTED_ONNX_MODEL'))."
    )
