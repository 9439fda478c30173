"""Memory that torch and onnxruntime share, through DLPack and in both directions.

Nothing is copied unless a tensor is not contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnxruntime.capi import _pybind_state as ort

from ._ortmodule_watch import State

_to_dlpack, _from_dlpack = torch._C._to_dlpack, torch._C._from_dlpack
_from_torch = ort.OrtValue.from_dlpack
_address = torch.Tensor.data_ptr


def to_ort(tensor: torch.Tensor) -> Any:
    """An OrtValue in the memory of a tensor, which it keeps alive."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype is torch.bool:  # DLPack's booleans are not understood
        return _from_torch(_to_dlpack(tensor.view(torch.uint8)), True)
    return _from_torch(_to_dlpack(tensor), False)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether an OrtValue has a tensor's own memory, and takes its type as it is."""
    return tensor.is_contiguous() and tensor.dtype is not torch.bool


def to_torch(values: Any, index: int) -> torch.Tensor:
    """A tensor in the memory of an OrtValue, which it keeps alive."""
    tensor: torch.Tensor = _from_dlpack(values.dlpack_at(index))
    if tensor.dtype is torch.uint8 and values.element_type_at(index) == onnx.TensorProto.BOOL:
        return tensor.view(torch.bool)
    return tensor


class Weights:
    """The module's tensors as OrtValues, made once per piece of memory."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._bound: list[tuple[int, torch.Size, Any]] = [(-1, torch.Size(), None)] * len(
            self.names
        )

    def values(self, tensors: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Any]:
        """OrtValues of the tensors with these numbers.

        What was handed to onnxruntime stays alive here, so memory with the same address is the
        same memory.
        """
        bound, values = self._bound, []
        for i in indices:
            tensor = tensors[i]
            address, shape, value = bound[i]
            same = tensor.is_contiguous()  # else a copy, made every time
            if not same or address != tensor.data_ptr() or shape != tensor.shape:
                value = to_ort(tensor)
                bound[i] = (tensor.data_ptr() if same else -1, tensor.shape, value)
            values.append(value)
        return values


class Bound:
    """The module's tensors in the order of one graph.

    Attributes:
        of: the list of the module's tensors that this was made for.
        tensors: those that the graph reads.
        values: OrtValues of these, right as long as `addresses` and `state` are.
        addresses: where the tensors were.
        state: of the module, see `Watch`; None if the values are copies.
    """

    def __init__(self, of: list[torch.Tensor], indices: Sequence[int], weights: Weights) -> None:
        self.of, self._indices, self._weights = of, indices, weights
        self.tensors = [of[i] for i in indices]
        self.addresses: list[int] = []
        self.state: State | None = None
        self.values: list[Any] = []

    def bind(self, state: State) -> None:
        """Make `values` anew, for tensors whose sizes and strides are those of a state."""
        self.values = self._weights.values(self.of, self._indices)
        same = all(t.is_contiguous() for t in self.tensors)  # else copies, made every time
        self.addresses = list(map(_address, self.tensors))
        self.state = state if same else None
