"""Names, lookups and outputs of a ModelProto; shape inference and checks without its weights."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence

import onnx

from ..errors import ModelError, UnknownNameError, model_errors
from .onnx_inference import infer_shapes_of

_COUNTER = itertools.count()
KEEP_BYTES = 1024
"""Initializers up to this size go along to the onnx tools: shapes, axes, scales."""
CONTRIB = "com.microsoft"
CONTRIB_IN_STANDARD = frozenset({"SimplifiedLayerNormalization"})
"""Operators that onnxruntime and its exporters have in ai.onnx and onnx does not know."""


def generate_graph_name(token: str) -> str:
    """A name that no other block uses: ``onnx::<token>::<N>``, N counted over the process."""
    return f"onnx::{token}::{next(_COUNTER)}"


def node_arg_exists(onnx_model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Whether any node reads or writes the name, or the graph takes it as an input."""
    if any(node_arg_name == i.name for i in onnx_model.graph.input):
        return True
    return any(node_arg_name in n.input or node_arg_name in n.output for n in onnx_model.graph.node)


def find_value(onnx_model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    """What is known about a value: from the outputs, inputs, value_info or initializers."""
    graph = onnx_model.graph
    known: list[onnx.ValueInfoProto] = [*graph.output, *graph.input, *graph.value_info]
    for value in known:
        if value.name == name and value.type.WhichOneof("value") is not None:
            return value
    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    return None


def get_output_from_output_name(
    onnx_model: onnx.ModelProto, output_name: str
) -> onnx.ValueInfoProto:
    """The graph output of that name; LookupError otherwise."""
    return _named("graph output", onnx_model.graph.output, output_name)


def get_input_from_input_name(onnx_model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """The graph input of that name; LookupError otherwise."""
    return _named("graph input", onnx_model.graph.input, input_name)


def _named(kind: str, values: Iterable[onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    known = list(values)
    for value in known:
        if value.name == name:
            return value
    raise UnknownNameError(kind, name, [v.name for v in known])


def register_graph_outputs(model: onnx.ModelProto, output_names: str | Sequence[str]) -> None:
    """Make these names the graph's outputs, and nothing else."""
    names = [output_names] if isinstance(output_names, str) else list(output_names)
    graph = model.graph
    outputs = []
    for name in names:
        value = find_value(model, name)
        if value is None:
            known = [v.name for v in itertools.chain(graph.output, graph.value_info)]
            raise UnknownNameError("graph output", name, known)
        outputs.append(copy.deepcopy(value))
    del graph.output[:]
    graph.output.extend(outputs)


def names_in(model: onnx.ModelProto) -> set[str]:
    """Every name of a value or node in the main graph."""
    graph = model.graph
    names = {v.name for v in itertools.chain(graph.input, graph.output, graph.value_info)}
    names.update(t.name for t in graph.initializer)
    for node in graph.node:
        names.add(node.name)
        names.update(node.output)
        names.update(node.input)
    return names


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large or external initializers turned into inputs of their type."""
    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    listed = {i.name for i in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL and tensor.ByteSize() <= KEEP_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return light


@model_errors("Shape inference")
def infer_shapes(model: onnx.ModelProto) -> None:
    """Add the types and shapes that follow, in place, whatever the size of the weights."""
    light = infer_shapes_of(without_weights(model))
    del model.graph.value_info[:]
    model.graph.value_info.extend(light.graph.value_info)
    for output, inferred in zip(model.graph.output, light.graph.output):
        output.CopyFrom(inferred)


def _move_contrib(model: onnx.ModelProto) -> None:
    """Give operators of onnxruntime that it has in ai.onnx its domain, which nobody checks."""
    moved = [n for n in model.graph.node if n.op_type in CONTRIB_IN_STANDARD and not n.domain]
    for node in moved:
        node.domain = CONTRIB
    if moved and all(i.domain != CONTRIB for i in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(CONTRIB, 1))


@model_errors("The check of the model")
def check(model: onnx.ModelProto) -> None:
    """Raise `ModelError` unless the onnx checker accepts the model."""
    light = without_weights(model)
    _move_contrib(light)
    try:
        onnx.checker.check_model(light, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"The model that was built is not valid: {error}") from error
