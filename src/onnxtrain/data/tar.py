"""Tar shards in the style of WebDataset: members with one name and different endings are a sample.

``000.jpg``, ``000.cls``, ``001.jpg``, ``001.cls`` are two samples with the columns ``jpg`` and
``cls``. Nothing is unpacked to a disk, and names are keys and never paths.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .files import reading
from .formats import LARGEST_CHUNK, Block, Chunk, Format, Selection
from .samples import decode_sample

Array = npt.NDArray[Any]
Decode = Callable[[dict[str, bytes]], Mapping[str, Any]]

BLOCK = 512
REMEDY = "Write it again, uncompressed, for example with tar --format=pax."
SAMPLES = 64
"""Samples of a chunk: what a lane reads from one place of a shard before it goes to another."""
LONGEST_HEADER = 2**16
"""Bytes of a long name or of the extended header of one member."""
PAX = re.compile(rb"[0-9]+ (?P<key>path|size|linkpath)=(?P<value>[^\n]*)\n")
KEY = "__key__"
"""Column that holds the names of the samples."""


@dataclass(frozen=True)
class Member:
    """A file inside an archive: where its headers begin, where its content is."""

    name: str
    begin: int
    content: int
    size: int

    @property
    def key(self) -> str:
        """The sample that it belongs to: all up to the first dot of the last part."""
        folder, slash, file = self.name.rpartition("/")
        return folder + slash + file.partition(".")[0]

    @property
    def ending(self) -> str:
        """The column that it is: all behind that dot."""
        return self.name.rpartition("/")[2].partition(".")[2].lower()


class Tar(Format):
    """Archives of samples.

    Args:
        largest: bytes that one sample may have.
        decode: makes arrays of the content of a sample, which comes by ending.
    """

    def __init__(self, largest: int = LARGEST_CHUNK, decode: Decode = decode_sample) -> None:
        super().__init__(largest)
        self.decode = decode

    def chunks(self, path: str) -> Iterator[tuple[int, int]]:
        """Runs of samples; headers are read, the content is passed over."""
        place, rows = 0, 0
        with reading(path, "a tar archive", REMEDY) as file:
            for begin, _ in self._samples(file, path, 0):
                if rows == SAMPLES:
                    yield place, rows
                    rows = 0
                if not rows:
                    place = begin
                rows += 1
        if rows:
            yield place, rows

    def blocks(self, path: str, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Samples as they are in the archive: each column holds bytes."""
        waiting: list[dict[str, Any]] = []
        with reading(path, "a tar archive", REMEDY) as file:
            for number, (_, members) in enumerate(self._samples(file, path, chunk.place)):
                if number == chunk.rows:
                    break
                if number >= selection.skip:
                    waiting.append(self._content(file, path, members, selection))
                if len(waiting) == selection.size:
                    yield _block(waiting, path)
                    waiting = []
            if waiting:
                yield _block(waiting, path)

    def finish(self, block: Block) -> Block:
        """The samples of a batch, decoded."""
        keys = block[KEY]
        columns = {n: v for n, v in block.items() if n != KEY and v.dtype == object}
        samples = [
            self._decoded(str(key), {n: v[row] for n, v in columns.items()})
            for row, key in enumerate(keys)
        ]
        others = {n: v for n, v in block.items() if n not in columns and n != KEY}
        return {**_stacked(samples, [str(k) for k in keys]), **others}

    def _decoded(self, key: str, sample: dict[str, bytes]) -> dict[str, Any]:
        try:
            return dict(self.decode(sample))
        except DataError as error:
            raise DataError(f"The sample {key[:200]!r}: {error}") from error

    def _samples(self, file: BinaryIO, path: str, begin: int) -> Iterator[tuple[int, list[Member]]]:
        """Where each sample begins, and its members; they follow each other in the archive."""
        key: str | None = None
        members: list[Member] = []
        for member in members_of(file, path, begin):
            if member.key != key:
                if members:
                    yield members[0].begin, members
                key, members = member.key, []
            if any(m.ending == member.ending for m in members):
                raise DataError(
                    f"{path!r} has {member.name[:200]!r} twice: give every sample a name of its "
                    "own."
                )
            members.append(member)
        if members:
            yield members[0].begin, members

    def _content(
        self, file: BinaryIO, path: str, members: Sequence[Member], selection: Selection
    ) -> dict[str, Any]:
        by_ending = {m.ending: m for m in members}
        chosen = self.check_columns(path, list(by_ending), selection)
        key = members[0].key
        self.check_size(
            path, f"the sample {key[:200]!r}", sum(by_ending[n].size for n in chosen),
            "Write smaller samples",
        )  # fmt: skip
        sample: dict[str, Any] = {KEY: key}
        for name in chosen:
            file.seek(by_ending[name].content)
            sample[name] = file.read(by_ending[name].size)
        return sample


