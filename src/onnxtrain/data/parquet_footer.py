"""The sizes of a parquet file's columns, read from its footer without pyarrow.

pyarrow 26 ends the process when it is asked for the entry of a column and does not like what is
there (an exception of C++ that nobody catches), so it is not asked. A footer is a struct in
Thrift's compact form: fields follow one another, each with its number and type, until a stop. All
but the few fields that are wanted are passed over, every length is checked against the bytes that
are left, and whatever does not fit is a ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

STOP, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = 0, 3, 7, 8, 9, 10, 11, 12, 13
BOOLEANS, NUMBERS = (1, 2), (4, 5, 6)
LENGTHS = {BYTE: 1, DOUBLE: 8, UUID: 16}
"""Types of a fixed length."""
DEEPEST = 32
"""Structs within structs; a footer has eight."""
MAGIC = b"PAR1"

ROW_GROUPS, COLUMNS, ABOUT, PATH, UNCOMPRESSED = 4, 1, 3, 3, 6
"""Fields of the file, a row group, a column, and twice of what is told about a column."""


def column_sizes(file: BinaryIO, group: int) -> Iterator[tuple[list[str], int]]:
    """Path and uncompressed size of every column of a row group.

    Args:
        file: an open parquet file.
        group: number of the row group.
    """
    footer = Compact(_footer(file))
    for field, kind in footer.fields():
        if field != ROW_GROUPS:
            footer.skip(kind)
            continue
        for number, element in enumerate(footer.elements(kind)):
            if number == group:
                yield from _columns(footer, element)
                return
            footer.skip(element)


def _columns(footer: Compact, kind: int) -> Iterator[tuple[list[str], int]]:
    for field, inner in footer.fields(kind):
        if field != COLUMNS:
            footer.skip(inner)
            continue
        for element in footer.elements(inner):
            yield _column(footer, element)


def _column(footer: Compact, kind: int) -> tuple[list[str], int]:
    path: list[str] = []
    size = 0
    for field, inner in footer.fields(kind):
        if field != ABOUT:
            footer.skip(inner)
            continue
        for detail, told in footer.fields(inner):
            if detail == PATH:
                path = [footer.text(element) for element in footer.elements(told)]
            elif detail == UNCOMPRESSED:
                size = footer.number(told)
            else:
                footer.skip(told)
    return path, size


def _footer(file: BinaryIO) -> bytes:
    """The bytes between the pages and the last eight, which tell how many these are."""
    end = file.seek(0, os.SEEK_END)
    if end < 12:
        raise ValueError("it has no footer")
    file.seek(end - 8)
    ending = file.read(8)
    length = int.from_bytes(ending[:4], "little")
    if ending[4:] != MAGIC or length > end - 12:
        raise ValueError("its footer is not where the end of the file says")
    file.seek(end - 8 - length)
    return file.read(length)


class Compact:
    """A reader of Thrift's compact form, which stands somewhere in the bytes.

    Args:
        content: all of them.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.depth = content, 0, 0

    def fields(self, kind: int = STRUCT) -> Iterator[tuple[int, int]]:
        """Numbers and types of a struct's fields; each is to be read or skipped before the next."""
        self._expect(kind == STRUCT)
        self.depth += 1
        self._expect(self.depth <= DEEPEST)
        field = 0
        while header := self._byte():
            field = field + (header >> 4) if header >> 4 else self._signed()
            yield field, header & 15
        self.depth -= 1

    def elements(self, kind: int) -> Iterator[int]:
        """The type of a list's elements, once for each, which is to be read or skipped."""
        self._expect(kind in (LIST, SET))
        header = self._byte()
        count = header >> 4 if header >> 4 < 15 else self._unsigned()
        self._expect(count <= len(self.content) - self.at)
        for _ in range(count):
            yield BYTE if header & 15 in BOOLEANS else header & 15

    def number(self, kind: int) -> int:
        """An integer."""
        self._expect(kind in NUMBERS)
        return self._signed()

    def text(self, kind: int) -> str:
        """A text."""
        self._expect(kind == BINARY)
        return self._take(self._unsigned()).decode("utf-8", "replace")

    def skip(self, kind: int) -> None:
        """Pass over a value."""
        if kind in BOOLEANS:  # the type is the value
            return
        if kind in NUMBERS:
            self._unsigned()
        elif kind == BINARY:
            self._take(self._unsigned())
        elif kind in (LIST, SET):
            self._skip_all(self.elements(kind))
        elif kind == STRUCT:
            self._skip_all(inner for _, inner in self.fields())
        elif kind == MAP:
            self._skip_map()
        else:
            self._expect(kind in LENGTHS)
            self._take(LENGTHS[kind])

    def _skip_all(self, kinds: Iterator[int]) -> None:
        self.depth += 1
        self._expect(self.depth <= DEEPEST)
        for kind in kinds:
            self.skip(kind)
        self.depth -= 1

    def _skip_map(self) -> None:
        count = self._unsigned()
        if count:
            self._expect(count <= len(self.content) - self.at)
            kinds = self._byte()
            both = [BYTE if kind in BOOLEANS else kind for kind in (kinds >> 4, kinds & 15)]
            self._skip_all(kind for _ in range(count) for kind in both)

    def _take(self, length: int) -> bytes:
        self._expect(length <= len(self.content) - self.at)
        self.at += length
        return self.content[self.at - length : self.at]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            self._expect(shift < 70)
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

    def _expect(self, sound: bool) -> None:
        if not sound:
            raise ValueError(f"its footer is damaged at byte {self.at} of {len(self.content)}")
