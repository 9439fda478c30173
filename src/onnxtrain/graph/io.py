"""Models in and out: a path, bytes, a ModelProto or an `ir.Model`; external data stays on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx_ir as ir

from ..errors import MissingFileError, ModelError
from .representable import representable

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
PROTOBUF_LIMIT = 2**31 - 1


def load(model: ModelLike, *, base_dir: str | os.PathLike[str] = "") -> ir.Model:
    """Read a model without changing it.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`.
        base_dir: folder of the external data of a ModelProto or of bytes.

    A path is read with its external data left on disk (mapped when first needed), so a model of
    many gigabytes costs what its graph costs. A ModelProto is copied, an `ir.Model` cloned.

    Raises:
        ModelError: it is not an ONNX model, or its external data is not where it says.
        FileNotFoundError: there is no such file.
    """
    if isinstance(model, ir.Model):
        return model.clone()
    if isinstance(model, onnx.ModelProto):
        return _from_proto(model, "This ModelProto", Path(base_dir))
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_proto(_parsed(bytes(model), "These bytes"), "These bytes", Path(base_dir))
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
            f"not {type(model).__name__}."
        )
    path = Path(model)
    if path.is_dir():
        raise ModelError(f"{str(path)!r} is a folder, not a model file.")
    if not path.is_file():
        raise MissingFileError(f"There is no model file {str(path)!r}.")
    what = repr(str(path))
    if path.stat().st_size == 0:
        raise ModelError(f"{what} is an empty file, not an ONNX model.")
    if path.stat().st_size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{what} is larger than the 2 GiB that a protobuf file can have. Is it the external "
            "data of a model, or a model in another format?"
        )
    return _from_proto(_parsed(path.read_bytes(), what), what, path.parent)


def _parsed(data: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError as error:
        raise ModelError(f"{what} is not an ONNX model: {error}.") from error
    return proto


def _from_proto(proto: onnx.ModelProto, what: str, folder: Path) -> ir.Model:
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{what} holds no graph: is it an ONNX model?")
    proto = representable(proto)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise ModelError(f"{what} cannot be read as an ONNX model: {root}") from error
    ir.external_data.set_base_dir(model.graph, folder)
    _check_external(model, what)
    return model


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The weights of a model that are in files of their own."""
    graphs: Iterable[ir.Graph] = model.graphs()
    for graph in graphs:
        for value in (*graph.initializers.values(), *graph.inputs):
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value


def _check_external(model: ir.Model, what: str) -> None:
    """External data must be there, and be long enough, before anything else is done."""
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        path = str(tensor.path)
        if path not in sizes:
            if not os.path.isfile(path):
                raise MissingFileError(
                    f"{what} keeps the weight {tensor.name!r} in the file {path!r}, which does not "
                    "exist. Put the file beside the model, and pass the model by its path: "
                    "the location of external data is relative to the model file."
                )
            sizes[path] = os.path.getsize(path)
        end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        if end > sizes[path]:
            raise ModelError(
                f"{what}: the weight {tensor.name!r} ends at byte {end} of {path!r}, which has "
                f"only {sizes[path]} bytes. The file is truncated or belongs to another model."
            )


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Serialize to a self-contained ModelProto; refuses what protobuf cannot hold."""
    size = _weight_bytes(model)
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"The model holds {size / 2**30:.1f} GiB of weights; one protobuf message ends at "
            "2 GiB. Pass an output path, so that the weights are written as external data."
        )
    for graph in model.graphs():
        for value in (*graph.initializers.values(), *graph.inputs):
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(
                    value.const_value.numpy(),
                    dtype=value.const_value.dtype,
                    name=value.const_value.name,
                )
    return ir.to_proto(model)


def _weight_bytes(model: ir.Model) -> int:
    return sum(
        v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
    )


def save(
    model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None
) -> None:
    """Write a model.

    Weights that already are in a file beside `path` stay there and are only referred to. Other
    external weights are copied, piece by piece, to `<name>.data`, and so are weights in memory
    when they are large or `external_data` is true.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise MissingFileError(f"The folder {str(path.parent)!r} does not exist.")
    folder = path.parent.resolve()
    move: list[ir.Value] = []
    beside: set[str] = set()
    memory: list[ir.Value] = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            if Path(tensor.path).resolve().parent == folder:
                beside.add(Path(tensor.path).name)
            else:
                move.append(value)
        elif tensor is not None and tensor.dtype != ir.DataType.STRING:
            memory.append(value)
    size = sum(v.const_value.nbytes for v in memory if v.const_value is not None)
    if external_data or (external_data is None and size > PROTOBUF_LIMIT // 2):
        move += memory
    if move:
        name = f"{path.name}.data"
        while name in beside:  # never write over data that is being referred to
            name = f"{name}.new"
        tensors = [v.const_value for v in move if v.const_value is not None]
        written = ir.external_data.convert_tensors_to_external(tensors, folder, name)
        for value, tensor in zip(move, written):
            value.const_value = tensor
    proto = ir.to_proto(model)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(proto.SerializeToString())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
