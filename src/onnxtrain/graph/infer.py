"""The onnx C++ tools (converter, inliner, shape inference), called without carrying the weights.

Weights are replaced by typed inputs before the call and put back after it: what goes through
protobuf is the graph only, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir

from ..errors import ModelError, ShapeInferenceError
from .infer_bodies import infer_with_bodies
from .onnx_inference import infer_shapes_of
from .ranks import fill_ranks

KEEP_BYTES = 1024
"""Initializers up to this size travel along: shapes, axes and scales that inference needs."""


def through_proto(
    model: ir.Model, function: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> ir.Model:
    """Apply a function of ModelProto to a model, its large weights left out meanwhile.

    Parameters (graph inputs that remember a value, see `parameters`) keep that value, and
    initializers keep their order and their metadata. The model given is used up.
    """
    graph = model.graph
    order = list(graph.initializers)
    weights = dict(graph.initializers)
    remembered = {v.name: v.const_value for v in graph.inputs if v.const_value is not None}
    held = {name: value.const_value for name, value in weights.items()}
    parked: list[str] = []
    for name, value in weights.items():
        tensor = value.const_value
        if tensor is None:
            raise ModelError(f"The initializer {name!r} has no value.")
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= KEEP_BYTES:
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
        if tensor.nbytes > KEEP_BYTES and not value.is_graph_input():
            parked.append(name)
            value.type = value.type or ir.TensorType(tensor.dtype)
            value.shape = value.shape or ir.Shape(tensor.shape.numpy())
            del graph.initializers[name]
            graph.inputs.append(value)
    try:
        result = ir.from_proto(function(ir.to_proto(model)))
    finally:
        _drop_inputs(graph, set(parked))  # a caller that catches an error still has its model
        for name in parked:
            graph.initializers[name] = weights[name]
        for name, value in weights.items():
            value.const_value = held[name]
    _restore(result.graph, weights, parked, remembered)
    _reorder(result.graph, order)
    return result


def _restore(
    graph: ir.Graph,
    weights: dict[str, ir.Value],
    parked: list[str],
    remembered: Mapping[str | None, ir.TensorProtocol],
) -> None:
    inputs = {v.name: v for v in graph.inputs}
    _drop_inputs(graph, set(parked))
    for name in parked:
        if name in inputs:
            inputs[name].const_value = weights[name].const_value
            graph.initializers[name] = inputs[name]
    for input_name, tensor in remembered.items():
        if input_name in inputs:
            inputs[input_name].const_value = tensor
    for name, value in graph.initializers.items():
        if name in weights:  # the very same tensor: it knows which file it is in
            value.const_value = weights[name].const_value
            value.metadata_props.update(weights[name].metadata_props)


def _drop_inputs(graph: ir.Graph, names: set[str]) -> None:
    """Remove inputs by name, all at once: one by one is quadratic."""
    remaining = [v for v in graph.inputs if v.name not in names]
    if len(remaining) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(remaining)


def _reorder(graph: ir.Graph, order: list[str]) -> None:
    """Initializers in the order they had: it is the order of the parameters."""
    if list(graph.initializers) == order:
        return
    known = {name: i for i, name in enumerate(order)}
    values = sorted(graph.initializers.items(), key=lambda item: known.get(item[0], len(known)))
    for name, _ in values:
        del graph.initializers[name]
    for name, value in values:
        graph.initializers[name] = value


def infer_shapes(model: ir.Model, *, follows_long_vectors: bool = True) -> ir.Model:
    """Give every value its type and, as far as they follow, its dimensions.

    Args:
        model: is used up.
        follows_long_vectors: see `infer_shapes_of`.

    Raises:
        ShapeInferenceError: types or shapes contradict each other; nothing is swallowed.
    """

    def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
        strict = {"check_type": True, "strict_mode": True}
        try:
            return infer_shapes_of(proto, follows_long_vectors=follows_long_vectors, **strict)
        except ModelError:
            raise
        except Exception:  # the C++ side raises several types
            # Following values fails on valid models too: it takes a [2, 1] integer tensor
            # for a shape of two numbers and refuses to add a longer one.
            pass
        try:
            return infer_shapes_of(proto, follows_values=False, **strict)
        except Exception as error:
            raise ShapeInferenceError(
                f"Shape inference failed: {str(error).strip()}. The model contradicts itself; "
                "onnx.checker.check_model(model, full_check=True) shows the same."
            ) from error

    _fill_defaults(model)
    filled: set[str | None] = set()
    while True:
        model = through_proto(model, lambda proto: infer_with_bodies(proto, infer))
        new = fill_ranks(model)
        if new <= filled:  # none, or what inference forgets in the body of a loop every time
            return model
        filled |= new


def _fill_defaults(model: ir.Model) -> None:
    """Spell out a default that onnx's own inference trips over when it is left out."""
    for node in model.graph.all_nodes():
        if node.op_type == "MeanVarianceNormalization" and "axes" not in node.attributes:
            node.attributes.add(ir.AttrInt64s("axes", [0, 2, 3]))


def convert_version(model: ir.Model, opset: int) -> ir.Model:
    """Change the ai.onnx opset with the onnx converter."""

    def convert(proto: onnx.ModelProto) -> onnx.ModelProto:
        # Before IR 4 initializers had to be inputs too, and there the converter looks for them.
        proto.ir_version = max(proto.ir_version, 4)
        try:
            return onnx.version_converter.convert_version(proto, opset)
        except Exception as error:
            raise ModelError(
                f"The onnx version converter cannot bring this model to opset {opset}: {error}. "
                "Export it again with opset 7 or newer."
            ) from error

    return through_proto(model, convert)
