"""Read and edit an ONNX file without the `onnx` package.

Field numbers are those of the ONNX schema (onnx.proto). Only what the runtime needs is here: names,
types, metadata, outputs, attributes, initializers, and dropping what nothing depends on.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ...errors import ExternalDataError, MissingFileError, ModelFileError, UnknownNameError
from . import external
from .atomic import write_atomically
from .outline import fields
from .readfile import read_regular
from .sound import check_model
from .wire import BYTES, MAX_FIELDS, Chunk, Later, Message, Value

D = TypeVar("D", int, None)

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview"
Dim: TypeAlias = "int | str | None"

MAX_NESTING = external.MAX_NESTING
ATTRIBUTE_FLOAT, ATTRIBUTE_INT = 1, 2


@dataclass(frozen=True)
class ValueInfo:
    """Name, element type (ONNX number, None if not a tensor) and shape (None if unknown)."""

    name: str
    elem_type: int | None
    shape: tuple[Dim, ...] | None
    is_sequence: bool = False


class Node:
    """A view of one NodeProto; changes go to the file."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def name(self) -> str:
        """The node's name, may be empty."""
        return self.message.string(3)

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.message.string(4)

    @property
    def domain(self) -> str:
        """The operator's domain, empty for standard operators."""
        return self.message.string(7)

    @property
    def inputs(self) -> list[str]:
        """Input names; an empty string is an input left out."""
        return self.message.strings(1)

    @inputs.setter
    def inputs(self, names: Sequence[str]) -> None:
        self.message.replace(1, list(names))

    @property
    def outputs(self) -> list[str]:
        """Output names."""
        return self.message.strings(2)

    @outputs.setter
    def outputs(self, names: Sequence[str]) -> None:
        self.message.replace(2, list(names))

    def subgraphs(self) -> list[Message]:
        """The graphs among the attributes (branches, loop bodies)."""
        if not any(may_have_graph(value) for n, _, value in self.message.fields if n == 5):
            return []
        graphs: list[Message] = []
        for attribute in self.message.messages(5):
            graphs += attribute.messages(6) + attribute.messages(11)
        return graphs

    def integer(self, name: str, default: D) -> int | D:
        """An integer attribute."""
        for attribute in self.message.messages(5):
            if attribute.string(1) == name:
                return attribute.integer(3)
        return default

    def set_attribute(self, name: str, value: int | float) -> None:
        """Set an integer or float attribute, replacing what is there."""
        attribute = Message().add(1, name)
        if isinstance(value, int):
            attribute.add(3, value).add(20, ATTRIBUTE_INT)
        else:
            attribute.add_fixed32(2, struct.pack("<f", value)).add(20, ATTRIBUTE_FLOAT)
        others = [a for a in self.message.messages(5) if a.string(1) != name]
        self.message.replace(5, [*others, attribute])


