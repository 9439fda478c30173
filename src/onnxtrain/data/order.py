"""The order in which the rows of a stream come: arithmetic, without the rows.

Chunks are put into a new order in each epoch, and the rows, in this order of the chunks, are cut
into *lanes* of equal length (a row more or less). Row p of the epoch is the next one of lane p mod
L. In each lane the rows of a *window* are shuffled. So the order follows from the seed, the number
of the epoch and the rows of the chunks: what a position has to say is one number, whichever process
reads which lanes, and however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Order:
    """What decides about the order.

    Attributes:
        rows: of each chunk.
        lanes: that are read side by side.
        window: rows of a lane that are shuffled with each other.
        shuffle: whether anything is.
        seed: from which all follows.
    """

    rows: Sequence[int]
    lanes: int
    window: int
    shuffle: bool
    seed: int

    @property
    def total(self) -> int:
        """Rows of an epoch."""
        return sum(self.rows)

    def chunks(self, epoch: int) -> Array:
        """The numbers of the chunks in their order."""
        if not self.shuffle:
            return np.arange(len(self.rows))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))

    def shuffled(self, epoch: int, lane: int, window: int, rows: int) -> Array | None:
        """The order of the rows of a window; None for as they are."""
        if not self.shuffle:
            return None
        return np.random.default_rng([self.seed, epoch, lane, window]).permutation(rows)

    def lane_rows(self, lane: int, position: int) -> int:
        """How many of the first `position` rows of an epoch are of a lane.

        Example:
            >>> order = Order([10], 4, 2, True, 0)
            >>> [order.lane_rows(lane, 6) for lane in range(4)]
            [2, 2, 1, 1]
        """
        return max(0, -(-(position - lane) // self.lanes))


@dataclass(frozen=True)
class Span:
    """Rows of a chunk that are of one lane."""

    chunk: int
    start: int
    stop: int


def spans(order: Order, epoch: int, lane: int, skip: int) -> Iterator[Span]:
    """What a lane reads, behind its first `skip` rows.

    Example:
        >>> list(spans(Order([4, 4], 2, 1, False, 0), 0, 1, 1))
        [Span(chunk=1, start=1, stop=4)]
    """
    total = order.total
    before = sum(order.lane_rows(other, total) for other in range(lane))
    start, stop = before + skip, before + order.lane_rows(lane, total)
    at = 0
    for chunk in order.chunks(epoch).tolist():
        rows = order.rows[chunk]
        low, high = max(start - at, 0), min(stop - at, rows)
        if low < high:
            yield Span(chunk, low, high)
        at += rows
        if at >= stop:
            return
