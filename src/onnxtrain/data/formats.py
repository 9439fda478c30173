"""What a kind of file must be able to do to be streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

Array = npt.NDArray[Any]
Block = dict[str, Array]
"""Some consecutive rows: arrays of equal length, by column."""

LARGEST_CHUNK = 2**31
"""Bytes that may be read at once, if nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a file that are read from one place on.

    Attributes:
        file: number of the file.
        place: where it is there: the number of a row group, or a position in bytes.
        rows: how many rows.
        first: number of the first one in the file.
    """

    file: int
    place: int
    rows: int
    first: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns of a chunk.

    Attributes:
        columns: to be read; None for all.
        skip: rows at its begin that are left out.
        size: rows that come at once, at most.
    """

    columns: Sequence[str] | None = None
    skip: int = 0
    size: int = 4096


class Format(ABC):
    """A kind of file: where its chunks are, and how they are read.

    Args:
        largest: bytes that may be read at once.
    """

    def __init__(self, largest: int = LARGEST_CHUNK) -> None:
        self.largest = largest

    @abstractmethod
    def chunks(self, path: str) -> Iterator[tuple[int, int]]:
        """Place and number of rows of every chunk, without reading the rows where possible."""

    @abstractmethod
    def blocks(self, path: str, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Rows of a chunk."""

    def finish(self, block: Block) -> Block:
        """Rows as they are used; called for each batch, so that what waits may stay packed."""
        return block

    def check_columns(self, path: str, names: Sequence[str], selection: Selection) -> list[str]:
        """The columns to read; an error if the file lacks one."""
        if selection.columns is None:
            return list(names)
        missing = [n for n in selection.columns if n not in names]
        if missing:
            listed = ", ".join(map(repr, names[:12])) + (" …" if len(names) > 12 else "")
            raise DataError(
                f"{path!r} has no column {missing[0]!r}. It has {listed}: name the columns with "
                "columns={input: column}, or rename them."
            )
        return list(selection.columns)

    def check_size(self, path: str, what: str, size: int, remedy: str) -> None:
        """Refuse a part that is too large to be read at once."""
        if size > self.largest:
            raise DataError(
                f"{path!r}: {what} takes {size} bytes, and {self.largest} are read at once. "
                f"{remedy}, or allow more with largest_chunk."
            )


def length(block: Block) -> int:
    """Rows of a block."""
    return len(next(iter(block.values()))) if block else 0


def cut(block: Block, start: int, stop: int) -> Block:
    """Some of the rows."""
    return {name: values[start:stop] for name, values in block.items()}


def join(blocks: Sequence[Block]) -> Block:
    """Blocks one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    for other in blocks[1:]:
        if other.keys() != first.keys():
            differ = sorted(first.keys() ^ other.keys())
            raise DataError(
                f"Some rows have the column {differ[0]!r} and others have not. All files need the "
                "same columns; columns= chooses some of them."
            )
    joined = {}
    for name in first:
        parts = [block[name] for block in blocks]
        if len({p.shape[1:] for p in parts}) > 1:
            shapes = sorted({str(p.shape[1:]) for p in parts})
            raise DataError(
                f"The column {name!r} has rows of different shapes, {' and '.join(shapes[:3])}. "
                "All rows of a column need the same."
            )
        joined[name] = np.concatenate(parts)
    return joined
