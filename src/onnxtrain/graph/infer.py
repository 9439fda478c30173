"""The onnx C++ tools (converter, inliner, shape inference), called without carrying the weights.

Weights are replaced by typed inputs before the call and put back after it: what goes through
protobuf is the graph only, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir

from ..errors import ModelError, ShapeInferenceError

KEEP_BYTES = 1024
"""Initializers up to this size travel along: shapes, axes and scales that inference needs."""


def through_proto(
    model: ir.Model, function: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> ir.Model:
    """Apply a function of ModelProto to a model, its large weights left out meanwhile.

    Parameters (graph inputs that remember a value, see `parameters`) keep that value.
    """
    graph = model.graph
    parked: dict[str, ir.Value] = {}
    remembered = {v.name: v.const_value for v in graph.inputs if v.const_value is not None}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > KEEP_BYTES and not value.is_graph_input():
            parked[name] = value
            value.type = value.type or ir.TensorType(tensor.dtype)
            value.shape = value.shape or ir.Shape(tensor.shape.numpy())
            del graph.initializers[name]
            graph.inputs.append(value)
    result = ir.from_proto(function(ir.to_proto(model)))
    for new in list(result.graph.inputs):
        assert new.name is not None
        if new.name in parked:
            new.const_value = parked[new.name].const_value
            result.graph.inputs.remove(new)
            result.graph.initializers[new.name] = new
        elif new.name in remembered:
            new.const_value = remembered[new.name]
    return result


def infer_shapes(model: ir.Model) -> ir.Model:
    """Give every value its type and, as far as they follow, its dimensions.

    Raises:
        ShapeInferenceError: types or shapes contradict each other; nothing is swallowed.
    """

    def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
        try:
            return onnx.shape_inference.infer_shapes(
                proto, check_type=True, strict_mode=True, data_prop=True
            )
        except Exception as error:  # the C++ side raises several types
            raise ShapeInferenceError(
                f"Shape inference failed: {str(error).strip()}. The model contradicts itself; "
                "onnx.checker.check_model(model, full_check=True) shows the same."
            ) from error

    return through_proto(model, infer)


def convert_version(model: ir.Model, opset: int) -> ir.Model:
    """Raise the ai.onnx opset with the onnx converter."""

    def convert(proto: onnx.ModelProto) -> onnx.ModelProto:
        try:
            return onnx.version_converter.convert_version(proto, opset)
        except Exception as error:
            raise ModelError(
                f"The onnx version converter cannot bring this model to opset {opset}: {error}"
            ) from error

    return through_proto(model, convert)
