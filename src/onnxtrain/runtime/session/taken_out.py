"""Large weights beside the bytes of a model while a session is made of it.

Whatever edits a model copies it, and onnxruntime copies each weight that it reads in one. So large
weights are taken out of the bytes before: what is edited is as large as the graph, and onnxruntime
is given the weights where they lie, in the caller's bytes, which stay. To the edits such a weight
is one whose data are in a file. Nobody can know the name that stands for that file, and no file of
that name is opened: onnxruntime is told of all of them before it looks.

onnxruntime copies what it is told of. It lets go of the copy where it is lent the weight as well,
and where it has laid it out for its kernels or put it together with another one. Numbers that do
not lie where numbers of their type may be cannot be lent: a copy of ours would be one more.

ADR 18 has what it gains.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import _pybind_state as ort

from ...errors import ModelFileError
from ..files.dtypes import BY_ONNX, is_shape
from ..files.external import bits_of, refer, reference_of, size_of
from ..files.outline import CONSTANT_NAME, GRAPH, INITIALIZER, Outline, fields
from ..files.wire import Chunk, Message, varint
from .edits import GRAPH_TAG, INPUT_OF_GRAPH, VALUE_NAME, field
from .native import ort_device
from .options import copy_of

Bytes: TypeAlias = "npt.NDArray[np.uint8]"

LEAST_MODEL = 2**25
"""Bytes of a model from which on weights are taken out. Sessions of 50 products, processor time on
one thread: 102 instead of 202 ms with 200 MB, 53 and 70 with 60; of 100 with 17 MB 15 and 11."""
LEAST_WEIGHT = 2**16
"""Bytes of a weight that is; a smaller one is copied sooner than it is told of."""
SHAPE, TYPE, DOCUMENTATION, RAW, LOCATION = 1, 2, 12, 9, 14
USUAL = frozenset({SHAPE, TYPE, CONSTANT_NAME, DOCUMENTATION, RAW, LOCATION})
"""Fields of a weight whose values are bytes of the model."""
WHERE = "the model"
HOST = ort_device("cpu")


class Lean:
    """A model without its large weights.

    Args:
        model: the whole.
        token: what its weights have in the place of a file's name; the offsets are in `model`.
        content: the model without them.
        size: how many bytes were taken out.
    """

    def __init__(self, model: bytes, token: str, content: bytes, size: int) -> None:
        self.content, self.size = content, size
        self._model, self._token = model, token
        self._aligned = dict[int, Bytes]()

    def options_with(self, options: Any) -> Any:
        """A copy of options that weights may be added to; a refusal if there is none."""
        copy = copy_of(options)
        if copy is None:
            raise ort.NotImplemented("the options cannot be copied, and would keep the weights")
        return copy

    def add_weights(self, options: Any, content: bytes, *, are_laid_out: bool = True) -> list[Any]:
        """Tell options of the weights of an edited model; what has to stay for the session.

        Args:
            options: those of `options_with`.
            content: the edited model.
            are_laid_out: whether onnxruntime lays weights out for its kernels; if it does not, it
                never lets go of one, and sessions of one model share what has to be copied.
        """
        values, lent = dict[str, Any](), dict[str, Any]()
        for tensor in self._weights(content):
            name, kind = tensor.string(CONSTANT_NAME), tensor.integer(TYPE)
            data = self._bytes_of(tensor)
            if not are_laid_out:
                data = self._aligned_bytes(data, kind)
            values[name] = value_of(data, kind, tensor.integers(SHAPE))
            if _is_aligned(data, kind):
                lent[name] = values[name]
        options.add_external_initializers(list(values), list(values.values()))
        for name, value in lent.items():
            options.add_initializer(name, value)
        return list(values.values())

    def _weights(self, content: bytes) -> Iterator[Message]:
        """The weights of an edited model that have been taken out; they may have other types."""
        outline, needle = Outline.of(content), self._token.encode()
        for begin, end in () if outline is None else outline.constants:
            if content.find(needle, begin, end) >= 0:
                yield Message.parse(content[begin:end])

    def _bytes_of(self, tensor: Message) -> Bytes:
        reference = reference_of(tensor, WHERE)
        count = size_of(tensor, WHERE)
        if count is None or reference.length != count:
            raise ModelFileError(f"{WHERE}: {reference.tensor!r} has other bytes than its shape")
        return np.frombuffer(self._model, np.uint8, count, reference.offset)

    def _aligned_bytes(self, data: Bytes, kind: int) -> Bytes:
        """The same bytes where numbers of a type may lie; a copy for all sessions that need one."""
        if _is_aligned(data, kind):
            return data
        return self._aligned.setdefault(data.ctypes.data, data.copy())


def _is_aligned(data: Bytes, kind: int) -> bool:
    known = BY_ONNX.get(kind)
    return known is None or data.ctypes.data % known.numpy.itemsize == 0


def value_of(data: Bytes, kind: int, shape: list[int]) -> onnxruntime.OrtValue:
    """A tensor of onnxruntime's in memory that somebody else owns; an error if that cannot be."""
    known = BY_ONNX.get(kind)
    if known is not None:
        array: npt.NDArray[Any] = data.view(known.numpy).reshape(shape)
    else:  # two numbers in a byte: of the array only its address and shape are read
        array = np.lib.stride_tricks.as_strided(data, shape, (0,) * len(shape), writeable=False)
    if known is not None and not known.opaque:
        value = ort.OrtValue.ortvalue_from_numpy(array, HOST)
    else:
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
    is_same = value.data_ptr() == data.ctypes.data and value.tensor_size_in_bytes() == data.nbytes
    if not is_same or list(value.shape()) != shape:
        raise ort.NotImplemented("onnxruntime copies a tensor that it is lent")
    return onnxruntime.OrtValue(value, data)


