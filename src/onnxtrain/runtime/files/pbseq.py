"""Checkpoint directories of onnxruntime-training before 1.16: sequences of protobuf messages.

A file is a count, then a size and a TensorProto for each, all numbers as varints:

    paramtrain_tensors.pbseq, paramfrozen_tensors.pbseq       parameters (1.13: param_tensors.pbseq)
    optim_<group>_momentum<i>_tensors.pbseq                   moments, under the parameters' names
    optim_<group>_properties.pbseq                            step and initial learning rate
    custom_properties.pbseq                                   the user's, as tensors of one element

Checked against directories that 1.15.1 wrote. Reading only: nothing reads them any more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError, ModelFileError
from ...hyper import check_rate
from ..state.buffers import TensorSpec, TensorStore
from ..state.training_state import OptimizerState, TrainingState
from .dtypes import BY_ONNX, STRING, is_shape
from .readfile import read_regular
from .wire import Message, _take, _varint

Array = npt.NDArray[Any]
TRAINABLE, FROZEN, PROPERTIES = (
    ("paramtrain_tensors.pbseq", "param_tensors.pbseq"),
    ("paramfrozen_tensors.pbseq",),
    "custom_properties.pbseq",
)
MOMENTS = ("first_order_moments", "second_order_moments")
_MOMENT_FILE = re.compile(r"optim_(?P<group>.+)_momentum(?P<index>\d+)_tensors\.pbseq")
_TYPED_FIELD = {
    1: (4, "<f4"), 6: (5, "<i4"), 7: (7, "<i8"), 11: (10, "<f8"), 13: (11, "<u8"),
    2: (5, "<i4"), 3: (5, "<i4"), 4: (5, "<i4"), 5: (5, "<i4"), 9: (5, "<i4"), 12: (11, "<u8"),
}  # fmt: skip
"""Element type → field of TensorProto that holds its values when there are no raw data."""


class NotACheckpointError(CheckpointError, IsADirectoryError):
    """A directory was given that is not a checkpoint."""


def load(path: str | os.PathLike[str]) -> TrainingState:
    """Read a checkpoint directory."""
    folder = Path(path)
    where = f"Checkpoint directory {os.fspath(path)!r}"
    trainable = _first(folder, TRAINABLE, where)
    frozen = _first(folder, FROZEN, where)
    if not trainable and not frozen:
        raise NotACheckpointError(
            f"{where} has none of {', '.join((*TRAINABLE, *FROZEN))}: it is not a checkpoint of "
            "onnxruntime-training before 1.16, and other checkpoints are files."
        )
    state = TrainingState(_store(trainable, where), _store(frozen, where))
    state.optimizer = _optimizer(folder, state.trainable, where)
    properties = folder / PROPERTIES
    if properties.exists():
        for name, value in _sequence(properties, where).items():
            content = value if isinstance(value, str) else _number(name, value, where)
            try:
                state.set_property(name, content)
            except (TypeError, ValueError) as error:
                raise CheckpointError(f"{where}: {PROPERTIES} is damaged: {error}") from None
    return state


def _number(name: str, value: Any, where: str) -> int | float:
    """A setting: a tensor of one number."""
    if isinstance(value, str) or value.size != 1 or value.dtype == bool:
        raise CheckpointError(f"{where} is damaged: {name!r} is not a number.")
    number: int | float = value.item()
    if not -(2**63) <= number < 2**63:
        raise CheckpointError(f"{where} is damaged: {name!r} is {number}.")
    return number


def _first(folder: Path, names: tuple[str, ...], where: str) -> dict[str, Any]:
    for name in names:
        if (folder / name).exists():
            return _sequence(folder / name, where)
    return {}


def _store(arrays: dict[str, Any], where: str) -> TensorStore:
    text = [name for name, value in arrays.items() if isinstance(value, str)]
    if text:
        raise CheckpointError(f"{where} is damaged: the parameter {text[0]!r} is text.")
    return TensorStore.from_arrays(arrays)


def _optimizer(folder: Path, trainable: TensorStore, where: str) -> OptimizerState | None:
    files = [(m, f) for f in folder.iterdir() if (m := _MOMENT_FILE.fullmatch(f.name))]
    groups = sorted({m["group"] for m, _ in files})
    if not groups:
        return None
    if len(groups) > 1:
        raise CheckpointError(f"{where} has the optimizer groups {groups}; one can be read.")
    optimizer = OptimizerState("")
    settings = folder / f"optim_{groups[0]}_properties.pbseq"
    values = _sequence(settings, where) if settings.exists() else {}
    for name, value in values.items():  # 1.15 writes "builtin.step", 1.13 "step_"
        if "step" in name:
            optimizer.step = int(_number(name, value, where))
        elif "learning_rate" in name:
            optimizer.learning_rate = check_rate(
                _number(name, value, where),
                f"{where} is damaged: the learning rate",
                CheckpointError,
            )
    for match, file in sorted(files, key=lambda f: int(f[0]["index"])):
        index = int(match["index"])
        if index >= len(MOMENTS):
            raise CheckpointError(f"{where}: {file.name} is a third kind of moments.")
        moments = _sequence(file, where)
        if set(moments) != set(trainable):
            raise CheckpointError(
                f"{where}: {file.name} does not cover exactly the trainable parameters."
            )
        optimizer.states[MOMENTS[index]] = _store({n: moments[n] for n in trainable}, where)
    return optimizer


def _sequence(file: Path, where: str) -> dict[str, Any]:
    """The tensors of a file, by name."""
    data = read_regular(file, CheckpointError)
    try:
        count, at = _varint(data, 0)
        tensors: dict[str, Any] = {}
        for _ in range(count):
            size, at = _varint(data, at)
            content, at = _take(data, at, size)
            tensor = Message.parse(content)
            name = tensor.string(8)
            if name in tensors:
                raise ModelFileError(f"the name {name!r} occurs twice")
            tensors[name] = _value(tensor, name)
    except ModelFileError as error:
        raise CheckpointError(f"{where}: {file.name} is damaged: {error}.") from None
    return tensors


def _value(tensor: Message, name: str) -> Array | str:
    kind = tensor.integer(2)
    if kind == STRING:
        return tensor.string(6)
    if kind not in BY_ONNX or BY_ONNX[kind].opaque:
        raise ModelFileError(f"{name!r} has the unknown element type {kind}")
    spec = TensorSpec(name, BY_ONNX[kind], tuple(tensor.integers(1)))
    if not is_shape(spec.shape):
        raise ModelFileError(f"{name!r} has the shape {spec.shape}")
    dtype = BY_ONNX[kind].numpy
    raw = _joined(tensor, 9)
    values = _numbers(raw, dtype, name) if raw else _typed(tensor, kind, name).astype(dtype)
    if values.nbytes != spec.nbytes:
        raise ModelFileError(f"{name!r} of shape {spec.shape} has {values.size} values")
    return np.array(values.reshape(spec.shape))


def _joined(tensor: Message, number: int) -> bytes:
    """The bytes of all fields of a number, one after the other."""
    return b"".join(
        bytes(v) for f, _, v in tensor.fields if f == number and isinstance(v, bytes | memoryview)
    )


def _numbers(content: bytes, dtype: Any, name: str) -> Array:
    if len(content) % np.dtype(dtype).itemsize:
        raise ModelFileError(f"{name!r} has {len(content)} bytes, not whole numbers")
    return np.frombuffer(content, dtype)


def _typed(tensor: Message, kind: int, name: str) -> Array:
    if kind not in _TYPED_FIELD:
        raise ModelFileError(f"{name!r} has no data")
    field, dtype = _TYPED_FIELD[kind]
    if dtype in {"<f4", "<f8"}:
        return _numbers(_joined(tensor, field), dtype, name)
    values = np.array(tensor.integers(field), np.int64)
    return values.astype(dtype)
