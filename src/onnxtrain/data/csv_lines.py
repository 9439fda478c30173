"""Tables as text: a chunk is some megabytes of whole lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .files import reading
from .formats import LARGEST_CHUNK, Block, Chunk, Format, Selection

Array = npt.NDArray[Any]
CHUNK = 2**22
"""Bytes of a chunk, up to the end of a line."""
LONGEST_LINE = 2**24
MOST_LINES = 2**20
"""Of a row with line breaks between quotes."""
LOOKED_AT = 1000
"""Rows from which follows whether a column is one of numbers."""
REMEDY = "It must be text in UTF-8 with one line per row, and a first line with names."
MARK = b"\xef\xbb\xbf"


class Csv(Format):
    """Text with one row per line, and the names of the columns in the first.

    A column whose cells are numbers in the first rows of the first file is one of numbers
    (float64, an empty cell is NaN); all others are text.
    """

    def __init__(self, largest: int = LARGEST_CHUNK) -> None:
        super().__init__(largest)
        self._are_numbers: dict[str, bool] = {}
        self._looked = 0
        self._heads: dict[str, tuple[list[str], str]] = {}

    def chunks(self, path: str) -> Iterator[tuple[int, int]]:
        """Where some megabytes of lines begin, and how many rows they are."""
        with reading(path, "a csv file", REMEDY) as file:
            head = file.readline(LONGEST_LINE)
            names, separator = self._head(path, head)
            place, rows = file.tell(), 0
            for start, line in lines(file, path):
                if start - place >= CHUNK and rows:
                    yield place, rows
                    place, rows = start, 0
                if not line.strip():
                    continue
                if self._looked < LOOKED_AT:
                    self._look(names, separator, line)
                rows += 1
            if rows:
                yield place, rows

    def blocks(self, path: str, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Rows as columns of numbers and text."""
        names, separator = self._heads[path]
        chosen = self.check_columns(path, names, selection)
        waiting: list[list[str]] = []
        number = 0
        with reading(path, "a csv file", REMEDY) as file:
            file.seek(chunk.place)
            for _, line in lines(file, path):
                if not line.strip():
                    continue
                number += 1
                if number <= selection.skip:
                    continue
                waiting.append(_cells(line, separator, names, path, chunk.first + number - 1))
                if len(waiting) == selection.size or number == chunk.rows:
                    first = chunk.first + number - len(waiting)
                    yield self._block(waiting, names, chosen, path, first)
                    waiting = []
                if number == chunk.rows:
                    return

    def _head(self, path: str, head: bytes) -> tuple[list[str], str]:
        text = head.removeprefix(MARK).decode("utf-8")
        separator = max(",;\t", key=text.count)
        names = [n.strip() for n in next(csv.reader([text], delimiter=separator), [])]
        if not any(names):
            raise DataError(f"{path!r} is empty. {REMEDY}")
        if len(set(names)) < len(names):
            raise DataError(f"{path!r} has two columns of one name in its first line.")
        self._heads[path] = (names, separator)
        return names, separator

    def _look(self, names: Sequence[str], separator: str, line: bytes) -> None:
        """Columns are of numbers until one of the first rows has something else."""
        cells = next(csv.reader([line.decode("utf-8")], delimiter=separator), [])
        for name, cell in zip(names, cells):
            self._are_numbers[name] = self._are_numbers.get(name, True) and _is_number(cell)
        self._looked += 1

    def _block(
        self,
        rows: Sequence[Sequence[str]],
        names: Sequence[str],
        chosen: Sequence[str],
        path: str,
        first: int,
    ) -> Block:
        block: Block = {}
        for name in chosen:
            at = names.index(name)
            cells = [row[at].strip() for row in rows]
            block[name] = (
                _numbers(cells, name, path, first)
                if self._are_numbers.get(name)
                else np.array(cells, np.str_)
            )
        return block


def lines(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Where each row begins, and its text; a line break between quotes ends no row."""
    at = start = file.tell()
    waiting, count = bytearray(), 0
    is_open = False
    while line := file.readline(LONGEST_LINE):
        count += 1
        if len(line) == LONGEST_LINE or at - start > LONGEST_LINE or count > MOST_LINES:
            raise DataError(f"{path!r}: the row at byte {start} has no end. {REMEDY}")
        at += len(line)
        is_open ^= line.count(b'"') % 2 == 1
        if is_open:
            waiting += line
            continue
        yield start, bytes(waiting) + line if waiting else line
        start, waiting, count = at, bytearray(), 0
    if waiting:
        raise DataError(f"{path!r}: quotes that open at byte {start} are not closed.")


def _cells(line: bytes, separator: str, names: Sequence[str], path: str, row: int) -> list[str]:
    text = io.StringIO(line.decode("utf-8"), newline="")
    cells = next(csv.reader(text, delimiter=separator), [])
    if len(cells) != len(names):
        raise DataError(
            f"Row {row} of {path!r} has {len(cells)} cells, and there are {len(names)} columns: "
            "complete the line or remove it."
        )
    return cells


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _numbers(cells: Sequence[str], name: str, path: str, first: int) -> Array:
    try:
        return np.array([float(c or "nan") for c in cells], np.float64)
    except ValueError:
        row = next(i for i, c in enumerate(cells) if not _is_number(c))
        raise DataError(
            f"The column {name!r} of {path!r} holds numbers in the first rows, and {cells[row]!r} "
            f"in row {first + row}. Correct it, or leave the column out."
        ) from None
