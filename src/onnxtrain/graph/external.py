"""External data of models: the decision of `runtime.external`, for protobuf and onnx-ir models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator
from typing import Any

import google.protobuf.message
import onnx
import onnx_ir as ir

from ..errors import ExternalDataError
from ..runtime.files.external import (
    CHILDREN,
    EXTERNAL,
    DataFolder,
    Place,
    Reference,
    size_in_bytes,
    tensors,
)


def resolved(
    proto: onnx.ModelProto,
    folder: str | os.PathLike[str] | None,
    what: str,
    *,
    embed_up_to: int = -1,
) -> tuple[onnx.ModelProto, str]:
    """The model with its external data checked, and the folder that they are relative to.

    The weights of the main graph stay where they are; their locations have no links any more.
    Every other tensor, and weights of at most `embed_up_to` bytes, are read into the copy.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    data = DataFolder(folder, what)
    for tensor in copy.graph.initializer:
        if tensor.data_location != EXTERNAL:
            continue
        size = _size(tensor, what)
        if size is not None and size <= embed_up_to:
            _embed(tensor, data)
        else:
            _refer(tensor, data.locate(reference_of(tensor, what), size))
    for tensor in _tensors_but_weights(copy):
        if tensor.data_location == EXTERNAL:
            _embed(tensor, data)
    return copy, data.root


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model, wherever it is."""
    return tensors(proto, _children)


def _tensors_but_weights(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor but the initializers of the main graph."""
    for message, kind, left_out in ((proto.graph, "graph", "tensor"), (proto, "model", "graph")):
        for number, child in _children(message, CHILDREN[kind]):
            inner = CHILDREN[kind][number]
            if inner != left_out:
                yield from tensors(child, _children, inner, 1)


def _children(
    message: google.protobuf.message.Message, numbers: Container[int]
) -> Iterator[tuple[int, Any]]:
    """Submessages of a protobuf message that are present, with the numbers of their fields."""
    for field, value in message.ListFields():
        if field.number not in numbers:
            continue
        if isinstance(value, google.protobuf.message.Message):
            yield field.number, value
        else:
            for child in value:
                yield field.number, child


def reference_of(tensor: onnx.TensorProto, what: str) -> Reference:
    """What a tensor says about the place of its data."""
    entries = [(e.key, e.value) for e in tensor.external_data]
    if not all(isinstance(text, str) for entry in entries for text in entry):
        raise ExternalDataError(  # protobuf gives bytes for what is not UTF-8
            f"{what}: the place of the external data of {tensor.name!r} is not text. The file is "
            "damaged."
        )
    return Reference.parse(tensor.name, entries, what)


def _size(tensor: onnx.TensorProto, what: str) -> int | None:
    return size_in_bytes(tensor.name, tensor.dims, tensor.data_type, what)


def _refer(tensor: onnx.TensorProto, location: Place) -> None:
    _clear(tensor)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (
        ("location", location.location), ("offset", location.offset), ("length", location.length),
    ):  # fmt: skip
        tensor.external_data.add(key=key, value=str(value))


def _embed(tensor: onnx.TensorProto, data: DataFolder) -> None:
    content = data.read(reference_of(tensor, data.where), _size(tensor, data.where))
    _clear(tensor)
    tensor.raw_data = content


def _clear(tensor: onnx.TensorProto) -> None:
    for field in ("raw_data", "data_location", "external_data"):
        tensor.ClearField(field)


def read_tensor(
    tensor: onnx.TensorProto, folder: str | os.PathLike[str] | None
) -> ir.TensorProtocol:
    """A tensor whose data may be in a file, which is mapped and not read: it may be gigabytes."""
    if tensor.data_location != EXTERNAL:
        return ir.serde.deserialize_tensor(tensor)
    what = f"The tensor {tensor.name!r}"
    location = DataFolder(folder, what).locate(reference_of(tensor, what), _size(tensor, what))
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    _refer(copy, location)
    return ir.serde.deserialize_tensor(copy, location.root)


def let_go(tensor: ir.TensorProtocol | None) -> None:
    """Unmap the file of a tensor that has been read; whoever reads it again maps it again.

    onnx-ir keeps it mapped, and of four bits a byte for each number: of a model whose tensors are
    read one after the other, all would be in memory in the end.
    """
    if isinstance(tensor, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # somebody has an array of it
            tensor.release()


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The weights of a model that are in files of their own."""
    for value in weights(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value.const_value


def data_folder(model: ir.Model) -> str:
    """What the locations of a model's external data are relative to; empty if it has none."""
    return next((os.fspath(t.base_dir) for t in external_tensors(model)), "")


def weights(model: ir.Model) -> Iterator[ir.Value]:
    """Initializers, also those that have become inputs, of a model and its subgraphs."""
    for graph in model.graphs():
        yield from (*graph.initializers.values(), *graph.inputs)


def resolve_tensors(model: ir.Model, what: str) -> None:
    """The same checks for a model that is not a file any more; its tensors know their folder."""
    for value in weights(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = resolved_tensor(value.const_value, what)
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            for attribute in list(node.attributes.values()):
                if attribute.type in _TENSOR_ATTRIBUTES and not attribute.is_ref():
                    node.attributes.add(_resolved_attribute(attribute, what))


_TENSOR_ATTRIBUTES = {ir.AttributeType.TENSOR, ir.AttributeType.TENSORS}


def _resolved_attribute(attribute: ir.Attr, what: str) -> ir.Attr:
    is_one = attribute.type == ir.AttributeType.TENSOR
    values = [attribute.value] if is_one else list(attribute.value)
    if not any(isinstance(t, ir.ExternalTensor) for t in values):
        return attribute
    read = [_in_memory(t, what) if isinstance(t, ir.ExternalTensor) else t for t in values]
    return ir.Attr(attribute.name, attribute.type, read[0] if is_one else read)


def resolved_tensor(tensor: ir.ExternalTensor, what: str) -> ir.ExternalTensor:
    """The tensor with its location checked and without links."""
    name, folder = tensor.name or "", os.fspath(tensor.base_dir) or None
    reference = Reference(name, os.fspath(tensor.location), tensor.offset or 0, tensor.length)
    location = DataFolder(folder, what).locate(reference, tensor.nbytes)
    return ir.ExternalTensor(
        location.location, location.offset, location.length, tensor.dtype,
        shape=tensor.shape, name=name, doc_string=tensor.doc_string, base_dir=location.root,
    )  # fmt: skip


def _in_memory(tensor: ir.ExternalTensor, what: str) -> ir.Tensor[Any]:
    mapped = resolved_tensor(tensor, what)
    return ir.Tensor(mapped.numpy(), dtype=tensor.dtype, name=tensor.name)
