"""Two sets of buffers that change places.

A graph that computes gradients and updates cannot write over what it still reads. So it reads one
set of buffers and writes the other, and the next step goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from ..session.binding import Binding
from ..session.device_ops import DeviceOps
from ..session.devices import Device
from ..state.buffers import TensorStore
from .finite import all_finite, first_not_finite, is_finite

Array = npt.NDArray[Any]


class Place(NamedTuple):
    """Where a tensor is: in which store of a set, under which name."""

    store: str
    name: str


class TwoSets:
    """The tensors of a step, twice.

    Args:
        first: stores by name; the next step reads these.
        second: the same, to be written. A store that is in both is read and written in place.
        device: where they live.

    Attributes:
        turn: which of the two sets the next step reads.
    """

    def __init__(
        self,
        first: Mapping[str, TensorStore],
        second: Mapping[str, TensorStore],
        device: Device,
    ) -> None:
        self.sets = (dict(first), dict(second))
        self.turn = 0
        self._device, self._ops = device, DeviceOps(device)
        self._vectors: dict[int, list[Array]] = {}

    def source(self, turn: int | None = None) -> dict[str, TensorStore]:
        """What a step reads; by default the next one."""
        return self.sets[self.turn if turn is None else turn]

    def target(self, turn: int | None = None) -> dict[str, TensorStore]:
        """What a step writes; by default the next one."""
        return self.sets[1 - (self.turn if turn is None else turn)]

    def bind(
        self,
        binding: Binding,
        turn: int,
        reads: Mapping[str, Place],
        writes: Mapping[str, Place],
    ) -> None:
        """Bind the inputs and outputs of a step that reads set number `turn`."""
        source, target = self.source(turn), self.target(turn)
        for name, place in reads.items():
            binding.input_tensor(name, source[place.store], place.name)
        for name, place in writes.items():
            binding.output_tensor(name, target[place.store], place.name)

    def swap(self) -> None:
        """A step has run, and counts."""
        self.turn = 1 - self.turn

    def noted(self) -> None:
        """Note that a step has run on a device other than the host."""
        if not self._device.is_host:
            for one in self.sets:
                for store in one.values():
                    store.written()

    def take_over(self, places: Iterable[Place]) -> None:
        """Let some of what a step has written count, although the sets stay where they are."""
        source, target = self.source(), self.target()
        self.noted()
        for store, name in places:
            self._ops.copy(source[store], target[store], [name])

    def write_back(self) -> None:
        """Bring the first set up to date; the next step reads that."""
        if self.turn:
            first, second = self.sets
            for key, store in second.items():
                if store is not first[key]:
                    self._ops.copy(first[key], store)
            self.turn = 0

    # --- what is finite --------------------------------------------------------------------------

    def vectors(self, writes: Mapping[str, Place]) -> list[Array]:
        """The float vectors that the next step writes, in the host's memory."""
        if self.turn not in self._vectors:
            vectors = []
            for key, store in self.target().items():
                written = [name for other, name in writes.values() if other == key]
                if set(store) == set(written):
                    vectors += [buffer.data for buffer in store.buffers.values()]
                else:
                    vectors += [store.view(name).reshape(-1) for name in written]
            self._vectors[self.turn] = [v for v in vectors if v.dtype.kind == "f"]
        return self._vectors[self.turn]

    def first_not_finite(self, writes: Iterable[Place], turn: int | None = None) -> str:
        """The first tensor that a step has made NaN or infinite; empty if there is none."""
        target = self.target(turn)
        self.noted()
        if all(is_finite(store) for store in target.values()):
            return ""
        for key, name in writes:  # what is not among them may be old
            store = target[key]
            if name not in store.parts and first_not_finite(store, [name]) is not None:
                parts = [n for n, part in store.parts.items() if part.whole == name]
                return next((n for n in parts if not all_finite(store.view(n).ravel())), name)
        return ""
