"""The tensors that a training session keeps, some of which lie inside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ...runtime.session.devices import Device
from ...runtime.state.buffers import TensorSpec, TensorStore

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """A tensor that is a piece of a vector."""

    whole: str
    start: int
    shape: tuple[int, ...]


class State:
    """One set of buffers.

    Args:
        store: the tensors that have memory of their own.
        parts: tensors that are pieces of them.
    """

    def __init__(self, store: TensorStore, parts: Mapping[str, Part]) -> None:
        self.store, self.parts = store, dict(parts)
        self.specs = dict(store.specs)
        for name, part in self.parts.items():
            self.specs[name] = TensorSpec(name, store.specs[part.whole].type, part.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def view(self, name: str) -> Array:
        """The tensor, without a copy."""
        part = self.parts.get(name)
        if part is None:
            return self.store.view(name)
        size = self.specs[name].size
        return self.store.view(part.whole)[part.start : part.start + size].reshape(part.shape)

    def pointer(self, name: str) -> int:
        """Its address."""
        part = self.parts.get(name)
        if part is None:
            return self.store.pointer(name)
        width = self.specs[name].type.numpy.itemsize
        return self.store.pointer(part.whole) + part.start * width

    def place(self, device: Device) -> None:
        """Keep the values on a device."""
        self.store.place(device)

    def twin(self) -> State:
        """A second set with the same values, on the same device."""
        other = State(self.store.like(), self.parts)
        other.store.copy_from(self.store)
        other.store.push()
        return other

    def pull(self) -> None:
        """Bring newer values from the device."""
        self.store.pull()

    def push(self) -> None:
        """Send the values to the device."""
        self.store.push()

    def written(self) -> None:
        """Note that the device has newer values."""
        self.store.written()
