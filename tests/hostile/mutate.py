"""Damage files: at random for their bytes, and with knowledge of their form.

Every mutant follows from a seed alone, so that a finding can be repeated.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from onnxtrain.errors import ModelFileError
from onnxtrain.runtime.files.wire import BYTES, FIXED32, FIXED64, VARINT, Message

NUMBERS = (
    0, 1, 2, 3, 7, 8, 9, 127, 128, 255, 256, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 10**15, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
WORDS = (
    b"",
    b"\0",
    b"..",
    b"../x",
    b"/etc/passwd",
    b"nan",
    b"-1",
    b"1e999",
    b"\xff\xfe",
    b"x" * 300,
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**63), 10**30,
    float("nan"), float("inf"), "", "x", "../x", "\ud7ff", "nan", [], {}, [None], [[[[]]]],
    {"a": {}}, ["x"] * 3,
)  # fmt: skip


def mutate(content: bytes, form: str, rng: random.Random) -> bytes:
    """A damaged copy: one to four changes, each of its bytes or of its form."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change = FORMS[form] if form in FORMS and rng.random() < 0.7 else of_bytes
        try:
            content = change(content, rng)
        except Exception:  # what was changed before has left no form to change
            content = of_bytes(content, rng)
    return content


# --- bytes ----------------------------------------------------------------------------------------


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut, insert, double or swap parts."""
    data = bytearray(content or b"\0")
    at = rng.randrange(len(data))
    length = min(rng.choice((1, 2, 4, 8, 16, 64, len(data) // 2)), len(data) - at)
    action = rng.randrange(8)
    if action == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif action == 1:
        data[at] = rng.randrange(256)
    elif action == 2:
        width = rng.choice((1, 2, 4, 8))
        data[at : at + width] = (rng.choice(NUMBERS) & (256**width - 1)).to_bytes(width, "little")
    elif action == 3:
        del data[at:]
    elif action == 4:
        del data[at : at + length]
    elif action == 5:
        data[at:at] = rng.choice((rng.randbytes(length), bytes(length), rng.choice(WORDS)))
    elif action == 6:
        data[at:at] = data[at : at + length]
    else:
        other = rng.randrange(len(data))
        part = data[other : other + length]
        data[at : at + len(part)] = part
    return bytes(data)


def of_words(content: bytes, rng: random.Random) -> bytes:
    """Change an aligned number: an offset, a length or a size in a FlatBuffers file."""
    data = bytearray(content)
    at = rng.randrange(max(len(data) // 4, 1)) * 4
    (old,) = struct.unpack_from("<I", data, at)
    new = rng.choice((old + 4, old - 4, old * 2, old ^ 4, len(data), len(data) - at, *NUMBERS))
    struct.pack_into("<I", data, at, new & 0xFFFFFFFF)
    return bytes(data)


# --- protobuf -------------------------------------------------------------------------------------


def of_protobuf(content: bytes, rng: random.Random) -> bytes:
    """Change a field somewhere in the tree of messages."""
    root = Message.parse(content)
    message = root
    for _ in range(rng.randrange(1, 8)):
        inner = _open_one(message, rng)
        if inner is None:
            break
        message = inner
    _change_field(message, rng)
    return root.encode()


def _open_one(message: Message, rng: random.Random) -> Message | None:
    """Go down into one of the fields that can be read as a message."""
    candidates = [n for n, wire, value in message.fields if wire == BYTES and value]
    if not candidates:
        return None
    number = rng.choice(candidates)
    try:
        return rng.choice(message.messages(number))
    except ModelFileError:
        return None


def _change_field(message: Message, rng: random.Random) -> None:
    fields = message.fields
    if not fields or rng.random() < 0.1:
        number = rng.randrange(1, 26)
        message.add(number, rng.choice((rng.choice(NUMBERS), rng.choice(WORDS))))
        return
    index = rng.randrange(len(fields))
    number, wire, value = fields[index]
    action = rng.randrange(6)
    if action == 0:
        del fields[index]
    elif action == 1:
        fields.insert(rng.randrange(len(fields) + 1), fields[index])
    elif action == 2:
        fields[index] = (max(1, number + rng.choice((-1, 1, 4, 9))), wire, value)
    elif action == 3:
        fields[index] = fields[rng.randrange(len(fields))]
    elif wire == VARINT and isinstance(value, int):
        changes = (value + 1, value - 1, -value, rng.choice(NUMBERS), 1 << rng.randrange(64))
        fields[index] = (number, wire, rng.choice(changes) & (2**64 - 1))
    elif wire in (FIXED32, FIXED64) and isinstance(value, bytes):
        fields[index] = (number, wire, rng.randbytes(len(value)))
    elif isinstance(value, bytes | memoryview):
        changed = rng.choice((rng.choice(WORDS), of_bytes(bytes(value), rng), bytes(value) * 2))
        fields[index] = (number, wire, changed)


# --- JSON, and what has JSON in it ----------------------------------------------------------------


def of_json(content: bytes, rng: random.Random) -> bytes:
    """Change a value somewhere in the tree."""
    return json.dumps(changed_tree(json.loads(content), rng)).encode()


def changed_tree(tree: Any, rng: random.Random) -> Any:
    """The tree with one value replaced, removed, doubled or moved."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.02:
        return rng.choice(VALUES)
    collect(tree)
    node, key = rng.choice(places)
    action = rng.randrange(5)
    if action == 0:
        del node[key]
    elif action == 1 and isinstance(node[key], int | float):
        node[key] = rng.choice((node[key] + 1, -node[key], node[key] * 10**9, rng.choice(NUMBERS)))
    elif action == 2:
        other, at = rng.choice(places)
        with_other = other[at] if at in other or isinstance(other, list) else None
        node[key] = json.loads(json.dumps(with_other))
    elif action == 3 and isinstance(node, dict):
        node[rng.choice(("x", "", "../x", key * 2))] = node.pop(key)
    else:
        node[key] = rng.choice(VALUES)
    return tree