class ModelFile:
    """An ONNX model that can be edited.

    Args:
        message: the file's content.
        where: how messages call the file.
        folder: what the locations of its external data are relative to, None if it has none.

    Example:
        >>> model = ModelFile.load("training_model.onnx")  # doctest: +SKIP
        >>> [v.name for v in model.inputs]  # doctest: +SKIP
    """

    def __init__(
        self, message: Message, where: str = "the model", folder: str | None = None
    ) -> None:
        self.message, self.where, self.folder = message, where, folder
        self._known_values: dict[int, list[ValueInfo]] = {}
        graphs = message.messages(7)
        if len(graphs) != 1:
            raise ModelFileError(f"{where} is not an ONNX model: it has {len(graphs)} graphs.")
        self.graph = graphs[0]
        if not message.messages(8):
            raise ModelFileError(f"{where} is not an ONNX model: it imports no operator set.")

    @classmethod
    def load(cls, source: Source) -> ModelFile:
        """Read a model from a path or from bytes; files that it names are checked."""
        where, data = read_source(source)
        if bytes(data[4:8]) == b"ORTM":
            from ..session.ort_format import to_onnx

            data = to_onnx(data, where)
        try:
            message = Message.parse(data, MAX_FIELDS)
            check_model(message, where)
            folder = None
            if external.may_be_external(message):
                folder = external.resolve(message, folder_of(source), where)
            return cls(message, where, folder)
        except (ExternalDataError, MissingFileError):
            raise
        except ModelFileError as error:
            problem = str(error).removeprefix(f"{where}: ")
            raise ModelFileError(f"{where} cannot be read as an ONNX model: {problem}") from None

    # --- reading ---------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[ValueInfo]:
        """The graph's inputs."""
        return self._values(11)

    @property
    def outputs(self) -> list[ValueInfo]:
        """The graph's outputs."""
        return self._values(12)

    def _values(self, number: int) -> list[ValueInfo]:
        if number not in self._known_values:
            self._known_values[number] = [_value_info(m) for m in self.graph.messages(number)]
        return list(self._known_values[number])

    @property
    def nodes(self) -> list[Node]:
        """The graph's own nodes, in order."""
        return [Node(m) for m in self.graph.messages(1)]

    def all_nodes(self) -> Iterator[Node]:
        """Nodes of the graph and of all its subgraphs."""
        return _walk(self.graph, 0)

    @property
    def initializer_names(self) -> list[str]:
        """Names of the constants in the file, dense and sparse."""
        dense = [t.string(8) for t in self.graph.messages(5)]
        values = (s.message(1) for s in self.graph.messages(15))
        return dense + [v.string(8) for v in values if v is not None]

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return {m.string(1): m.string(2) for m in self.message.messages(14)}

    @property
    def opset(self) -> int:
        """Version of the standard operator set."""
        for entry in self.message.messages(8):
            if entry.string(1) in {"", "ai.onnx"}:
                return entry.integer(2, 1)
        return 0

    def described(self, key: str) -> dict[str, Any] | None:
        """The JSON object under a metadata key, None if there is no such key."""
        text = self.metadata.get(key)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ModelFileError(f"{self.where}: metadata {key!r} is not a JSON object.")
        version = value.get("version")
        if version != 1:
            raise ModelFileError(
                f"{self.where}: metadata {key!r} has version {version!r}, this release reads 1. "
                "Generate the artifacts again, or install a newer onnxtrain."
            )
        return value

    # --- changing --------------------------------------------------------------------------------

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Replace all metadata_props."""
        self.message.replace(14, [Message().add(1, k).add(2, v) for k, v in values.items()])

    def keep_inputs(self, keep: Callable[[str], bool]) -> None:
        """Drop the graph inputs whose name `keep` refuses."""
        self._known_values.pop(11, None)
        self.graph.replace(11, [m for m in self.graph.messages(11) if keep(m.string(1))])

    def set_outputs(self, names: Sequence[str], like: Mapping[str, str] | None = None) -> None:
        """Make exactly `names` the outputs; `like` names a value that has the same type.

        A name without a known type is written without one: onnxruntime infers it.
        """
        known = {m.string(1): m for number in (13, 12, 11) for m in self.graph.messages(number)}
        produced = {o for n in self.nodes for o in n.outputs} | set(self.initializer_names)
        produced |= {m.string(1) for m in self.graph.messages(11)}
        outputs: list[Message] = []
        for name in names:
            if not name or name not in produced:
                raise UnknownNameError("value in the graph", name, sorted(filter(None, produced)))
            info = known.get((like or {}).get(name, name))
            kind = info.message(2) if info is not None else None
            output = Message().add(1, name)
            if kind is not None:
                output.add(2, kind)
            outputs.append(output)
        self._known_values.pop(12, None)
        self.graph.replace(12, outputs)
        chosen = set(names)
        others = [m for m in self.graph.messages(13) if m.string(1) not in chosen]
        self.graph.replace(13, others)

    def drop_nodes(self, drop: Callable[[Node], bool]) -> None:
        """Remove the top-level nodes that `drop` accepts."""
        self.graph.replace(1, [n.message for n in self.nodes if not drop(n)])

    def rename_uses(self, new_names: Mapping[str, str]) -> None:
        """Let readers of a renamed value, subgraphs included, read the other one instead.

        Chains are followed: with ``{"b": "a", "c": "b"}`` readers of "c" read "a".
        """

        def final(name: str) -> str:
            for _ in range(len(new_names) + 1):
                if name not in new_names:
                    return name
                name = new_names[name]
            raise ModelFileError(
                f"{self.where}: the value {name!r} is computed from itself; a graph has no cycles."
            )

        for node in self.all_nodes():
            names = node.inputs
            if any(n in new_names for n in names):
                node.inputs = [final(n) for n in names]

    def prune(self) -> None:
        """Drop nodes and constants that no output depends on; inputs stay."""
        needed = {v.name for v in self.outputs}
        live: list[Node] = []
        for node in reversed(self.nodes):
            if needed.intersection(filter(None, node.outputs)):
                live.append(node)
                needed.update(uses(node))
        self.graph.replace(1, [n.message for n in reversed(live)])
        self.graph.replace(5, [t for t in self.graph.messages(5) if t.string(8) in needed])
        sparse = self.graph.messages(15)
        self.graph.replace(15, [s for s in sparse if (s.message(1) or s).string(8) in needed])
        produced = {o for n in live for o in n.outputs}
        self.graph.replace(13, [m for m in self.graph.messages(13) if m.string(1) in produced])

    def used_names(self) -> set[str]:
        """Names that a node reads or that are outputs."""
        return {v.name for v in self.outputs}.union(*(uses(n) for n in self.nodes))

    def add_initializer(
        self, name: str, elem_type: int, shape: Sequence[int], raw: bytes | memoryview
    ) -> None:
        """Add a constant with little-endian raw data."""
        tensor = _tensor(name, elem_type, shape)
        self.graph.add(5, tensor.add(9, raw))

    def add_external_initializer(
        self, name: str, elem_type: int, shape: Sequence[int], file: str, offset: int, size: int
    ) -> None:
        """Add a constant whose data are `size` bytes at `offset` in `file`, beside the model."""
        tensor = _tensor(name, elem_type, shape)
        external.refer(tensor, file, offset, size)
        self.graph.add(5, tensor)

    @property
    def external_size(self) -> int:
        """Bytes of the constants that lie beside the model."""
        return 0 if self.folder is None else external.external_size(self.message, self.where)

    def embed_external(self) -> list[tuple[Message, Chunk | Later]]:
        """Put the data of constants that lie beside the model into it; gives both."""
        embedded = external.embed(self.message, self.folder, self.where)
        self.folder = None
        return embedded

    def forget_values(self) -> None:
        """Keep of the constants names, types and shapes only: this model will not be run."""
        for tensor in self.graph.messages(5):
            tensor.fields = [f for f in tensor.fields if f[0] in {1, 2, 8}]

    # --- writing ---------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The model as bytes."""
        return self.message.encode()

    def consolidate(self) -> bytes:
        """The model as bytes, which from now on it is a view of.

        Before, large constants are views of the file it came from: memory for both would stay.
        """
        data = self.encode()
        self.message = Message.parse(data)
        self.graph = self.message.messages(7)[0]
        return data

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the model; the old file stays complete until the new one is."""
        write_atomically(path, self.message.chunks())


def read_source(source: Source) -> tuple[str, bytes | memoryview]:
    """A name for messages, and the bytes, of a path or a bytes-like object."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "the model given as bytes", memoryview(source)
    path = Path(source)
    try:
        return repr(str(path)), read_regular(path, ModelFileError)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no model file {str(path)!r}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{str(path)!r} is a directory, not a model file.") from None


