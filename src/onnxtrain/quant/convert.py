"""From a trained model with fake quantisation to the one with integers that is deployed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import QuantizationError, UnknownNameError, model_errors
from ..graph import ModelLike, load
from ..graph.io import deliver
from ..normalize import lift_constants
from ..passes.cleanup import remove_dead, remove_unread_initializers
from ..runtime.state.checkpoint_state import CheckpointState
from .constants import Array, is_constant, value_of
from .fake import BIAS
from .qat import PREPARED

Parameters = CheckpointState | str | os.PathLike[str] | Mapping[str, Any] | None
"""Where trained values are: a checkpoint, its file, or arrays by name."""


@model_errors("Making integers of the trained model")
def convert(
    model: ModelLike,
    parameters: Parameters = None,
    *,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """The trained model with its weights as integers: QDQ, which onnxruntime runs on integers.

    The integers and scales are those that the training computed with, bit for bit.

    Args:
        model: what `prepare_qat` gave, or what was exported of a training on it.
        parameters: trained values: a `CheckpointState`, the path of a checkpoint, or arrays by
            name; without any, those in the model.
        output: also write the model to this path.

    Raises:
        QuantizationError: the model has no fake quantisation, or a scale is not positive.
    """
    trained = lift_constants(load(model))
    _set_parameters(trained, parameters)
    graph = trained.graph
    constants, changed = _Constants(graph), PREPARED in trained.metadata_props
    for node in list(graph):
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"} and not node.domain:
            changed |= constants.store_operands(node)
        elif (node.name or "").startswith(BIAS) and node.inputs[0] is not None:
            node.outputs[0].replace_all_uses_with(node.inputs[0])
    if not changed:
        raise QuantizationError(
            "The model has no fake quantisation: give what onnxtrain.quant.prepare_qat made, or "
            "what was exported of a training on it."
        )
    remove_dead(graph)
    remove_unread_initializers(graph)
    trained.metadata_props.pop(PREPARED, None)
    return deliver(trained, output)


def _set_parameters(model: ir.Model, parameters: Parameters) -> None:
    if parameters is None:
        return
    if isinstance(parameters, (str, os.PathLike)):
        parameters = CheckpointState.load_checkpoint(parameters)
    if isinstance(parameters, CheckpointState):
        parameters = {name: parameter.data for name, parameter in parameters.parameters}
    known = model.graph.initializers
    for name, array in parameters.items():
        value = known.get(name)
        if value is None or value.const_value is None:
            raise UnknownNameError("parameter", name, list(known))
        value.const_value = ir.tensor(np.array(array), value.const_value.dtype, name=name)


class _Constants:
    """Stores what is computed from constants, under the name that the computed value had."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._stored: dict[ir.Value, ir.Value] = {}

    def store_operands(self, node: ir.Node) -> bool:
        """Let a Quantize- or DequantizeLinear read initializers; gives whether it read others."""
        _check_scale(node)
        indices = range(len(node.inputs)) if node.op_type == "DequantizeLinear" else (1, 2)
        changed = False
        for index in indices:
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or not is_constant(value):
                continue
            if index and value.producer() is None:
                _as_scalar(value)
            elif value.producer() is not None:
                node.replace_input_with(index, self._initializer(value, is_scale=index > 0))
                changed = True
        return changed

    def _initializer(self, value: ir.Value, is_scale: bool) -> ir.Value:
        stored = self._stored.get(value)
        if stored is None:
            array = value_of(value)
            assert array is not None
            assert value.name
            name = value.name
            value.name = f"{name}/computed"
            stored = _stored_value(name, array, value.dtype)
            self.graph.register_initializer(stored)
            self._stored[value] = stored
            if is_scale:
                _as_scalar(stored)
        return stored


def _check_scale(node: ir.Node) -> None:
    scale = value_of(node.inputs[1])
    if scale is None or (np.isfinite(scale).all() and (scale > 0).all()):
        return
    name = node.inputs[1].name if node.inputs[1] is not None else ""
    raise QuantizationError(
        f"The scale {name!r} is not positive ({scale.min():g}): the training diverged. Train with "
        "a smaller learning rate, or with learn_scales=False."
    )


def _as_scalar(value: ir.Value) -> None:
    """Make a vector of one number, which training needs, the scalar that runtimes expect."""
    tensor = value.const_value
    assert tensor is not None
    readers = {node.op_type for node, _ in value.uses()}
    if tuple(tensor.shape.numpy()) == (1,) and readers <= {"QuantizeLinear", "DequantizeLinear"}:
        array = tensor.numpy().reshape(())
        value.const_value = ir.Tensor(array, dtype=tensor.dtype, name=value.name)
        value.shape = ir.Shape([])


def _stored_value(name: str, array: Array, dtype: ir.DataType | None) -> ir.Value:
    tensor = ir.Tensor(
        np.ascontiguousarray(array).reshape(array.shape),
        dtype=dtype or ir.DataType.from_numpy(array.dtype), name=name,
    )  # fmt: skip
    return ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape),
        const_value=tensor,
    )  # fmt: skip
