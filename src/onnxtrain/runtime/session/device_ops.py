"""Copy and add where the buffers live: numpy on the host, two tiny graphs on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files.dtypes import ElementType
from ..files.onnxfile import tensor_type
from ..files.wire import Message
from ..state.buffers import FlatBuffer, TensorStore
from .binding import Binding
from .devices import Device, session_options

Array = npt.NDArray[Any]


class DeviceOps:
    """Element-wise work on flat buffers of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._sessions: dict[tuple[str, int], Any] = {}

    def add(self, into: TensorStore, other: TensorStore) -> None:
        """``into += other`` for all tensors of two stores with the same layout."""
        for code, buffer in into.buffers.items():
            if buffer.mirror is None:
                _add(buffer, other.buffers[code])
            else:
                size = buffer.data.size
                pointers = [buffer.pointer(), other.buffers[code].pointer()]
                self._run("Add", buffer.type, size, pointers, buffer.pointer())
        into.written()

    def copy(
        self, into: TensorStore, source: TensorStore, names: Iterable[str] | None = None
    ) -> None:
        """Copy tensors of `source`, all of them by default, to those of the same names."""
        for name in source if names is None else names:
            spec = source.specs[name]
            if not into.placed:
                into.view(name)[...] = source.view(name)
            elif spec.size:
                pointer = source.pointer(name)
                self._run("Identity", spec.type, spec.size, [pointer], into.pointer(name))
        into.written()

    def copy_chunk(
        self, into: TensorStore, start: int, stop: int, tensor: str | None, scratch: TensorStore
    ) -> None:
        """Copy the beginning of a scratch vector to a tensor, or to part of the flat buffer."""
        buffer = into.buffers["F32"]
        if tensor is not None:
            start, stop = buffer.slots[tensor].start, buffer.slots[tensor].stop
        if not into.placed:
            np.copyto(buffer.data[start:stop], scratch.view("scratch")[: stop - start])
        else:
            source = scratch.pointer("scratch")
            self._run("Identity", buffer.type, stop - start, [source], buffer.pointer(start))

    def _run(
        self, operator: str, kind: ElementType, size: int, inputs: list[int], output: int
    ) -> None:
        key = (operator, kind.onnx)
        if key not in self._sessions:
            model = one_node(operator, kind.onnx, len(inputs))
            self._sessions[key] = self.device.session(model, session_options())
        binding = Binding(self._sessions[key], self.device)
        for index, pointer in enumerate(inputs):
            binding.input(f"x{index}", kind, [size], pointer)
        binding.output("y", kind, [size], output)
        binding.run()


def _add(into: FlatBuffer, other: FlatBuffer) -> None:
    if into.type.code == "BF16":
        wide = _bfloat16_to_float32(into.data) + _bfloat16_to_float32(other.data)
        into.data[...] = _float32_to_bfloat16(wide)
    else:
        np.add(into.data, other.data, out=into.data)


def _bfloat16_to_float32(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _float32_to_bfloat16(values: Array) -> Array:
    bits = values.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # round to nearest, ties to even
    return (rounded >> 16).astype(np.uint16)


def one_node(operator: str, elem_type: int, inputs: int) -> bytes:
    """A model with a single node over vectors of any length."""

    def value(name: str) -> Message:
        return Message().add(1, name).add(2, tensor_type(elem_type, ["n"]))

    node, graph = Message(), Message()
    for index in range(inputs):
        node.add(1, f"x{index}")
    graph.add(1, node.add(2, "y").add(4, operator)).add(2, operator)
    for index in range(inputs):
        graph.add(11, value(f"x{index}"))
    graph.add(12, value("y"))
    opset = Message().add(1, "").add(2, 18)
    return Message().add(1, 8).add(7, graph).add(8, opset).encode()
