"""What training needs from a message-passing library: all-reduce, broadcast, barrier."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bounds = Sequence[tuple[int, int]]

TIMEOUT = 120.0
"""Seconds a rank waits in a collective call before it takes the others for lost."""


class Backend:
    """A group of ranks; subclasses give the three calls, the rest follows from them.

    All ranks must make the same calls in the same order. Arrays are contiguous and changed in
    place. A rank that waits longer than `timeout` seconds, or learns that another one has
    died, raises `RankLostError`.
    """

    name = "backend"
    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""
    local_size: int = 1
    """Number of processes on this machine."""
    timeout: float = TIMEOUT
    other_threads: bool = True
    """Whether another thread than the main one may make the calls, while that one makes none."""
    failed: bool = False
    """Whether this rank met an error that the others may not know of."""

    def all_reduce(self, array: Array) -> None:
        """Replace `array` on every rank by its sum over all ranks."""
        raise NotImplementedError

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array` on every rank by that of `root`."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the group; no call is possible afterwards."""

    # --- made of the three -----------------------------------------------------------------------

    def reduce_slices(self, vector: Array, bounds: Bounds) -> None:
        """Sum over all ranks; each rank needs its own slice only, the rest is undefined."""
        del bounds
        self.all_reduce(vector)

    def gather_slices(self, vector: Array, bounds: Bounds) -> None:
        """Complete `vector` on every rank; rank r has the slice ``bounds[r]``."""
        for root, (start, stop) in enumerate(bounds):
            if stop > start:
                self.broadcast(vector[start:stop], root)

    def gather(self, values: Array) -> list[Array]:
        """The float64 vector of every rank, on every rank; missing places at the end are zero."""
        length = int(self.sums([values.size if r == self.rank else 0 for r in self.ranks]).max())
        table = np.zeros((self.size, max(length, 1)))
        table[self.rank, : values.size] = values
        self.all_reduce(table)
        return list(table[:, :length])

    def sums(self, values: Sequence[float]) -> Array:
        """A few numbers, each summed over all ranks."""
        vector = np.array(values, np.float64)
        self.all_reduce(vector)
        return vector

    def share_json(self, value: Any) -> Any:
        """What rank 0 has, on every rank; the others' argument is ignored."""
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = np.array([len(text)], np.int64)
        self.broadcast(length)
        data = np.zeros(int(length[0]), np.uint8)
        if self.rank == 0:
            data[:] = np.frombuffer(text, np.uint8)
        if data.size:
            self.broadcast(data)
        return json.loads(data.tobytes())

    @property
    def ranks(self) -> range:
        """All rank numbers."""
        return range(self.size)

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size})"


class Single(Backend):
    """One process alone: every call is already done.

    Example:
        >>> group = Single()
        >>> numbers = np.array([1.0, 2.0])
        >>> group.all_reduce(numbers)
        >>> numbers.tolist()
        [1.0, 2.0]
    """

    name = "single"

    def all_reduce(self, array: Array) -> None:
        """Nothing to add."""

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Nothing to send."""

    def barrier(self) -> None:
        """Nobody to wait for."""