def taken_out(outline: Outline) -> Lean | None:
    """A model without its large weights; None if it has none, or is damaged."""
    if len(outline.model) < LEAST_MODEL:
        return None
    try:
        return _taken_out(outline)
    except (ModelFileError, ValueError, IndexError):  # onnxruntime says what is wrong with it
        return None


def _taken_out(outline: Outline) -> Lean | None:
    model, token = outline.model, f"taken-out-{secrets.token_hex(16)}"
    if len(outline.constant_of_name) < len(outline.constants):
        return None  # two of one name
    inputs, edits, size = _inputs(outline), list[tuple[int, int, bytes]](), 0
    for start, begin, end in _with_heads(model, INITIALIZER, *outline.graph):
        if end - begin < LEAST_WEIGHT:
            continue
        weight = Message.parse(memoryview(model)[begin:end])
        place = _raw_place(model, begin, end)
        if weight.string(CONSTANT_NAME) in inputs or not _is_plain(weight, place):
            continue
        refer(weight, token, place[0], place[1] - place[0])
        edits.append((start, end, field(INITIALIZER, weight)))
        size += place[1] - place[0]
    return Lean(model, token, _with_edits(outline, edits), size) if edits else None


def _with_heads(model: bytes, number: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Where the fields of a number have their head, where they begin and where they end."""
    last = begin
    for other, start, stop in fields(model, begin, end):
        if other == number:
            yield last, start, stop
        last = stop


def _inputs(outline: Outline) -> set[str]:
    """Names of the inputs of the graph; one that has a value may be fed with another one."""
    model = outline.model
    inputs = (f for f in fields(model, *outline.graph) if f[0] == INPUT_OF_GRAPH)
    return {Message.parse(model[begin:end]).string(VALUE_NAME) for _, begin, end in inputs}


def _raw_place(model: bytes, begin: int, end: int) -> tuple[int, int]:
    """Where the bytes of a weight are, if they are in one place; nowhere otherwise."""
    places = [(a, b) for number, a, b in fields(model, begin, end) if number == RAW]
    return places[0] if len(places) == 1 else (0, 0)


def _is_plain(weight: Message, place: tuple[int, int]) -> bool:
    """Whether a weight is its bytes, as many as its shape says, of a type that can be lent."""
    shape, kind = weight.integers(SHAPE), weight.integer(TYPE)
    is_packed = kind not in BY_ONNX and bits_of(kind) == 4
    return (
        place[1] - place[0] >= LEAST_WEIGHT
        and {number for number, _, _ in weight.fields} <= USUAL
        and weight.integer(LOCATION) == 0
        and (kind in BY_ONNX or is_packed)
        and is_shape(shape)
        and size_of(weight, WHERE) == place[1] - place[0]
    )


def _with_edits(outline: Outline, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The model with other bytes in some places of its graph."""
    model, (begin, end) = outline.model, outline.graph
    view, parts, at = memoryview(model), list[Chunk](), begin
    for start, stop, written in edits:
        parts += [view[at:start], written]
        at = stop
    parts.append(view[at:end])
    *_, (head, _, _) = _with_heads(model, GRAPH, 0, len(model))
    size = varint(sum(map(len, parts)))
    return b"".join([view[:head], GRAPH_TAG, size, *parts, view[end:]])


_lent: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""What sessions of the C level read, which does not end before them."""


def lend(core: Any, values: list[Any]) -> None:
    """Keep weights for as long as there is a session."""
    _lent[core] = values
