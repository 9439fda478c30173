"""Each rank's part of every batch: together they are the batch a single process would take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.loop.batches import ArrayBatches, Batches
from ..runtime.loop.batches import Part as Part

Array = npt.NDArray[Any]


def share(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Start and stop of a rank's part of `rows` rows; parts differ by one row at most.

    The first ranks get the larger parts, so rank 0 has rows whenever there are any.

    Example:
        >>> [share(10, rank, 4) for rank in range(4)]
        [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    part, rest = divmod(rows, size)
    start = rank * part + min(rank, rest)
    return start, start + part + (rank < rest)


class ShardedBatches(Batches):
    """Cuts every batch of a source into one part per rank.

    The order of the rows is that of the source, whatever the number of ranks: each row is seen
    once per epoch, none is repeated to make parts equal, and a run can be resumed with
    another number of ranks. All ranks must have the same data (an iterable source must give
    all of them the same batches).
    """

    def __init__(self, source: Batches, rank: int, size: int) -> None:
        self.source, self.rank, self.count = source, rank, size
        self.size = source.size

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """This rank's parts of one pass."""
        if isinstance(self.source, ArrayBatches):
            yield from self._rows(self.source, number, skip)
            return
        for values in self.source.epoch(number, skip):
            total = _rows(values)
            start, stop = share(total, self.rank, self.count)
            yield Part((_cut(v, total, start, stop) for v in values), stop - start, total)

    def _rows(self, source: ArrayBatches, number: int, skip: int) -> Iterator[Part]:
        """As `ArrayBatches` does, without gathering the rows of other ranks."""
        order = source.order(number)
        for index in range(skip, source.size or 0):
            first = index * source.batch_size
            total = min(source.batch_size, source.rows - first)
            start, stop = share(total, self.rank, self.count)
            chosen: Any = slice(first + start, first + stop)
            if order is not None:
                chosen = order[chosen]
            yield Part((a[chosen] for a in source.arrays), stop - start, total)


def _rows(values: list[Any]) -> int:
    return len(values[0]) if np.ndim(values[0]) else 1


def _cut(value: Any, total: int, start: int, stop: int) -> Any:
    """A value without rows of its own (a scalar, say) goes to every rank whole."""
    has_rows = np.ndim(value) and len(value) == total
    return value[start:stop] if has_rows else value
