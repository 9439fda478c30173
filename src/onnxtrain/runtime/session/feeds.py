"""Check what a user hands to a model before onnxruntime sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ..files.dtypes import BY_NUMPY, BY_ONNX, STRING, type_name
from ..files.onnxfile import ValueInfo
from .labels import ClassLabels
from .native import raw_ortvalue

Array = npt.NDArray[Any]
Signature = tuple[Any, tuple[int, ...]]


class FeedCheck:
    """Turns values into arrays that fit the declared inputs, or says what does not fit.

    What passed once (same types and shapes) is not checked again; class labels always are.
    """

    def __init__(
        self,
        infos: Sequence[ValueInfo],
        optional: set[str],
        labels: Sequence[ClassLabels] = (),
    ) -> None:
        self.infos, self.optional = list(infos), optional
        index = {info.name: i for i, info in enumerate(self.infos)}
        self.labels = [one for one in labels if one.input in index]
        self.labels_at = [(index[one.input], one) for one in self.labels]
        self._good: set[tuple[Signature | None, ...]] = set()

    def arrays(self, values: Sequence[Any]) -> list[Array | Any | None]:
        """One contiguous array, OrtValue or None per declared input."""
        if len(values) != len(self.infos):
            names = ", ".join(i.name for i in self.infos)
            raise InputError(
                f"The model takes {len(self.infos)} input(s) ({names}); {len(values)} given."
            )
        arrays = [self._array(info, value) for info, value in zip(self.infos, values)]
        signature = tuple([_signature(v) for v in arrays])
        if signature not in self._good:
            self._check(signature)
            if len(self._good) > 256:  # every length of a sequence may be a signature of its own
                self._good.clear()
            self._good.add(signature)
        for index, labels in self.labels_at:
            array = on_host(arrays[index])
            if array is not None:
                labels.check(array)
        return arrays

    def _array(self, info: ValueInfo, value: Any) -> Any:
        if type(value) is np.ndarray and value.flags.c_contiguous:
            return value
        if value is None:
            if info.name not in self.optional:
                raise InputError(f"Input {info.name!r} is None, and it is not optional.")
            return None
        raw = raw_ortvalue(value)
        if raw is not None:
            return raw
        if isinstance(value, np.ndarray | np.generic):
            return np.ascontiguousarray(value).reshape(value.shape)
        return _convert(info, value)

    def _check(self, signature: Sequence[Signature | None]) -> None:
        symbols: dict[str, tuple[int, str]] = {}
        for info, described in zip(self.infos, signature):
            if described is None:
                continue
            kind, shape = described
            _check_type(info, kind)
            _check_shape(info, shape, symbols)


def on_host(value: Any) -> Array | None:
    """The numbers of an array or OrtValue that lie in the host's memory."""
    if value is None or isinstance(value, np.ndarray):
        return value
    return np.asarray(value.numpy()) if value.device_name().lower() == "cpu" else None


def _convert(info: ValueInfo, value: Any) -> Array:
    """Lists, numbers and foreign arrays; lists and numbers take the type that is declared."""
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        if hasattr(value, "detach"):
            value = value.detach()
        array = np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
        return np.ascontiguousarray(array).reshape(array.shape)
    known = BY_ONNX.get(info.elem_type or 0)
    try:
        array = np.asarray(value)
        if known is not None and not known.opaque and array.dtype != known.numpy:
            array = array.astype(known.numpy, casting="same_kind" if array.size else "unsafe")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Input {info.name!r} needs {type_name(info.elem_type)}; {type(value).__name__} "
            f"cannot be converted: {error}"
        ) from None
    return np.ascontiguousarray(array).reshape(array.shape)


def _signature(value: Any) -> Signature | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    return value.data_type(), tuple(value.shape())


def _check_type(info: ValueInfo, kind: Any) -> None:
    if info.elem_type is None:
        return
    if isinstance(kind, str):  # of an OrtValue
        actual, shown = ORT_TYPES.get(kind), kind
    elif kind.kind in "OUS":
        actual, shown = STRING, str(kind)
    else:
        known = BY_NUMPY.get(kind)
        actual, shown = known.onnx if known else None, str(kind)
    declared = BY_ONNX.get(info.elem_type)
    if declared is not None and declared.opaque and kind == declared.numpy:
        return
    if actual != info.elem_type:
        expected = type_name(info.elem_type)
        raise InputError(
            f"Input {info.name!r} needs {expected}, got {shown}. Convert it, e.g. "
            f"array.astype({expected!r})."
        )


ORT_TYPES = {
    f"tensor({name})": number
    for name, number in {
        "float": 1,
        "uint8": 2,
        "int8": 3,
        "uint16": 4,
        "int16": 5,
        "int32": 6,
        "int64": 7,
        "string": STRING,
        "bool": 9,
        "float16": 10,
        "double": 11,
        "uint32": 12,
        "uint64": 13,
        "bfloat16": 16,
    }.items()
}
"""ONNX numbers of the names that onnxruntime gives to types of tensors."""


def _check_shape(
    info: ValueInfo, shape: tuple[int, ...], symbols: dict[str, tuple[int, str]]
) -> None:
    if info.shape is None:
        return
    shown = "×".join("?" if d is None else str(d) for d in info.shape) or "a scalar"
    if len(shape) != len(info.shape):
        raise InputError(
            f"Input {info.name!r} has {len(info.shape)} dimension(s) ({shown}), got an array with "
            f"{len(shape)}: {shape}."
        )
    if shape and shape[0] == 0:
        raise InputError(f"Input {info.name!r} is an empty batch: shape {shape}.")
    for axis, (declared, size) in enumerate(zip(info.shape, shape)):
        if isinstance(declared, int) and declared >= 0 and declared != size:
            raise InputError(
                f"Input {info.name!r} must have size {declared} on axis {axis} ({shown}), got "
                f"{shape}."
            )
        if isinstance(declared, str):
            before, other = symbols.setdefault(declared, (size, info.name))
            if before != size:
                raise InputError(
                    f"Inputs {other!r} and {info.name!r} disagree about {declared!r}: {before} and "
                    f"{size}."
                )
