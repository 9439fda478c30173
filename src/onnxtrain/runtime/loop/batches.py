"""Batches from arrays, dicts, iterables or torch DataLoaders, in an order that can be resumed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...errors import InputError, OnnxTrainWarning, outside_level

Array = npt.NDArray[Any]


class Batches:
    """A source of batches; each is a list of arrays in the order of the model's inputs."""

    size: int | None = None
    """Batches per pass, if known."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """The batches of one pass, the first `skip` of them left out."""
        raise NotImplementedError

    def part(self, rank: int, count: int, *, ordered: bool) -> Batches | None:
        """What one of several processes trains on, as `Part`, without the rows of the others.

        Args:
            rank: number of the process.
            count: of processes.
            ordered: whether the order of the rows matters.

        Returns:
            None if batches can only be made whole and then be cut.
        """
        del rank, count, ordered
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint remembers beside the seed, the epoch and the batch: JSON-ready."""
        return {}

    def check_state(self, saved: Mapping[str, Any]) -> None:
        """Refuse to go on from a checkpoint that remembers something else."""


class Part(list[Any]):
    """A process's part of a batch: arrays in the order of the model's inputs.

    Args:
        values: the arrays.
        rows: rows of this part, may be 0.
        total: rows of the batch, over all processes.
    """

    def __init__(self, values: Iterable[Any], rows: int, total: int) -> None:
        super().__init__(values)
        self.rows, self.total = rows, total


@runtime_checkable
class DataSet(Protocol):
    """Data that make their own batches, such as `onnxtrain.data.Stream`."""

    def batches(
        self,
        names: Sequence[str],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> Batches:
        """Batches in the order of the model's inputs."""


class ArrayBatches(Batches):
    """Rows of arrays of equal length, in a new order each epoch.

    The order of epoch *e* follows from (seed, e) alone, so a resumed run needs no more
    than the numbers of the epoch and the batch. Full batches reuse one set of buffers: use a batch
    before asking for the next.
    """

    def __init__(
        self, arrays: Sequence[Array], batch_size: int, shuffle: bool, seed: int, drop_last: bool
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        lengths = {len(a) for a in arrays}
        if len(lengths) != 1:
            raise InputError(
                f"The arrays have different numbers of rows: {[len(a) for a in arrays]}."
            )
        (self.rows,) = lengths
        if not self.rows:
            raise InputError("The data are empty: no rows.")
        self.arrays, self.batch_size = list(arrays), min(batch_size, self.rows)
        self.shuffle, self.seed = shuffle, seed
        whole, rest = divmod(self.rows, self.batch_size)
        self.size = whole + (1 if rest and not drop_last else 0)
        self._buffers: list[Array] | None = None

    def check_whole(self, size: int, *, drop_last: bool) -> None:
        """Refuse batches of another size; say which rows are left out unless that is meant."""
        if self.batch_size != size:
            have = f"{self.rows} in all" if self.rows < size else str(self.batch_size)
            raise InputError(
                f"The model takes batches of exactly {size} rows, and here are {have}. "
                f"Give batch_size={size} and at least as many rows, or export the model with a "
                "dynamic first dimension."
            )
        rest = self.rows % size
        if rest and not drop_last:
            warnings.warn(
                f"The model takes batches of exactly {size} rows, so {rest} of {self.rows} are "
                "left out of each epoch, others in each if they are shuffled. drop_last=True says "
                "that this is meant.",
                OnnxTrainWarning,
                stacklevel=outside_level(),
            )

    def order(self, number: int) -> Array | None:
        """The row numbers of an epoch in their order; None means as they are."""
        if not self.shuffle:
            return None
        return np.random.default_rng([self.seed, number]).permutation(self.rows)

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """The batches of one pass."""
        order = self.order(number)
        for index in range(skip, self.size or 0):
            start = index * self.batch_size
            stop = min(start + self.batch_size, self.rows)
            if order is None:
                yield [a[start:stop] for a in self.arrays]
            else:
                yield self._gather(order[start:stop])

    def _gather(self, rows: Array) -> list[Array]:
        if len(rows) < self.batch_size:
            return [a[rows] for a in self.arrays]
        if self._buffers is None:
            self._buffers = [
                np.empty((self.batch_size, *a.shape[1:]), a.dtype) for a in self.arrays
            ]
        for array, buffer in zip(self.arrays, self._buffers):
            np.take(array, rows, axis=0, out=buffer, mode="clip")  # "raise" would buffer
        return self._buffers


class IterableBatches(Batches):
    """Batches that something else makes; it is iterated anew in each epoch."""

    def __init__(self, source: Iterable[Any], names: Sequence[str]) -> None:
        self.source, self.names = source, list(names)
        try:
            self.size = len(source)  # type: ignore[arg-type]
        except TypeError:
            self.size = None
        self._passes = 0

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """The batches of one pass; to resume, those before are made and thrown away."""
        del number
        iterator = iter(self.source)
        if self._passes and iterator is self.source:
            raise InputError(
                "The data are a generator, which can be iterated once: give a list, a DataLoader "
                "or an object with __iter__ for more than one epoch."
            )
        self._passes += 1
        for index, batch in enumerate(iterator):
            if index >= skip:
                yield ordered(batch, self.names)


def make_batches(
    data: Any,
    names: Sequence[str],
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
) -> Batches:
    """Recognise what `data` is: a tuple, dict or single array is a data set, the rest batches."""
    if isinstance(data, Batches):
        return data
    if isinstance(data, DataSet):
        return data.batches(names, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    if isinstance(data, Mapping):
        check_names(data, names)
        arrays = [to_array(data[n]) for n in names]
        return ArrayBatches(arrays, batch_size, shuffle, seed, drop_last)
    if is_array(data):
        return ArrayBatches([to_array(data)], batch_size, shuffle, seed, drop_last)
    if isinstance(data, tuple):
        if not data:
            raise InputError("The data are an empty tuple.")
        return ArrayBatches([to_array(a) for a in data], batch_size, shuffle, seed, drop_last)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return IterableBatches(data, names)
    raise InputError(
        f"Data of type {type(data).__name__} are not understood. Give a tuple or dict of arrays, "
        "or an iterable of batches (a list, a generator, a torch DataLoader)."
    )


def ordered(batch: Any, names: Sequence[str]) -> list[Any]:
    """One batch as a list in the order of the model's inputs."""
    if isinstance(batch, Mapping):
        check_names(batch, names)
        return [to_array(batch[n]) for n in names]
    if isinstance(batch, tuple | list):
        return [to_array(v) for v in batch]
    return [to_array(batch)]


def check_names(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse data that lack one of the model's inputs."""
    missing = [n for n in names if n not in values]
    if missing:
        raise InputError(f"The data have no {missing}; the model takes {', '.join(names)}.")


def is_array(value: Any) -> bool:
    """Whether something is an array or a tensor of any library."""
    return isinstance(value, np.ndarray) or (
        hasattr(value, "shape") and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))
    )


def to_array(value: Any) -> Array:
    """A numpy array, without a copy where the library allows it."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "cpu"):
        value = value.cpu()
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)
