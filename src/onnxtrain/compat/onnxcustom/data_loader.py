"""Batches of rows, shuffled anew in every pass over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from .base import Array
from .devices import get_ort_device, numpy_to_ort_value, ort_device_to_string

Batch = tuple[Array, ...]


class OrtDataLoader:
    """Draws batches of a dataset.

    Every pass visits each row once, in a new random order (or in the given order with
    ``random_iter=False``); the last batch holds what is left.

    Args:
        X: features, one observation per row, any number of dimensions.
        y: expected values, one row per observation; a vector becomes one column.
        sample_weight: one weight per observation.
        batch_size: rows per batch.
        device: where OrtValues are made.
        random_iter: shuffle.
        random_state: a seed or a numpy Generator; None draws a seed from numpy's global state.

    Example:
        >>> loader = OrtDataLoader(np.arange(5.0), np.arange(5.0), batch_size=2, random_iter=False)
        >>> [x.tolist() for x, y in loader.iter_numpy()]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        batch_size: int = 20,
        device: Any = "cpu",
        random_iter: bool = True,
        random_state: Any = None,
    ) -> None:
        X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
        if y.ndim == 1:
            y = y.reshape(-1, 1)
        weight = None if sample_weight is None else np.ascontiguousarray(sample_weight).reshape(-1)
        for name, array in (("y", y), ("sample_weight", weight)):
            if array is not None and len(array) != len(X):
                raise InputError(f"X has {len(X)} rows and {name} has {len(array)}.")
        if len(X) == 0:
            raise InputError("There are no observations in X.")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        self.X_np, self.y_np, self.sample_weight_np = X, y, weight
        self.batch_size = min(int(batch_size), len(X))
        self._device = ort_device_to_string(get_ort_device(device))
        self.random_iter = random_iter
        self.rng = generator(random_state)

    @property
    def device(self) -> Any:
        """Where OrtValues are made."""
        return get_ort_device(self._device)

    def __len__(self) -> int:
        return len(self.X_np)

    def __repr__(self) -> str:
        return (
            f"OrtDataLoader(..., ..., batch_size={self.batch_size!r}, device={self._device!r}, "
            f"random_iter={self.random_iter!r})"
        )

    @property
    def desc(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of the features, of the expected values and of the weights, if any."""
        return [(array.shape, array.dtype) for array in self.data_np]

    @property
    def data_np(self) -> Batch:
        """All the data, in its own order."""
        parts = (self.X_np, self.y_np, self.sample_weight_np)
        return tuple(a for a in parts if a is not None)

    @property
    def data_ort(self) -> tuple[Any, ...]:
        """The same as OrtValues."""
        return tuple(numpy_to_ort_value(a, self.device) for a in self.data_np)

    def epoch(self) -> Batch:
        """All the data in the order of the next pass."""
        if not self.random_iter:
            return self.data_np
        order = self.rng.permutation(len(self))
        return tuple(a[order] for a in self.data_np)

    def starts(self) -> range:
        """First rows of the batches."""
        return range(0, len(self), self.batch_size)

    def by_size(self) -> list[tuple[int, range]]:
        """The batches by their size: (rows, first rows of the batches)."""
        full, size = len(self) // self.batch_size, self.batch_size
        batches = [(size, range(0, full * size, size))]
        left = len(self) - full * size
        return [*batches, (left, range(full * size, len(self), size))] if left else batches

    def iter_numpy(self) -> Iterator[Batch]:
        """Batches as arrays: (X, y), or (X, y, weight)."""
        data, size = self.epoch(), self.batch_size
        for start in self.starts():
            yield tuple(a[start : start + size] for a in data)

    def iter_ortvalue(self) -> Iterator[tuple[Any, ...]]:
        """Batches as OrtValues."""
        for batch in self.iter_numpy():
            yield tuple(numpy_to_ort_value(a, self.device) for a in batch)

    def iter_bind(self, bind: Any, names: Sequence[str]) -> Iterator[int]:
        """Bind each batch to inputs of a session without copying it; gives the batch's size.

        Args:
            bind: an `onnxruntime.IOBinding` or its `_iobinding`.
            names: names of the inputs for X, y and the weights.
        """
        binding = getattr(bind, "_iobinding", bind)
        data, size, device = self.epoch(), self.batch_size, self.device
        if len(names) != len(data):
            raise InputError(f"There are {len(data)} arrays for {len(names)} names {list(names)}.")
        host = self._device == "cpu"
        values = [None if host else numpy_to_ort_value(a, device) for a in data]
        for start in self.starts():
            rows = min(size, len(self) - start)
            for name, array, value in zip(names, data, values):
                base = array.ctypes.data if value is None else value.data_ptr()
                address = base + start * array.strides[0]
                shape = (rows, *array.shape[1:])
                binding.bind_input(name, device, array.dtype.type, shape, address)
            yield rows


def generator(seed: Any) -> np.random.Generator:
    """A Generator from a seed, a RandomState, a Generator, or numpy's global state."""
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is None:
        seed = np.random.randint(np.iinfo(np.int32).max)  # noqa: NPY002 - np.random.seed counts
    elif isinstance(seed, np.random.RandomState):
        seed = seed.randint(np.iinfo(np.int32).max)
    return np.random.default_rng(seed)
