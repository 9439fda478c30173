"""Small operations on models: weights by name, types, opsets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ...errors import UnknownNameError
from ...graph import ModelLike, load, to_proto

Array = npt.NDArray[Any]
FLOATS = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})


def as_proto(model: ModelLike) -> onnx.ModelProto:
    """A model of one's own: a path, bytes, a ModelProto or an `onnx_ir.Model`, copied."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    return to_proto(load(model))


def get_onnx_opset(onx: onnx.ModelProto, domain: str = "") -> int:
    """The version of an operator set that a model uses."""
    for opset in onx.opset_import:
        if opset.domain == domain or {opset.domain, domain} <= {"", "ai.onnx"}:
            return int(opset.version)
    raise UnknownNameError("operator set", domain, [o.domain for o in onx.opset_import])


def proto_type_to_dtype(proto_type: int | str) -> type:
    """The numpy type of an ONNX element type, given as number or as onnxruntime writes it.

    Example:
        >>> proto_type_to_dtype("tensor(double)").__name__, proto_type_to_dtype(1).__name__
        ('float64', 'float32')
    """
    if isinstance(proto_type, str):
        inner = proto_type.removeprefix("tensor(").removesuffix(")").upper()
        proto_type = onnx.TensorProto.DataType.Value(inner)
    return onnx.helper.tensor_dtype_to_np_dtype(int(proto_type)).type


def dtype_to_var_type(dtype: Any) -> int:
    """The ONNX element type of a numpy type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def add_initializer(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    """A copy of the model with one more initializer."""
    copy = as_proto(model)
    if name in {i.name for i in copy.graph.initializer}:
        raise UnknownNameError("free name", name, [])
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return copy


def get_train_initializer(onx: onnx.ModelProto) -> OrderedDict[str, tuple[Array, Any]]:
    """The initializers that can be trained, those of a float type.

    Returns:
        Name → (array, TensorProto), in the order of the graph.
    """
    trainable: OrderedDict[str, tuple[Array, Any]] = OrderedDict()
    for tensor in onx.graph.initializer:
        if tensor.data_type in FLOATS:
            trainable[tensor.name] = (onnx.numpy_helper.to_array(tensor), tensor)
    return trainable


def replace_initializers_into_onnx(
    model: onnx.ModelProto, results: Mapping[str, Any]
) -> onnx.ModelProto:
    """A copy of the model with other values for some of its initializers.

    Args:
        model: the model; it is not changed.
        results: arrays (or OrtValues) by name.

    Raises:
        UnknownNameError: a name is not an initializer.
    """
    copy = as_proto(model)
    known = {t.name: t for t in copy.graph.initializer}
    for name, value in results.items():
        if name not in known:
            raise UnknownNameError("initializer", name, list(known))
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(known[name].data_type)
        known[name].CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype), name))
    return copy


def onnx_rename_weights(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Rename initializers ``I0_a``, ``I1_b`` … so that their alphabetical order is the graph's.

    onnxtrain needs no such order; what was saved with these names can still be read.
    """
    model = load(as_proto(onx))  # names of tensors are changed: not those of the caller
    width = len(str(max(len(model.graph.initializers) - 1, 0)))
    values = list(model.graph.initializers.values())
    for number, value in enumerate(values):
        _rename(model, value, f"I{number:0{width}d}_{value.name}")
    return to_proto(model)


def _rename(model: ir.Model, value: ir.Value, name: str) -> None:
    value.name = name  # onnx-ir keeps the graph's table of initializers in step
    if value.const_value is not None:
        value.const_value.name = name


def rename_value(model: ir.Model, old: str, new: str) -> None:
    """Give an input or the result of a node another name."""
    for value in model.graph.inputs:
        if value.name == old:
            value.name = new
    for node in model.graph:
        for value in node.outputs:
            if value.name == old:
                value.name = new
