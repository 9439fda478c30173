"""Which file may hold the data of a model's tensors: the one place that decides.

A model can keep the values of a tensor in another file, its "external data": it gives the file's
name, an offset and a length. Whoever made the model chose that name, so it is not followed
blindly. Every door asks here, for initializers, attributes, subgraphs, functions and
sparse tensors. A file may be read if

- its name is relative and has no ``..``;
- it lies in the model's folder once all links are resolved, or the folder is a snapshot in a
  cache of the Hugging Face hub and the file is a blob of the same repository;
- it is a regular file with one name: a second hard link may be anyone's file;
- it is long enough for what the tensor wants of it.

It is opened relative to that folder, without following links, and looked at when it is open.
Nothing here needs more than the standard library and numpy.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ...errors import ExternalDataError, MissingFileError, ModelFileError
from .dtypes import BY_ONNX, STRING
from .wire import MAX_FIELDS, Chunk, Later, Message

EXTERNAL = 1
"""The value of ``TensorProto.data_location`` for data in another file."""
SHARED = 2**24
"""Tensors may share bytes of a file (tied weights). All together may have twice what their files
have, and this much: a model of a few kilobytes must not grow to gigabytes."""
MAX_NESTING = 64
READ_LATER = 2**20
"""Bytes from which on data are read only when they are written."""
KEYS = {"location", "offset", "length", "checksum", "basepath"}
"""What ONNX defines; onnxruntime adds ``prepacked_…``. The last two, and those, are not used."""
_PREPACKED = "prepacked_"
_NUMBER = re.compile(r"[0-9]{1,19}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BITS = {14: 64, 15: 128, 18: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
"""Widths of the element types that the runtime itself has no use for."""
_IN_MEMORY = "_ORT_MEM_ADDR_"
"""onnxruntime's mark for data in memory: the offset is then an address."""
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for a writer
)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Where in an ONNX file tensors can be: for each message, its fields by number."""


@dataclass(frozen=True)
class Reference:
    """What a tensor says about the place of its data, not yet believed."""

    tensor: str
    location: str
    offset: int = 0
    length: int | None = None

    @classmethod
    def parse(cls, tensor: str, entries: Iterable[tuple[str, str]], where: str) -> Reference:
        """Read the key-value pairs of ``TensorProto.external_data``."""
        values: dict[str, str] = {}
        for key, value in entries:
            if key not in KEYS and not key.startswith(_PREPACKED):
                raise ExternalDataError(
                    f"{where}: the external data of {tensor!r} have the unknown key {key[:60]!r}. "
                    f"Known are {', '.join(sorted(KEYS))}. Save the model again with onnx.save."
                )
            if key in values:
                raise ExternalDataError(
                    f"{where}: the external data of {tensor!r} have the key {key!r} twice, and "
                    "readers do not agree which one counts. Save the model again with onnx.save."
                )
            values[key] = value
        numbers = {k: _number(values[k], k, tensor, where) for k in KEYS & {*values} & _NUMBERS}
        location = values.get("location", "")
        return cls(tensor, location, numbers.get("offset", 0), numbers.get("length"))


_NUMBERS = {"offset", "length"}


def _number(text: str, key: str, tensor: str, where: str) -> int:
    value = int(text) if _NUMBER.fullmatch(text) else -1
    if not 0 <= value < 2**63:
        raise ExternalDataError(
            f"{where}: the external data of {tensor!r} have the {key} {text[:40]!r}, which is not "
            "a number of bytes. Save the model again with onnx.save."
        )
    return value


@dataclass(frozen=True)
class Place:
    """Where the data of a tensor are, after all checks: a path without links below `root`."""

    root: str
    location: str
    offset: int
    length: int

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.root, self.location)


class DataFolder:
    """The folder that the locations in a model are relative to.

    Args:
        folder: that of the model file; None for a model that came without one, which then may
            name no files.
        where: how messages call the model.

    Attributes:
        root: what places are relative to: the folder, or in a cache of the Hugging Face hub the
            folder of the repository, which has the blobs too.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "weights.bin").write_bytes(bytes(16))
        >>> data = DataFolder(folder, "'model.onnx'")
        >>> data.locate(Reference("w", "weights.bin", 4, 8)).length
        8
        >>> data.locate(Reference("w", "../secret"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        onnxtrain.errors.ExternalDataError: 'model.onnx' keeps 'w' in '../secret': a path with...
    """

    def __init__(self, folder: str | os.PathLike[str] | None, where: str) -> None:
        self.where = where
        self._folder = None if folder is None else os.path.realpath(folder)
        hub = None if self._folder is None else _hub_repository(Path(self._folder))
        self._blobs = None if hub is None else hub / "blobs"
        self.root = self._folder or "" if hub is None else str(hub)
        self._sizes: dict[str, tuple[str, int]] = {}
        self._has_read = 0

    def locate(self, reference: Reference, nbytes: int | None = None) -> Place:
        """Where the data are; opens the file once per location to look at it.

        Args:
            reference: what the model says.
            nbytes: the number of bytes that the tensor's shape and type ask for, if known.
        """
        if reference.location not in self._sizes:
            descriptor, location = self._open(reference)
            with os.fdopen(descriptor, "rb") as file:
                self._sizes[reference.location] = location, os.fstat(file.fileno()).st_size
        location, size = self._sizes[reference.location]
        length = self._length(reference, nbytes, size)
        return Place(self.root, location, reference.offset, length)

    def read(self, reference: Reference, nbytes: int | None = None) -> bytes:
        """The data, from the same open file that was checked."""
        descriptor, location = self._open(reference)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._sizes[reference.location] = location, size
            length = self._length(reference, nbytes, size)
            self._has_read += length
            if self._has_read > 2 * sum(dict(self._sizes.values()).values()) + SHARED:
                raise self._error(
                    reference,
                    "the same bytes over and over",
                    "Save the model again with onnx.save.",
                )
            file.seek(reference.offset)
            data = file.read(length)
        if len(data) != length:
            raise self._error(reference, "was cut while it was read", "Try again.")
        return data

    def _length(self, reference: Reference, nbytes: int | None, size: int) -> int:
        length = reference.length
        if length is None:
            length = nbytes if nbytes is not None else max(size - reference.offset, 0)
        elif nbytes is not None and length != nbytes:
            raise self._error(
                reference,
                f"which is given as {length} bytes, and the tensor has {nbytes}",
                "Save the model again.",
            )
        end = reference.offset + length
        if end > size:
            raise ExternalDataError(
                f"{self.where}: the weight {reference.tensor!r} ends at byte {end} of "
                f"{reference.location!r}, which has only {size} bytes. The file is truncated or "
                "belongs to another model."
            )
        return length

    def _open(self, reference: Reference) -> tuple[int, str]:
        """A descriptor of the checked file, and its path below `root`."""
        problem = _name_problem(reference.location)
        if problem:
            raise self._error(reference, problem, _COPY)
        if self._folder is None:
            raise ExternalDataError(
                f"{self.where} keeps the weight {reference.tensor!r} in the file "
                f"{reference.location!r}, and a model without a file has no folder to look in. "
                "Give the model as a path, not as bytes or a ModelProto."
            )
        real = Path(os.path.realpath(os.path.join(self._folder, reference.location)))
        if not (real.is_relative_to(self._folder) or self._is_blob(real)):
            raise self._error(
                reference, f"a link that leads to {str(real)!r}, outside the model's folder", _COPY
            )
        try:
            descriptor = _open_below(self.root, real.relative_to(self.root).parts)
        except OSError as error:
            raise self._open_error(reference, error) from None
        try:
            problem = _file_problem(os.fstat(descriptor))
            if problem:
                raise self._error(reference, problem, _COPY)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, real.relative_to(self.root).as_posix()

    def _is_blob(self, real: Path) -> bool:
        return real.parent == self._blobs and bool(_BLOB.fullmatch(real.name))

    def _open_error(
        self, reference: Reference, error: OSError
    ) -> ModelFileError | MissingFileError:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            path = os.path.join(self._folder or "", reference.location)
            return MissingFileError(
                f"{self.where} keeps the weight {reference.tensor!r} in the file {path!r}, which "
                "does not exist. Put the file beside the model, and pass the model by its path: "
                "the location of external data is relative to the model file."
            )
        if error.errno == errno.ELOOP:
            return self._error(reference, "a link that was put there or leads to itself", _COPY)
        return self._error(
            reference, f"which cannot be opened ({error.strerror})", "Check its permissions."
        )

    def _error(self, reference: Reference, problem: str, remedy: str) -> ExternalDataError:
        name = reference.location[:200]
        return ExternalDataError(
            f"{self.where} keeps {reference.tensor!r} in {name!r}: {problem}. {remedy}"
        )


_COPY = (
    "External data must be a file of its own in the model's folder: copy it there if you trust "
    "the model."
)


def _name_problem(location: str) -> str:
    """What is wrong with a location as a name, whatever is on the disk; empty if nothing."""
    windows = PureWindowsPath(location)
    if not location or location.endswith(("/", "\\")):
        return "that is not the name of a file"
    if "\0" in location:
        return "the name has a zero byte"
    if _IN_MEMORY in location:
        return "that is onnxruntime's name for an address in memory"
    if PurePosixPath(location).is_absolute() or windows.root or windows.drive:
        return "an absolute path"
    if ".." in windows.parts:  # takes both kinds of separators
        return "a path with '..'"
    return ""


def _file_problem(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file (a folder, a pipe or a device)"
    if status.st_nlink > 1:
        return (
            f"a file with {status.st_nlink} names (hard links), so it may be a file of somewhere "
            "else"
        )
    return ""


def _open_below(root: str, parts: tuple[str, ...]) -> int:
    """Open a file by its path below a folder; no component may be a link."""
    if os.open not in os.supports_dir_fd:  # Windows: compare what was opened with what is named
        path = os.path.join(root, *parts)
        descriptor = os.open(path, _FLAGS)
        if os.path.realpath(path) != path or not os.path.samestat(
            os.fstat(descriptor), os.stat(path, follow_symlinks=False)
        ):
            os.close(descriptor)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return descriptor
    with contextlib.ExitStack() as stack:
        folder = os.open(root, _FOLDER_FLAGS)
        stack.callback(os.close, folder)
        for part in parts[:-1]:
            folder = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
            stack.callback(os.close, folder)
        return os.open(parts[-1] if parts else ".", _FLAGS, dir_fd=folder)


def _hub_repository(folder: Path) -> Path | None:
    """The repository that a folder is a snapshot of, if it lies in a cache of the hub.

    There ``models--<owner>--<name>/snapshots/<revision>/…`` has links to files in
    ``models--<owner>--<name>/blobs``, whose names are hashes.
    """
    for parent in folder.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            return parent.parent
    return None


# --- models ---------------------------------------------------------------------------------------


def _opened(message: Message, numbers: Container[int]) -> Iterator[tuple[int, Message]]:
    """Submessages in the wire format."""
    present = {number for number, _, _ in message.fields if number in numbers}
    return ((number, child) for number in present for child in message.messages(number))


def tensors(
    message: Any,
    children: Callable[[Any, Container[int]], Iterable[tuple[int, Any]]] = _opened,
    kind: str = "model",
    depth: int = 0,
) -> Iterator[Any]:
    """Every tensor of a model, wherever it is.

    Args:
        message: a model, or another message of the `kind` given.
        children: gives the submessages of a message in fields of certain numbers, with their
            number; by default those of the wire format, elsewhere of the protobuf library.
        kind: a key of `CHILDREN`.
        depth: how many graphs are around it.
    """
    if kind == "tensor":
        yield message
        return
    depth += kind == "graph"
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    kinds = CHILDREN[kind]
    for number, child in children(message, kinds):
        yield from tensors(child, children, kinds[number], depth)


def external_tensors(model: Message) -> Iterator[Message]:
    """The tensors of a model whose data are in another file."""
    return (t for t in tensors(model) if t.integer(14) == EXTERNAL)


def reference_of(tensor: Message, where: str) -> Reference:
    """What a tensor in the wire format says about the place of its data."""
    entries = ((e.string(1), e.string(2)) for e in tensor.messages(13))
    return Reference.parse(tensor.string(8), entries, where)


def refer(tensor: Message, location: str, offset: int, length: int) -> None:
    """Let a tensor in the wire format have its data in another file."""
    entries = (("location", location), ("offset", str(offset)), ("length", str(length)))
    tensor.drop(9).replace(13, [Message().add(1, k).add(2, v) for k, v in entries])
    tensor.replace(14, [EXTERNAL])


def resolve(model: Message, folder: str | os.PathLike[str] | None, where: str) -> str | None:
    """Check all external data of a model and write down where they are.

    Afterwards the locations have no links and are relative to the folder that is returned, which is
    what onnxruntime may be given; None if there are no external data.
    """
    data = DataFolder(folder, where)
    has_any = False
    for tensor in external_tensors(model):
        location = data.locate(reference_of(tensor, where), size_of(tensor, where))
        refer(tensor, location.location, location.offset, location.length)
        has_any = True
    return data.root if has_any else None


def embed(
    model: Message, folder: str | os.PathLike[str] | None, where: str
) -> list[tuple[Message, Chunk | Later]]:
    """Put all external data into the model; gives the tensors and their data.

    Large data are not read before the model is written, and then tensor by tensor.
    """
    data = DataFolder(folder, where)
    embedded: list[tuple[Message, Chunk | Later]] = []
    for tensor in external_tensors(model):
        reference, nbytes = reference_of(tensor, where), size_of(tensor, where)
        length = data.locate(reference, nbytes).length
        small = length < READ_LATER
        content = data.read(reference, nbytes) if small else _FileData(data, reference, length)
        tensor.drop(13).drop(14)
        tensor.replace(9, [content])
        embedded.append((tensor, content))
    return embedded


@dataclass(frozen=True)
class _FileData:
    """What a model keeps in another file, read when it is asked for, with all checks."""

    folder: DataFolder
    reference: Reference
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """The data, if the file still is what it was."""
        return self.folder.read(self.reference, self.length)


def external_size(model: Message, where: str) -> int:
    """Bytes that tensors of a model have in other files, as it says."""
    return sum(reference_of(t, where).length or 0 for t in external_tensors(model))


def may_be_external(model: Message) -> bool:
    """Whether a model can have external data: a quick look at all but the weights' values.

    To open every node of 5,000 takes a second, and to look for the key in their bytes a
    millisecond.
    """
    return any(
        t.integer(14) == EXTERNAL for g in model.messages(7) for t in g.messages(5)
    ) or _mentions_a_location(model, depth=0)


def _mentions_a_location(message: Message, depth: int) -> bool:
    """Look at what has been opened already too; initializers, field 5 of a graph, are not."""
    for number, _, value in message.fields:
        if isinstance(value, Message):
            if not (depth == 1 and number == 5) and _mentions_a_location(value, depth + 1):
                return True
        elif isinstance(value, bytes | memoryview) and b"location" in bytes(value):
            return True
    return False


def refuse(content: bytes, where: str) -> None:
    """Raise if a model that goes to onnxruntime without a folder names files."""
    model = Message.parse(content, MAX_FIELDS)
    if may_be_external(model):
        resolve(model, None, where)


def size_of(tensor: Message, where: str) -> int | None:
    """Bytes of a tensor by its shape and type, None for a type that is not known here."""
    return size_in_bytes(tensor.string(8), tensor.integers(1), tensor.integer(2), where)


def size_in_bytes(name: str, shape: Iterable[int], kind: int, where: str) -> int | None:
    """The same for a shape and the number of an element type."""
    shape = list(shape)
    if any(d < 0 for d in shape):
        raise ModelFileError(f"{where}: {name!r} has the shape {shape}: sizes cannot be negative.")
    if kind == STRING:
        raise ExternalDataError(f"{where}: {name!r} holds text, which external data cannot.")
    bits = bits_of(kind)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


def bits_of(kind: int) -> int | None:
    """Width of an element type by its ONNX number, None for text and what is not known."""
    known = BY_ONNX.get(kind)
    return known.numpy.itemsize * 8 if known is not None else _BITS.get(kind)