def _block(samples: Sequence[Mapping[str, Any]], path: str) -> Block:
    """One array of objects per column."""
    names = samples[0].keys()
    for sample in samples:
        if sample.keys() != names:
            raise DataError(
                f"{path!r}: the sample {str(sample[KEY])[:200]!r} has {_listed(sample)}, and "
                f"{str(samples[0][KEY])[:200]!r} has {_listed(samples[0])}. All samples need the "
                "same endings; columns= chooses some of them."
            )
    block: Block = {}
    for name in names:
        block[name] = np.empty(len(samples), object)
        block[name][:] = [sample[name] for sample in samples]
    return block


def _listed(sample: Mapping[str, Any]) -> str:
    return ", ".join(n for n in sample if n != KEY) or "none"


def _stacked(samples: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Block:
    block: Block = {}
    for name in samples[0]:
        values = [np.asarray(sample[name]) for sample in samples]
        for key, value in zip(keys, values):
            if value.shape != values[0].shape:
                raise DataError(
                    f"{name!r} of the sample {key[:200]!r} has the shape {value.shape}, and that "
                    f"of {keys[0][:200]!r} {values[0].shape}. All need the same: bring them to one "
                    "with decode=."
                )
        block[name] = np.stack(values)
    return block


# --- the archive ----------------------------------------------------------------------------------


def members_of(file: BinaryIO, path: str, begin: int = 0) -> Iterator[Member]:
    """The regular files of an archive, from a header on.

    Other than `tarfile` this does not take a damaged header for the end, believes no size that the
    file does not have, and refuses what is neither file nor folder.
    """
    size = os.fstat(file.fileno()).st_size
    at, pax = begin, dict[str, str]()
    while True:
        file.seek(at)
        block = file.read(BLOCK)
        if at == size or block == bytes(BLOCK):
            return
        info = _header(block, path, at)
        length = int(pax.get("size", info.size))
        content = at + BLOCK
        if not 0 <= length <= size - content:
            raise DataError(
                f"{path!r} is cut off: the member at byte {at} says that it has {length} bytes, "
                f"and {size - content} are left. Copy it again."
            )
        at = content + -(-length // BLOCK) * BLOCK
        if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            pax |= _extended(file, path, info, content, length)
            continue
        if info.type in (tarfile.XGLTYPE, tarfile.DIRTYPE):
            begin, pax = at, {}
            continue
        name = _checked(pax.get("path", info.name), path, info)
        yield Member(name, begin, content, length)
        begin, pax = at, {}


def _header(block: bytes, path: str, at: int) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        kind = " (it is compressed: unpack it first)" if block[:2] == b"\x1f\x8b" else ""
        raise DataError(
            f"{path!r} cannot be read as a tar archive{kind}: no header at byte {at}. {REMEDY}"
        ) from error


def _extended(
    file: BinaryIO, path: str, info: tarfile.TarInfo, content: int, length: int
) -> dict[str, str]:
    """What a header says about the member behind it."""
    if length > LONGEST_HEADER:
        raise DataError(f"{path!r}: a name or an extended header has {length} bytes. {REMEDY}")
    file.seek(content)
    data = file.read(length)
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    records = {m["key"].decode(): m["value"] for m in PAX.finditer(data)}
    if not re.fullmatch(rb"[0-9]{1,18}", records.get("size", b"0")):
        raise DataError(f"{path!r} is damaged: an extended header has no valid size. {REMEDY}")
    return {k: v.decode("utf-8", "surrogateescape") for k, v in records.items()}


def _checked(name: str, path: str, info: tarfile.TarInfo) -> str:
    """The name of a member that may be used as a key."""
    shown = repr(name[:200])
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise DataError(
            f"{path!r} has a link, a device or the like, {shown}: samples are files of the archive "
            "itself. Write it again with the files that links lead to (tar --dereference)."
        )
    parts = name.removeprefix("./").split("/")
    if name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise DataError(
            f"{path!r} has a member {shown}, which names a place outside of the archive. Write it "
            "again with names below the folder of the data."
        )
    return name.removeprefix("./")