def of_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change the header, or the JSON inside its metadata, and make the lengths fit again."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict) and rng.random() < 0.6:
        key = rng.choice(list(metadata))
        metadata[key] = json.dumps(changed_tree(json.loads(metadata[key]), rng))
    else:
        header = changed_tree(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def of_model(content: bytes, rng: random.Random) -> bytes:
    """Change a field of a model, or the JSON among its metadata."""
    if rng.random() < 0.75:
        return of_protobuf(content, rng)
    model = Message.parse(content)
    entries = [m for m in model.messages(14) if m.string(2).startswith("{")]
    entry = rng.choice(entries)
    entry.replace(2, [json.dumps(changed_tree(json.loads(entry.string(2)), rng))])
    return model.encode()


# --- other forms ----------------------------------------------------------------------------------


def of_npy(content: bytes, rng: random.Random) -> bytes:
    """Change the text of the header."""
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length].decode("latin1")
    old, new = rng.choice(
        (
            ("<f4", rng.choice(("|O", "<f8", "V8", "<U9", ">i2", "[('a','<f4')]", "<f4000"))),
            ("(", "(-1,"), ("(", "(99999999999,"), (")", ""), ("False", "True"), ("'", ""),
            ("{", "__import__('os'){"), ("shape", "shapes"), ("'descr'", "'descr': 1, 'x'"),
        )
    )  # fmt: skip
    text = header.replace(old, new).encode("latin1")
    return content[:8] + len(text).to_bytes(2, "little") + text + content[10 + length :]


def of_npz(content: bytes, rng: random.Random) -> bytes:
    """Change a member, its name, or how it is packed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if rng.random() < 0.6:
                data = rng.choice((of_npy, of_bytes))(data, rng)
            if rng.random() < 0.2:
                name = rng.choice(("../x.npy", "x", "", "a/b.npy", name * 2))
            new.writestr(name, data, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return out.getvalue()


TAR_FIELDS = {
    (0, 100): (b"../x.npy", b"/etc/passwd", b"a", b".", b"", b"a.b.c.npy", b"\xff.npy", b"a.x.npy"),
    (124, 12): (b"00000000000", b"77777777777", b"-1", b"99", b"\x80" + b"\xff" * 11, b"1000"),
    (156, 1): (b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"x", b"g", b"L", b"K", b"S", b"\0"),
    (157, 100): (b"../../x", b"/dev/zero"),
    (345, 155): (b"..", b"x" * 155),
}  # fmt: skip
"""Place and length in a header → what may stand there: name, size, kind, target of a link."""


def of_tar(content: bytes, rng: random.Random) -> bytes:
    """Change a header, with a checksum that is right again; or the content of a member."""
    data = bytearray(content)
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(headers)
    if rng.random() < 0.3:
        size = int(data[at + 124 : at + 135], 8)
        inside = of_npy if rng.random() < 0.5 else of_bytes
        changed = inside(bytes(data[at + 512 : at + 512 + size]), rng)[:size]
        data[at + 512 : at + 512 + len(changed)] = changed
        return bytes(data)
    (place, length), values = rng.choice(list(TAR_FIELDS.items()))
    data[at + place : at + place + length] = rng.choice(values)[:length].ljust(length, b"\0")
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = f"{sum(data[at : at + 512]):06o}\0 ".encode()
    return bytes(data)


def of_text(content: bytes, rng: random.Random) -> bytes:
    """Change words, numbers and separators."""
    separators = (
        b",",
        b"\n",
        b"=",
        b":",
        b'"',
        b" ",
        b"[",
        b"]",
        b"-",
        b"\t",
        b"'",
        b"&a ",
        b"*a ",
    )
    mark = rng.choice(separators)
    parts = content.split(mark)
    action = rng.randrange(4)
    if action == 0:
        parts[rng.randrange(len(parts))] = rng.choice((*WORDS, b"10" * 3000, b"0x" + b"f" * 9000))
    elif action == 1:
        rng.shuffle(parts)
    elif action == 2:
        parts.insert(rng.randrange(len(parts)), rng.choice(parts))
    else:
        return mark.join(parts[:-1]) + rng.choice(separators) * rng.choice((1, 2, 3000)) + parts[-1]
    return mark.join(parts)


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "protobuf": of_protobuf,
    "model": of_model,
    "json": of_json,
    "safetensors": of_safetensors,
    "flatbuffers": of_words,
    "npy": of_npy,
    "npz": of_npz,
    "tar": of_tar,
    "text": of_text,
}
"""Form of a file → how it is damaged with knowledge of it; all others by their bytes."""
