"""Strings as tensors of onnxruntime, whose Python package cannot make them from arrays.

A model that has them as a constant can give them, though: it is built and run for each batch, which
takes about a millisecond.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..files.dtypes import STRING
from ..files.onnxfile import tensor_type
from ..files.wire import Message
from .devices import Device, session_options
from .native import raw_ortvalue


def string_value(array: npt.NDArray[Any]) -> Any:
    """An OrtValue, as `Binding.feed` takes it, with the strings of an array."""
    session = Device().session(_constant(array), session_options())
    return raw_ortvalue(session.run_with_ort_values(["y"], {})[0])


def _constant(array: npt.NDArray[Any]) -> bytes:
    """A model without inputs whose output are the strings."""
    tensor = Message()
    for size in array.shape:
        tensor.add(1, size)
    tensor.add(2, STRING)
    for item in array.ravel().tolist():
        tensor.add(6, item if isinstance(item, bytes) else str(item))
    tensor.add(8, "x")
    graph = Message().add(1, Message().add(1, "x").add(2, "y").add(4, "Identity")).add(2, "strings")
    graph.add(5, tensor)
    output = Message().add(1, "y").add(2, tensor_type(STRING, list(array.shape)))
    graph.add(12, output)
    opset = Message().add(1, "").add(2, 18)
    return Message().add(1, 8).add(7, graph).add(8, opset).encode()
