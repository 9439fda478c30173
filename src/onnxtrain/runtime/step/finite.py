"""Norms of flat buffers, and whether all of their numbers are finite: one pass over memory.

A sum of squares is finite only if every element is, and BLAS computes it about as fast as
memory can be read. The reverse does not hold in single precision: from 1.8e19 on a square
overflows. Then, and only then, a chunk is looked at again in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import NonFiniteError
from ..state.buffers import FlatBuffer, TensorStore

Array = npt.NDArray[Any]
CHUNK = 1 << 16
"""Elements per sum in single precision, so that rounding stays small."""

HUGE = 1e15
"""Gradients, or a learning rate, beyond which an update might overflow: it squares gradients, adds
squares up over many steps, and divides by small numbers."""


def square_sum(data: Array) -> float:
    """Σx² of a vector in double precision.

    Example:
        >>> round(square_sum(np.full(4, 1e30, np.float32)) / 1e60, 3)
        4.0
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, data.size, CHUNK):
            part = data[start : start + CHUNK]
            square = float(part.dot(part))
            if not math.isfinite(square) and part.dtype.itemsize < 8:
                wide = part.astype(np.float64)
                square = float(wide.dot(wide))
            total += square
    return total


@np.errstate(over="ignore", invalid="ignore")
def quick_square_sum(arrays: Iterable[Array]) -> float:
    """Σx² over vectors in their own precision: if it is finite, so are all of their elements.

    Most steps need to know no more, and in a step of thirty microseconds every call counts.
    """
    total = 0.0
    for array in arrays:
        total += array.dot(array)
    return total


def global_norm(store: TensorStore) -> float:
    """√Σx² over all tensors of a store; NaN or infinite if, and only if, one of them is."""
    store.pull()
    return math.sqrt(sum(square_sum(buffer.data) for buffer in store.buffers.values()))


def clip_factor(norm: float, limit: float) -> float:
    """min(1, limit / (norm + 1e-6)): what brings gradients of this norm down to the limit."""
    if math.isnan(norm):
        return math.nan  # as in the graph: a NaN gradient spoils the step and is seen
    return min(1.0, limit / (norm + 1e-6)) if math.isfinite(limit) else 1.0


def refused(reason: str) -> NonFiniteError:
    """The error for a batch that is no good, after everything was left as it was."""
    return NonFiniteError(
        reason,
        "Nothing was changed, and gradients gathered for the same update are dropped: go on with "
        "the next batch. Look at this one, the learning rate and the initial values, or clip the "
        "gradients.",
    )


def all_finite(data: Array) -> bool:
    """Whether no element of a float vector is NaN or infinite.

    Example:
        >>> all_finite(np.array([1.0, 3e38], np.float32)), all_finite(np.array([1.0, np.inf]))
        (True, False)
    """
    if data.dtype.itemsize < 4:  # a square of half precision overflows at 256
        return bool(np.isfinite(data).all())
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, data.size, CHUNK):
            part = data[start : start + CHUNK]
            if not math.isfinite(part.dot(part)) and not np.isfinite(part).all():
                return False
    return True


def is_finite(store: TensorStore) -> bool:
    """Whether all floats of a store are finite."""
    store.pull()
    return all(_finite_buffer(buffer) for buffer in store.buffers.values())


def first_not_finite(store: TensorStore, names: Iterable[str] | None = None) -> str | None:
    """The first tensor of a store, or of some of it, with a number that is NaN or infinite."""
    store.pull()
    for name in store if names is None else names:
        buffer, slot = store.buffer_of(name), store.buffer_of(name).slots[name]
        if not _finite_values(buffer.type.code, buffer.data[slot.start : slot.stop]):
            return name
    return None


def _finite_buffer(buffer: FlatBuffer) -> bool:
    return _finite_values(buffer.type.code, buffer.data)


def _finite_values(code: str, data: Array) -> bool:
    if code == "BF16":  # kept as bits: an exponent of all ones is an infinity or a NaN
        return not bool(((data & 0x7F80) == 0x7F80).any())
    return data.dtype.kind != "f" or all_finite(data)


class Snapshot:
    """The values of some stores at a moment, to come back to."""

    def __init__(self, stores: Sequence[TensorStore]) -> None:
        self._stores = stores
        for store in stores:
            store.pull()
        self._copies = [[b.data.copy() for b in s.buffers.values()] for s in stores]

    def restore(self) -> None:
        """Put the values back."""
        for store, copies in zip(self._stores, self._copies):
            for buffer, data in zip(store.buffers.values(), copies):
                np.copyto(buffer.data, data)
            store.push()
