"""Models in and out: a path, bytes, a ModelProto or an `ir.Model`; external data stays on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx_ir as ir

from ..errors import ModelError

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
PROTOBUF_LIMIT = 2**31 - 1


def load(model: ModelLike) -> ir.Model:
    """Read a model without changing it.

    A path is read with its external data left on disk (mapped when first needed), so a model of
    many gigabytes costs what its graph costs. A ModelProto is copied, an `ir.Model` cloned.
    """
    if isinstance(model, ir.Model):
        return model.clone()
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    if isinstance(model, bytes):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(model)
        except google.protobuf.message.DecodeError as error:
            raise ModelError(f"These bytes are not an ONNX model: {error}") from error
        return ir.from_proto(proto)
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
            f"not {type(model).__name__}."
        )
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"There is no model file {str(path)!r}.")
    try:
        loaded = ir.load(path)
    except google.protobuf.message.DecodeError as error:
        raise ModelError(f"{str(path)!r} is not an ONNX model: {error}") from error
    if not loaded.graph.num_nodes() and not loaded.graph.outputs:
        raise ModelError(f"{str(path)!r} holds no graph: is it an ONNX model?")
    return loaded


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Serialize to a ModelProto; refuses what protobuf cannot hold and names the way out."""
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if size > PROTOBUF_LIMIT and not all(
        isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values()
    ):
        raise ModelError(
            f"The model holds {size / 2**30:.1f} GiB of weights; one protobuf message ends at "
            "2 GiB. Pass an output path, so that the weights are written as external data."
        )
    return ir.to_proto(model)


def save(
    model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None
) -> None:
    """Write a model; weights go to `<name>.data` beside it when they are large or when asked to."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} does not exist.")
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if external_data or (external_data is None and size > PROTOBUF_LIMIT // 2):
        ir.save(model, path, external_data=f"{path.name}.data")
    else:
        ir.save(model, path)
