"""Arrow IPC, as a file (Feather too) or as a stream: a chunk is a record batch.

Both begin with the same messages: a schema, dictionaries, record batches. They are walked without
reading what is in them; to read a batch, the schema, the dictionaries before it and the batch are
put together as a stream of their own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..errors import DataError, MissingPackageError
from .arrow_columns import to_arrays
from .files import reading
from .formats import LARGEST_CHUNK, Block, Chunk, Format, Selection

MAGIC, CONTINUES, END = b"ARROW1\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\0"
PREFIX = 8
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
"""Kinds of messages, as Message.fbs of Arrow numbers them."""
REMEDY = "Write it again, for example with pyarrow.ipc.new_file."
MOST_MESSAGES = 10_000_000


@dataclass(frozen=True)
class Message:
    """A message of a file: its kind, its place, its size with its body, and its rows."""

    kind: int
    place: int
    size: int
    rows: int


@dataclass
class Layout:
    """What must stand before a batch."""

    schema: Message | None = None
    dictionaries: list[Message] = field(default_factory=list)


class Arrow(Format):
    """Files of Apache Arrow's interprocess format."""

    def __init__(self, largest: int = LARGEST_CHUNK) -> None:
        super().__init__(largest)
        self._layouts: dict[str, Layout] = {}

    def chunks(self, path: str) -> Iterator[tuple[int, int]]:
        """Record batches."""
        layout = Layout()
        with reading(path, "Arrow", REMEDY) as file:
            for message in messages(file, path):
                if message.kind == SCHEMA:
                    layout.schema = message
                elif message.kind == DICTIONARY:
                    layout.dictionaries.append(message)
                elif message.kind == RECORD_BATCH:
                    yield message.place, message.rows
        if layout.schema is None:
            raise DataError(f"{path!r} cannot be read as Arrow (it has no schema). {REMEDY}")
        self._layouts[path] = layout

    def blocks(self, path: str, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Rows of a record batch."""
        ipc = _ipc()
        layout = self._layouts[path]
        assert layout.schema is not None
        with reading(path, "Arrow", REMEDY) as file:
            message = message_at(file, path, chunk.place)
            before = [d for d in layout.dictionaries if d.place < chunk.place]
            needed = [layout.schema, *before, message]
            self.check_size(
                path, f"the record batch at byte {chunk.place}", sum(m.size for m in needed),
                "Write it with smaller batches",
            )  # fmt: skip
            content = b"".join(_content(file, m) for m in needed) + END
            names = ipc.open_stream(content).schema.names
            chosen = self.check_columns(path, names, selection)
            options = ipc.IpcReadOptions(
                included_fields=[names.index(n) for n in chosen], use_threads=False
            )
            batch = ipc.open_stream(content, options=options).read_next_batch()
        if batch.num_rows != chunk.rows:
            raise DataError(
                f"{path!r} has changed or is damaged: the batch at byte {chunk.place} has "
                f"{batch.num_rows} rows instead of {chunk.rows}."
            )
        for start in range(selection.skip, chunk.rows, selection.size):
            rows = batch.slice(start, selection.size).select(chosen)
            yield to_arrays(rows, path, chunk.first + start)


def _ipc() -> Any:
    try:
        import pyarrow.ipc
    except ImportError:
        raise MissingPackageError("pyarrow", "Reading Arrow files", "parquet") from None
    return pyarrow.ipc


def messages(file: BinaryIO, path: str) -> Iterator[Message]:
    """All messages in their order."""
    size = os.fstat(file.fileno()).st_size
    at = len(MAGIC) if file.read(len(MAGIC)) == MAGIC else 0
    for _ in range(MOST_MESSAGES):
        if at == size:
            return  # a stream whose end was not marked
        message = message_at(file, path, at)
        if message.kind == 0:
            return
        yield message
        at += message.size
    raise DataError(f"{path!r} has more than {MOST_MESSAGES} batches: write larger ones.")


def message_at(file: BinaryIO, path: str, place: int) -> Message:
    """The message that begins at a byte; of kind 0 if the end is marked there."""
    file_size = os.fstat(file.fileno()).st_size
    file.seek(place)
    start = file.read(PREFIX)
    if len(start) < PREFIX or start[:4] != CONTINUES:  # before Arrow 0.15 (2019) these were missing
        raise DataError(f"{path!r} cannot be read as Arrow (no message at byte {place}). {REMEDY}")
    (length,) = struct.unpack_from("<i", start, 4)
    if length == 0:
        return Message(0, place, PREFIX, 0)
    if not 0 < length <= file_size - place - PREFIX:
        raise DataError(
            f"{path!r} cannot be read as Arrow (at byte {place} it says that {length} bytes "
            f"follow). {REMEDY}"
        )
    file.seek(place + PREFIX)
    kind, rows, body = _header(file.read(length), path, place)
    if not (0 <= rows < 2**62 and 0 <= body <= file_size - place - PREFIX - length):
        raise DataError(
            f"{path!r} cannot be read as Arrow (the message at byte {place} says that it has "
            f"{rows} rows in {body} bytes). {REMEDY}"
        )
    return Message(kind, place, PREFIX + length + body, rows)


def _header(metadata: bytes, path: str, place: int) -> tuple[int, int, int]:
    """Kind, rows and size of the body, from the table `Message` of Message.fbs."""
    try:
        message = _Table.root(metadata)
        kind = message.number(1, "<B")
        rows = 0
        if kind == RECORD_BATCH:
            rows = message.table(2).number(0, "<q")
        return kind, rows, message.number(3, "<q")
    except (struct.error, IndexError, ValueError) as error:
        raise DataError(
            f"{path!r} cannot be read as Arrow (the message at byte {place} is damaged). {REMEDY}"
        ) from error


class _Table:
    """A table of a flatbuffer; a place outside of the buffer raises struct.error."""

    def __init__(self, buffer: bytes, place: int) -> None:
        if place < 0:
            raise ValueError("outside")
        self.buffer, self.place = buffer, place
        self.fields = place - self._read("<i", place)
        if self.fields < 0:
            raise ValueError("outside")

    @classmethod
    def root(cls, buffer: bytes) -> _Table:
        return cls(buffer, struct.unpack_from("<I", buffer, 0)[0])

    def _read(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self.buffer, place)[0])

    def _offset(self, number: int) -> int:
        """Where a field is, from the begin of the table; 0 if it is not there."""
        entry = 4 + 2 * number
        return self._read("<H", self.fields + entry) if entry < self._read("<H", self.fields) else 0

    def number(self, number: int, form: str) -> int:
        offset = self._offset(number)
        return self._read(form, self.place + offset) if offset else 0

    def table(self, number: int) -> _Table:
        offset = self._offset(number)
        if not offset:
            raise ValueError("no such table")
        place = self.place + offset
        return _Table(self.buffer, place + self._read("<I", place))


def _content(file: BinaryIO, message: Message) -> bytes:
    file.seek(message.place)
    return file.read(message.size)
