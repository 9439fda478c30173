"""Models in and out: a path, bytes, a ModelProto or an `ir.Model`; external data stays on disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx_ir as ir

from ..errors import MissingFileError, ModelError, model_errors
from ..runtime.files.atomic import write_atomically
from ..runtime.files.readfile import PROTOBUF_LIMIT, open_regular
from .external import let_go, resolve_tensors, resolved, resolved_tensor, weights
from .lent import lend_tensors
from .moves import Moves
from .representable import representable
from .sound import check_sound

ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
ALIGNMENT, PAGE, PAGE_ALIGNED_BYTES = 64, 4096, 2**20
"""Where weights begin in a data file; large ones at a page, so that they can be mapped."""
BESIDE_OTHERS = 2**16
"""Bytes from which on a weight goes to a data file that there is anyway. What is inside of a model
is copied with it: artifacts of 100 MB of weights of four bits took 1.5 GB, of such a file 0.8."""


def load(model: ModelLike, *, base_dir: str | os.PathLike[str] = "") -> ir.Model:
    """Read a model without changing it.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`.
        base_dir: folder of the external data of a ModelProto or of bytes.

    A path is read with the external data of its weights left on disk (mapped when first needed),
    so a model of many gigabytes costs what its graph costs. External data of other tensors, those
    in attributes, subgraphs and functions, are read. A ModelProto is copied, an `ir.Model`
    cloned.

    Raises:
        ModelError: it is not an ONNX model.
        ExternalDataError: it names a file that may not be read: see `runtime.external`.
        FileNotFoundError: there is no such file.
    """
    folder = Path(base_dir) if base_dir else None
    if isinstance(model, ir.Model):
        copied = clone(model)
        resolve_tensors(copied, "This onnx_ir.Model")
        return copied
    if isinstance(model, onnx.ModelProto):
        loaded = _from_proto(model, "This ModelProto", folder)
        lend_tensors(loaded)
        return loaded
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_proto(parsed(bytes(model), "These bytes"), "These bytes", folder)
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
            f"not {type(model).__name__}."
        )
    return _from_proto(read_proto(model), repr(os.fspath(model)), Path(model).parent)


def clone(model: ir.Model) -> ir.Model:
    """A copy of a model, weights shared."""
    try:
        return model.clone()
    except Exception as error:
        raise ModelError(
            "This onnx_ir.Model cannot be copied: a node reads a value that is computed after it. "
            "Sort it with model.graph.sort(); a graph must not have cycles."
        ) from error


def checked(
    proto: onnx.ModelProto,
    folder: str | os.PathLike[str] | None,
    what: str,
    *,
    embed_up_to: int = -1,
) -> tuple[onnx.ModelProto, str]:
    """A model that can be worked with, and the folder that its external data are relative to.

    External data are checked, and those of small weights and of all tensors but weights are read. A
    model without any is returned as it is, any other as a copy.

    Raises:
        ModelFileError: the model asks for more than it can be, or names a file it may not.
    """
    if not check_sound(proto, what):
        return proto, ""
    return resolved(proto, folder, what, embed_up_to=embed_up_to)


def read_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The content of a model file; the files that it names are not looked at."""
    what = repr(os.fspath(path))
    try:
        with open_regular(path, ModelError) as file:
            size = os.fstat(file.fileno()).st_size
            if size > PROTOBUF_LIMIT:
                raise ModelError(
                    f"{what} is larger than the 2 GiB that a protobuf file can have. Is it the "
                    "external data of a model, or a model in another format?"
                )
            data = file.read(size)
    except IsADirectoryError:
        raise ModelError(f"{what} is a folder, not a model file.") from None
    except FileNotFoundError:
        raise MissingFileError(f"There is no model file {what}.") from None
    if not data:
        raise ModelError(f"{what} is an empty file, not an ONNX model.")
    return parsed(data, what)


def parsed(data: bytes, what: str) -> onnx.ModelProto:
    """The model in these bytes; `what` they are is said in the error."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError as error:
        raise ModelError(f"{what} is not an ONNX model: {error}.") from error
    return proto


def _from_proto(proto: onnx.ModelProto, what: str, folder: Path | None) -> ir.Model:
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{what} holds no graph: is it an ONNX model?")
    proto, root = checked(proto, folder, what)
    proto = representable(proto)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        root_cause: BaseException = error
        while root_cause.__cause__ is not None:
            root_cause = root_cause.__cause__
        raise ModelError(f"{what} cannot be read as an ONNX model: {root_cause}") from error
    ir.external_data.set_base_dir(model.graph, root)
    return model


@model_errors("Writing the model")
def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Serialize to a self-contained ModelProto; refuses what protobuf cannot hold."""
    size = _weight_bytes(model)
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"The model holds {size / 2**30:.1f} GiB of weights; one protobuf message ends at "
            "2 GiB. Pass an output path, so that the weights are written as external data."
        )
    for value in weights(model):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
    return ir.to_proto(model)


def deliver(
    model: ir.Model, output: str | os.PathLike[str] | None, *, sources: Collection[str] = ()
) -> onnx.ModelProto:
    """The finished model, in memory or, where `output` says so, written there.

    Of a model that was written the weights that are in files of their own are only referred to.
    `sources` are as in `save`.
    """
    if output is None:
        return to_proto(model)
    save(model, output, sources=sources)
    return onnx.load(output, load_external_data=False)


def _weight_bytes(model: ir.Model) -> int:
    return sum(map(_bytes_of, model.graph.initializers.values()))


def _bytes_of(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


@model_errors("Writing the model")
def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    moves: Moves | None = None,
    sources: Collection[str] = (),
) -> None:
    """Write a model.

    Weights that already are in a file beside `path` stay there and are only referred to. Other
    external weights are copied, piece by piece, to `<name>.data`, and so are weights in memory
    when they are large or `external_data` is true; a single one of 64 KB is large where others
    are in a file anyway, or were: in `sources`, none of which is written over. Models that are
    written to one folder with the same `moves` share the bytes that they have in common.
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
            tensor = resolved_tensor(tensor, f"The model for {str(path)!r}")
            if Path(tensor.path).parent == folder:
                value.const_value = _beside(tensor, folder)
                beside.add(Path(tensor.path).name)
            else:
                move.append(value)
        elif tensor is not None and tensor.dtype != ir.DataType.STRING:
            memory.append(value)
    size = sum(map(_bytes_of, memory))
    if external_data or (external_data is None and size > PROTOBUF_LIMIT // 2):
        move += memory
    elif external_data is None and (move or beside or sources):
        move += [v for v in memory if _bytes_of(v) >= BESIDE_OTHERS]
    if move:
        name = f"{path.name}.data"
        # Never write over data that is being referred to
        while name in beside or str(folder / name) in sources:
            name = f"{name}.new"
        _move(move, folder, name, Moves() if moves is None else moves)
    write_atomically(path, [ir.to_proto(model).SerializeToString()])


def _beside(tensor: ir.ExternalTensor, folder: Path) -> ir.ExternalTensor:
    """The same tensor, its location relative to its own folder."""
    return ir.ExternalTensor(
        Path(tensor.path).name, tensor.offset, tensor.length, tensor.dtype,
        shape=tensor.shape, name=tensor.name or "", doc_string=tensor.doc_string, base_dir=folder,
    )  # fmt: skip


def _move(values: Sequence[ir.Value], folder: Path, name: str, moves: Moves) -> None:
    """Write weights to a new file, one after the other, and let the values refer to it."""
    tensors = [v.const_value for v in values if v.const_value is not None]
    written: list[tuple[ir.TensorProtocol, int]] = []
    end = 0
    for tensor in sorted(tensors, key=lambda t: -t.nbytes):  # a part comes after the whole
        if moves.find(tensor) is None:
            start = end + -end % (PAGE if tensor.nbytes >= PAGE_ALIGNED_BYTES else ALIGNMENT)
            written.append((tensor, start))
            moves.note(tensor, name, start)
            end = start + tensor.nbytes

    def chunks() -> Iterator[bytes]:
        at = 0
        for tensor, start in written:
            yield bytes(start - at)
            yield tensor.tobytes()
            let_go(tensor)
            at = start + tensor.nbytes

    if written:
        write_atomically(folder / name, chunks())
    for value in values:
        if value.const_value is not None:
            value.const_value = _moved(value, value.const_value, folder, moves)


def _moved(
    value: ir.Value, tensor: ir.TensorProtocol, folder: Path, moves: Moves
) -> ir.ExternalTensor:
    place = moves.find(tensor)
    assert place is not None
    return ir.ExternalTensor(
        *place, tensor.nbytes, tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or value.name or "", base_dir=folder,
    )  # fmt: skip