def folder_of(source: Source) -> Path | None:
    """The folder that a model's external data are relative to; bytes have none."""
    return None if isinstance(source, bytes | bytearray | memoryview) else Path(source).parent


GRAPH_TAG, GRAPHS_TAG = bytes([6 << 3 | BYTES]), bytes([11 << 3 | BYTES])
"""How those fields of an attribute begin that are graphs."""


def may_have_graph(attribute: Value) -> bool:
    """Whether an attribute has graphs, or is damaged; it is not opened for that.

    What has been opened is written field by field: a long model would take longer to cut than
    onnxruntime takes for its sessions.
    """
    if not isinstance(attribute, bytes | memoryview):
        return True
    if isinstance(attribute, bytes) and GRAPH_TAG not in attribute and GRAPHS_TAG not in attribute:
        return False  # nearly always
    try:
        return any(number in (6, 11) for number, _, _ in fields(attribute, 0, len(attribute)))
    except IndexError:
        return True


def uses(node: Node) -> set[str]:
    """Names a node reads: its inputs, and what its subgraphs take from outside."""
    return set(filter(None, node.inputs)).union(*(captures(g) for g in node.subgraphs()))


def captures(graph: Message, depth: int = 0) -> set[str]:
    """Names a subgraph reads from the graphs around it."""
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    inside = {m.string(1) for m in graph.messages(11)} | {t.string(8) for t in graph.messages(5)}
    read = {m.string(1) for m in graph.messages(12)}
    for node in map(Node, graph.messages(1)):
        inside.update(node.outputs)
        read.update(node.inputs)
        read = read.union(*(captures(g, depth + 1) for g in node.subgraphs()))
    return read - inside - {""}


def _walk(graph: Message, depth: int) -> Iterator[Node]:
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    for node in map(Node, graph.messages(1)):
        yield node
        for subgraph in node.subgraphs():
            yield from _walk(subgraph, depth + 1)


def _value_info(message: Message) -> ValueInfo:
    name = message.string(1)
    kind = message.message(2) or Message()
    if kind.has(4):
        return ValueInfo(name, None, None, is_sequence=True)
    tensor = kind.message(1)
    if tensor is None:
        return ValueInfo(name, None, None)
    shape = tensor.message(2)
    dims = None if shape is None else tuple(_dim(d) for d in shape.messages(1))
    return ValueInfo(name, tensor.integer(1) or None, dims)


def _dim(message: Message) -> Dim:
    if message.has(1):
        return message.integer(1)
    return message.string(2) or None


def tensor_type(elem_type: int, shape: Sequence[int | str | None] | None) -> Message:
    """A TypeProto of a tensor."""
    tensor = Message().add(1, elem_type)
    if shape is not None:
        dims = Message()
        for size in shape:
            dim = Message()
            if isinstance(size, int):
                dim.add(1, size)
            elif size:
                dim.add(2, size)
            dims.add(1, dim)
        tensor.add(2, dims)
    return Message().add(1, tensor)


def _tensor(name: str, elem_type: int, shape: Sequence[int]) -> Message:
    tensor = Message()
    for size in shape:
        tensor.add(1, int(size))
    return tensor.add(2, elem_type).add(8, name)


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `UnknownNameError` for the first name that is not known."""
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, sorted(known))
