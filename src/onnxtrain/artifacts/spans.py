"""A model as spans: what a device without a protobuf library has to put one after the other."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, TypeAlias

from ..runtime.files.onnxfile import ModelFile
from ..runtime.files.wire import Message

Span: TypeAlias = "list[int] | str | dict[str, Any]"
"""Bytes of the source from … to, other bytes (base64), or what the device itself fills in."""

GRAPH = 7


class Hole:
    """Bytes of a message that only the device knows: how many, and what belongs there."""

    def __init__(self, size: int, content: dict[str, Any]) -> None:
        self.size, self.content = size, content

    def __len__(self) -> int:
        return self.size


def spans_of(model: ModelFile, source: bytes) -> list[Span]:
    """The spans of an edited model; what is as in the file that it came from is only pointed at.

    A graph keeps most of its nodes and constants when it is edited, and keeps them byte for byte,
    so the spans are small even if the file is not.
    """
    where = dict(_located(source))
    spans: list[Span] = []
    literal = bytearray()

    def add(span: Span) -> None:
        if literal:
            spans.append(base64.b64encode(literal).decode("ascii"))
            literal.clear()
        spans.append(span)

    for content in _contents(model.message):
        if isinstance(content, Hole):
            add(content.content)
            continue
        last = spans[-1] if spans and not literal else None
        start = where.get(memoryview(content))
        if isinstance(last, list) and source.startswith(content, last[1]):
            last[1] += len(content)
        elif start is None:
            literal += content
        else:
            add([start, start + len(content)])
    if literal:
        spans.append(base64.b64encode(literal).decode("ascii"))
    return spans


def assembled(spans: list[Span], source: bytes, fill: Any = None) -> bytes:
    """What a device makes of spans; `fill` gives the bytes of a hole."""
    parts = []
    for span in spans:
        if isinstance(span, str):
            parts.append(base64.b64decode(span))
        else:
            parts.append(fill(span) if isinstance(span, dict) else source[slice(*span)])
    return b"".join(parts)


def _located(source: bytes) -> Iterator[tuple[memoryview, int]]:
    """The fields of the model and of its graph, as they lie in the file, and where."""
    view, start = memoryview(source), 0
    for field in Message.parse(source).fields:
        size = Message([field]).size()
        yield view[start : start + size], start
        if field[0] == GRAPH and isinstance(field[2], bytes | memoryview):
            inner = start + size - len(field[2])
            for part in Message.parse(field[2]).fields:
                length = Message([part]).size()
                yield view[inner : inner + length], inner
                inner += length
        start += size


def _contents(message: Message) -> Iterator[bytes | Hole]:
    """The encoded message: field by field (those of the graph too), holes on their own."""
    for field in message.fields:
        number, _, value = field
        if number == GRAPH and isinstance(value, Message):
            yield bytes(next(Message([field]).chunks()))  # its key and size
            yield from _contents(value)
            continue
        chunks: list[Any] = list(Message([field]).chunks())
        if any(isinstance(c, Hole) for c in chunks):
            yield from (c if isinstance(c, Hole) else bytes(c) for c in chunks)
        else:
            yield b"".join(chunks)
