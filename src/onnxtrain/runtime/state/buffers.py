"""Flat buffers: all tensors of one element type in one contiguous, 64-byte aligned vector.

A named tensor is a zero-copy view. The space between two tensors is zero and stays zero, so an
element-wise update, a norm or an exchange over the network is one call over one vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..files import dtypes
from ..files.dtypes import ElementType

if TYPE_CHECKING:
    from ..session.devices import Device, Mirror

ALIGNMENT = 64
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is: its name, element type and shape."""

    name: str
    type: ElementType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.type.numpy.itemsize


@dataclass(frozen=True)
class Part:
    """A tensor that is a piece of another one, which is a vector."""

    whole: str
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in its flat buffer, in elements."""

    spec: TensorSpec
    start: int

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.spec.size


def aligned_zeros(size: int, dtype: np.dtype[Any]) -> Array:
    """A zero vector whose first byte lies on a multiple of 64."""
    raw = np.zeros(size * dtype.itemsize + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size * dtype.itemsize].view(dtype)


class FlatBuffer:
    """One vector that holds tensors of one element type.

    Example:
        >>> spec = TensorSpec("w", dtypes.F32, (2, 3))
        >>> flat = FlatBuffer(dtypes.F32, [spec])
        >>> flat.view("w")[...] = 1.0
        >>> float(flat.data.sum())
        6.0
    """

    def __init__(self, kind: ElementType, specs: Iterable[TensorSpec]) -> None:
        self.type = kind
        per_line = ALIGNMENT // kind.numpy.itemsize
        self.slots: dict[str, Slot] = {}
        end = 0
        for spec in specs:
            self.slots[spec.name] = Slot(spec, end)
            end += -(-spec.size // per_line) * per_line
        self.data = aligned_zeros(end, kind.numpy)
        self.mirror: Mirror | None = None

    def view(self, name: str) -> Array:
        """The named tensor, without a copy."""
        slot = self.slots[name]
        return self.data[slot.start : slot.stop].reshape(slot.spec.shape)

    def tight(self) -> bool:
        """Whether no padding lies between two tensors."""
        slots = list(self.slots.values())
        return all(a.stop == b.start for a, b in pairwise(slots))

    def pointer(self, start: int = 0) -> int:
        """Address of an element, on the device when the buffer lives there."""
        base = self.mirror.pointer if self.mirror else self.data.ctypes.data
        return int(base + start * self.type.numpy.itemsize)


class TensorStore:
    """Named tensors in one flat buffer per element type, in a given order.

    Args:
        specs: the tensors that have memory of their own.
        parts: tensors that lie inside them.
        layout: names in the order of their places in memory, if it is not that of `specs`.

    Example:
        >>> store = TensorStore.from_arrays({"w": np.ones((2, 2), np.float32)})
        >>> float(store.view("w").sum())
        4.0
    """

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        parts: Mapping[str, Part] | None = None,
        layout: Iterable[str] | None = None,
    ) -> None:
        self.specs = {s.name: s for s in specs}
        self.parts = dict(parts or {})
        ordered = [self.specs[name] for name in (self.specs if layout is None else layout)]
        kinds = dict.fromkeys(s.type for s in ordered)
        self.buffers = {
            kind.code: FlatBuffer(kind, [s for s in ordered if s.type == kind]) for kind in kinds
        }
        for name, part in self.parts.items():
            whole = self.buffer_of(part.whole)
            spec = self.specs[name] = TensorSpec(name, whole.type, part.shape)
            whole.slots[name] = Slot(spec, whole.slots[part.whole].start + part.start)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], layout: Iterable[str] | None = None
    ) -> TensorStore:
        """A store with copies of the arrays."""
        specs = [
            TensorSpec(n, dtypes.of_array(a, f"Parameter {n!r}"), a.shape)
            for n, a in arrays.items()
        ]
        store = cls(specs, layout=layout)
        for name, array in arrays.items():
            store.view(name)[...] = dtypes.stored(array, store.specs[name].type)
        return store

    @property
    def layout(self) -> list[str]:
        """Names of the tensors with memory of their own, in the order of their places."""
        return [n for b in self.buffers.values() for n in b.slots if n not in self.parts]

    def like(self) -> TensorStore:
        """A new store of zeros with the same layout, on the same device."""
        own = [spec for name, spec in self.specs.items() if name not in self.parts]
        new = TensorStore(own, self.parts, self.layout)
        for code, buffer in self.buffers.items():
            if buffer.mirror is not None:
                new.buffers[code].mirror = buffer.mirror.twin(new.buffers[code].data)
        return new

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def buffer_of(self, name: str) -> FlatBuffer:
        """The flat buffer that holds the named tensor."""
        return self.buffers[self.specs[name].type.code]

    def view(self, name: str) -> Array:
        """The named tensor, without a copy."""
        return self.buffer_of(name).view(name)

    def pointer(self, name: str) -> int:
        """Address of the named tensor where it lives, host or device."""
        buffer = self.buffer_of(name)
        return buffer.pointer(buffer.slots[name].start)

    @property
    def size(self) -> int:
        """Number of elements of all tensors, without padding."""
        return sum(s.size for name, s in self.specs.items() if name not in self.parts)

    def copy_from(self, other: TensorStore) -> None:
        """Take over all values of a store with the same layout."""
        for code, buffer in self.buffers.items():
            np.copyto(buffer.data, other.buffers[code].data)

    # --- a device other than the host's memory ---------------------------------------------------

    def place(self, device: Device) -> None:
        """Keep the values on `device` from now on; nothing to do for the host."""
        for buffer in self.buffers.values():
            if buffer.mirror is None and not device.is_host:
                buffer.mirror = device.mirror(buffer.data)

    @property
    def placed(self) -> bool:
        """Whether the values live on a device."""
        return any(b.mirror is not None for b in self.buffers.values())

    def pull(self) -> None:
        """Bring values that changed on the device back to the host's copy."""
        for buffer in self.buffers.values():
            if buffer.mirror is not None:
                buffer.mirror.pull(buffer.data)

    def push(self) -> None:
        """Send the host's values to the device."""
        for buffer in self.buffers.values():
            if buffer.mirror is not None:
                buffer.mirror.push(buffer.data)

    def written(self) -> None:
        """Note that the device has newer values than the host."""
        for buffer in self.buffers.values():
            if buffer.mirror is not None:
                buffer.mirror.newer = True
