"""The protobuf wire format: just enough to read a message, change it and write it back.

A device that only trains has no `onnx` package. What the runtime must change in a model file
(outputs, seeds, initializers) needs five field numbers and this codec, nothing more.

A message is kept as the list of its fields, in file order. Bytes stay views into the file, so a
model with large weights is never copied before it is written, and what is not understood is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ...errors import ModelFileError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
COPIED_BYTES = 4096
"""Fields up to this size are copied; larger ones are views of what was read."""


@runtime_checkable
class Later(Protocol):
    """Bytes that are read when they are written, so that they need not be in memory before."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self) -> bytes:
        """The bytes."""


Chunk: TypeAlias = "bytes | memoryview"
Value: TypeAlias = "int | bytes | memoryview | Message | Later"
"""An integer (VARINT), raw bytes (the others), or a message that has been opened."""
MAX_FIELDS = 100_000
"""Of a model beside its graph: operator sets, functions, metadata."""


class Message:
    """One protobuf message: its fields as ``(number, wire type, value)``, in file order."""

    __slots__ = ("fields",)

    def __init__(self, fields: list[tuple[int, int, Value]] | None = None) -> None:
        self.fields = fields if fields is not None else []

    @classmethod
    def parse(cls, data: Chunk, limit: int | None = None) -> Message:
        """Read a message; a truncated or impossible field is a `ModelFileError`.

        Args:
            data: its bytes.
            limit: the most fields that it may have.
        """
        view: Chunk = (
            data if isinstance(data, bytes) and len(data) <= COPIED_BYTES else memoryview(data)
        )
        fields: list[tuple[int, int, Value]] = []
        at, end = 0, len(view)
        most = end if limit is None else limit
        while at < end:
            if len(fields) >= most:
                raise ModelFileError(f"a message of more than {limit} fields")
            key, at = _varint(view, at)
            number, wire = key >> 3, key & 7
            value: Value
            if number == 0:
                raise ModelFileError("damaged protobuf data: a field with the number 0")
            if wire == VARINT:
                value, at = _varint(view, at)
            elif wire == BYTES:
                size, at = _varint(view, at)
                value, at = _take(view, at, size)
            elif wire in {FIXED32, FIXED64}:
                value, at = _take(view, at, 4 if wire == FIXED32 else 8)
            else:
                raise ModelFileError(f"damaged protobuf data: unknown wire type {wire}")
            fields.append((number, wire, value))
        return cls(fields)

    # --- reading ---------------------------------------------------------------------------------

    def messages(self, number: int) -> list[Message]:
        """Every submessage with this field number, opened in place: changes to it are kept."""
        submessages: list[Message] = []
        for index, (field, wire, value) in enumerate(self.fields):
            if field != number:
                continue
            if isinstance(value, Message):
                submessages.append(value)
                continue
            if not isinstance(value, bytes | memoryview) or wire != BYTES:
                raise ModelFileError(f"damaged protobuf data: field {number} is not a message")
            opened = Message.parse(value)
            self.fields[index] = (field, wire, opened)
            submessages.append(opened)
        return submessages

    def message(self, number: int) -> Message | None:
        """The last submessage with this number (the protobuf rule), or None."""
        submessages = self.messages(number)
        return submessages[-1] if submessages else None

    def values(self, number: int) -> list[Value]:
        """Every value with this field number, messages as they are: bytes if nobody opened them."""
        return [value for field, _, value in self.fields if field == number]

    def strings(self, number: int) -> list[str]:
        """Every string with this field number."""
        return [text_of(value) for field, _, value in self.fields if field == number]

    def string(self, number: int, default: str = "") -> str:
        """The last string with this number."""
        strings = self.strings(number)
        return strings[-1] if strings else default

    def integer(self, number: int, default: int = 0) -> int:
        """The last integer with this number, as a signed 64-bit value."""
        for field, wire, value in reversed(self.fields):
            if field == number:
                if wire != VARINT or not isinstance(value, int):
                    raise ModelFileError(f"damaged protobuf data: field {number} is no integer")
                return value - (1 << 64) if value >= 1 << 63 else value
        return default

    def integers(self, number: int) -> list[int]:
        """A repeated integer, packed or not, as signed 64-bit values."""
        values: list[int] = []
        for field, wire, value in self.fields:
            if field != number:
                continue
            if wire == VARINT and isinstance(value, int):
                values.append(value)
            elif wire == BYTES and isinstance(value, bytes | memoryview):
                at = 0
                while at < len(value):
                    item, at = _varint(value, at)
                    values.append(item)
            else:
                raise ModelFileError(f"damaged protobuf data: field {number} is no integers")
        return [v - (1 << 64) if v >= 1 << 63 else v for v in values]

    def has(self, number: int) -> bool:
        """Whether the field is present."""
        return any(field == number for field, _, _ in self.fields)

    # --- changing --------------------------------------------------------------------------------

    def drop(self, number: int) -> Message:
        """Remove every field with this number."""
        self.fields = [f for f in self.fields if f[0] != number]
        return self

    def add(self, number: int, value: Value | str) -> Message:
        """Append a field: an integer, a string, raw bytes or a submessage."""
        if isinstance(value, int):
            self.fields.append((number, VARINT, value & 0xFFFFFFFFFFFFFFFF))
        else:
            encoded = value.encode() if isinstance(value, str) else value
            self.fields.append((number, BYTES, encoded))
        return self

    def add_fixed32(self, number: int, value: bytes) -> Message:
        """Append a four-byte field (a float)."""
        self.fields.append((number, FIXED32, value))
        return self

    def replace(self, number: int, values: Sequence[Value | str]) -> None:
        """Put `values` where the fields with this number were (at the end if there were none)."""
        where = next((i for i, f in enumerate(self.fields) if f[0] == number), len(self.fields))
        before, after = self.fields[:where], self.fields[where:]
        self.fields = before
        for value in values:
            self.add(number, value)
        self.fields += [f for f in after if f[0] != number]

    # --- writing ---------------------------------------------------------------------------------

    def size(self) -> int:
        """Number of bytes that `chunks` gives."""
        return self.encode_into([])

    def chunks(self) -> Iterator[Chunk]:
        """The encoded message in pieces; large raw data is passed through, not copied."""
        parts: list[Chunk | Later] = []
        self.encode_into(parts)
        for part in parts:
            content: Any = part
            yield content.read() if hasattr(content, "read") else content

    def encode_into(self, parts: list[Chunk | Later]) -> int:
        """Append what the message is made of; gives the number of bytes.

        The size of a message goes before it, and is known when all that is in it has been passed:
        it is counted once, however deep the message lies.
        """
        total = 0
        for number, wire, value in self.fields:
            head = varint(number << 3 | wire)
            if isinstance(value, int):
                head += varint(value)
                parts.append(head)
            elif isinstance(value, Message):
                place = len(parts)
                parts.append(head)
                size = value.encode_into(parts)
                head += varint(size)
                parts[place] = head
                total += size
            else:
                size = len(value)
                if wire == BYTES:
                    head += varint(size)
                parts.append(head)
                parts.append(value)
                total += size
            total += len(head)
        return total

    def encode(self) -> bytes:
        """The encoded message."""
        parts: list[Any] = []
        self.encode_into(parts)
        try:
            return b"".join(parts)
        except TypeError:  # some of it is to be read now
            return b"".join(self.chunks())


def _varint(view: Chunk, at: int) -> tuple[int, int]:
    result = shift = 0
    if at < len(view) and view[at] < 0x80:  # nearly always
        return view[at], at + 1
    while True:
        if at >= len(view):
            raise ModelFileError("truncated protobuf data: the file ends inside a number")
        byte = view[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ModelFileError("damaged protobuf data: a number of more than 64 bits")


def _take(view: Chunk, at: int, size: int) -> tuple[Chunk, int]:
    """A field's bytes: a copy of a small one (cheaper to handle), a view of a large one."""
    if size > len(view) - at:
        raise ModelFileError(
            f"truncated protobuf data: a field of {size} bytes where {len(view) - at} are left"
        )
    part = view[at : at + size]
    return (bytes(part) if size <= COPIED_BYTES else part), at + size


def varint(value: int) -> bytes:
    """A number, seven bits in each byte, the lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([n]) for n in range(0x80)]


def text_of(value: Value) -> str:
    """The text of a field; a `ModelFileError` if it is none."""
    if not isinstance(value, bytes | memoryview):
        raise ModelFileError("damaged protobuf data: text was expected")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise ModelFileError("damaged protobuf data: a name is not UTF-8") from None
