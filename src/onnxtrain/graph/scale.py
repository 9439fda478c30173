"""Scaling as a part of a model: inputs of mean 0 and deviation 1, an output in other units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx
import onnx_ir as ir

from .builder import Names
from .edit import all_names
from .io import ModelLike, load, to_proto

Array = npt.NDArray[Any]
MeanAndDeviation: TypeAlias = tuple[Array, Array]


def with_scaling(
    model: ModelLike,
    inputs: Mapping[str, MeanAndDeviation],
    output: str,
    scale: MeanAndDeviation | None,
) -> tuple[onnx.ModelProto, str]:
    """A model that standardises its inputs and gives its output in the units of the data.

    Args:
        model: as it is.
        inputs: mean and deviation of inputs, by name.
        output: the output that a loss compares.
        scale: those of that output; None to leave it.

    Returns:
        The model, and the name of what a loss on scaled targets compares.
    """
    scaled = load(model)
    graph = scaled.graph
    names = Names(all_names(graph))
    for value in graph.inputs:
        scale_of_input = inputs.get(str(value.name))
        if scale_of_input is not None:
            _scale_input(graph, value, scale_of_input, names)
    compared = output if scale is None else _scale_output(graph, output, scale, names)
    return to_proto(scaled), compared


def _scale_input(graph: ir.Graph, value: ir.Value, scale: MeanAndDeviation, names: Names) -> None:
    readers = list(value.uses())
    centred = _arithmetic("Sub", value, scale[0], graph, names)
    divided = _arithmetic("Div", centred.outputs[0], scale[1], graph, names)
    for node, index in readers:
        node.replace_input_with(index, divided.outputs[0])
    first = graph[0]
    graph.insert_before(first, [centred, divided])


def _scale_output(graph: ir.Graph, output: str, scale: MeanAndDeviation, names: Names) -> str:
    place = [v.name for v in graph.outputs].index(output)
    value = graph.outputs[place]
    widened = _arithmetic("Mul", value, scale[1], graph, names)
    shifted = _arithmetic("Add", widened.outputs[0], scale[0], graph, names)
    graph.extend([widened, shifted])
    graph.outputs[place] = shifted.outputs[0]
    value.name, shifted.outputs[0].name = names.fresh(f"{output}/standardized"), output
    return str(value.name)


def _arithmetic(
    op_type: str, value: ir.Value, numbers: Array, graph: ir.Graph, names: Names
) -> ir.Node:
    """A node of two operands, the second a constant in the type of the first."""
    assert value.dtype is not None
    tensor = numbers.reshape(numbers.shape[: _rank(value)]).astype(value.dtype.numpy())
    name = names.fresh(f"{value.name}/{op_type.lower()}")
    constant = ir.Value(
        name=f"{name}/constant", const_value=ir.tensor(tensor, name=f"{name}/constant")
    )
    constant.type, constant.shape = value.type, ir.Shape(tensor.shape)
    graph.register_initializer(constant)
    result = ir.Value(name=name, type=value.type, shape=value.shape)
    return ir.Node("", op_type, [value, constant], outputs=[result], name=name)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()
