"""A training model in consecutive pieces, each a session of its own.

onnxruntime hands its results over when a run is complete. So to have some gradients while others
are still being computed, the graph is cut: the first piece holds the forward pass and what the
first gradients need, each further piece what the next ones need on top. Values that a later piece
reads are passed on as they are, without a copy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, OrtValue

from ..errors import ModelFileError
from .onnxfile import ModelFile, Node, ValueInfo, tensor_type, uses
from .wire import Message

if TYPE_CHECKING:
    from .module import _Train

OWN = ".own"
"""Ending of a copy: a gradient that a later piece reads has left for the other ranks by then."""

ELEMENTS = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "string": 8, "bool": 9, "float16": 10, "double": 11, "uint32": 12, "uint64": 13,
    "bfloat16": 16, "float8e4m3fn": 17, "float8e5m2": 19,
}  # fmt: skip
"""onnxruntime's names of element types → ONNX numbers."""

SHARED = "session.use_env_allocators"
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}


@dataclass(frozen=True)
class Piece:
    """Some nodes of a model, by index, and what goes in and out of them."""

    nodes: frozenset[int]
    gradients: tuple[str, ...]
    """Gradients that this piece computes."""
    results: tuple[str, ...]
    """Other outputs of the whole model that it computes."""
    takes: tuple[str, ...]
    """Values of earlier pieces that it reads."""
    gives: tuple[str, ...]
    """Values that later pieces read."""


def cut(
    model: ModelFile, results: Sequence[str], gradients: Mapping[str, int], limit: float
) -> list[Piece]:
    """Cut a graph so that its gradients become complete in buckets of about equal size.

    A piece is what its bucket depends on and no earlier piece has, so the order of nodes in the
    file does not matter. Gradients follow each other by the number of nodes they need. There are
    fewer pieces than buckets if gradients come together.

    Args:
        model: the training model; gradients are outputs of nodes.
        results: outputs to be computed by the first piece: loss, running statistics.
        gradients: the values that are gradients, and their bytes.
        limit: bytes per bucket; a single gradient may have more.
    """
    nodes = model.nodes
    maker = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    reads = [uses(node) for node in nodes]
    behind = _dependencies(reads, maker)
    done, buckets = 0, _buckets(behind, maker, results, gradients, limit)
    fixed = _constants(nodes, reads, maker, set(model.initializer_names))
    masks: list[int] = []
    for bucket in buckets:
        if bucket & ~done:
            masks.append(bucket & ~done)
            done |= bucket
    place = {i: p for p, mask in enumerate(masks) for i in _bits(mask)}
    takes: list[set[str]] = [set() for _ in masks]
    for i, p in place.items():
        made = {n for n in reads[i] if n in maker and maker[n] not in fixed}
        takes[p] |= {n for n in made if place[maker[n]] != p}

    def made_by(names: Sequence[str], p: int) -> tuple[str, ...]:
        return tuple(n for n in names if place.get(maker.get(n, -1), 0) == p)

    passed = sorted(set().union(*takes))
    return [
        Piece(
            frozenset(_bits(mask)) | fixed,
            made_by(list(gradients), p),
            made_by(results, p),
            tuple(sorted(takes[p])),
            made_by(passed, p),
        )
        for p, mask in enumerate(masks)
    ]


def _dependencies(reads: Sequence[set[str]], maker: Mapping[str, int]) -> list[int]:
    """Per node, as bits of an integer: the nodes it depends on, and itself."""
    behind: list[int] = []
    for i, names in enumerate(reads):
        found = 1 << i
        for name in names:
            if name in maker:
                found |= behind[maker[name]]
        behind.append(found)
    return behind


def _buckets(
    behind: Sequence[int],
    maker: Mapping[str, int],
    results: Sequence[str],
    gradients: Mapping[str, int],
    limit: float,
) -> list[int]:
    """The nodes that each bucket depends on; the first has those of the results too."""
    first = 0
    for name in results:
        first |= behind[maker[name]] if name in maker else 0
    order = sorted(gradients, key=lambda g: ((behind[maker[g]] & ~first).bit_count(), maker[g]))
    total = sum(gradients.values())
    count = max(1, math.ceil(total / limit))
    found: dict[int, int] = {}
    at = 0.0
    for name in order:
        index = min(int((at + gradients[name] / 2) * count / total), count - 1) if total else 0
        found[index] = found.get(index, 0) | behind[maker[name]]
        at += gradients[name]
    masks = [found[index] for index in sorted(found)] or [0]
    return [masks[0] | first, *masks[1:]]


def _constants(
    nodes: Sequence[Node], reads: Sequence[set[str]], maker: Mapping[str, int], values: set[str]
) -> frozenset[int]:
    """Nodes that give the same in every run: each piece has its own, for onnxruntime to fold."""
    found: set[int] = set()
    for i, node in enumerate(nodes):
        known = all(n in values or maker.get(n, -1) in found for n in reads[i])
        pure = node.op_type == "Constant" or (bool(reads[i]) and node.op_type not in RANDOM)
        if known and pure and not node.subgraphs():
            found.add(i)
    return frozenset(found)


def _bits(mask: int) -> Iterator[int]:
    """Positions of the ones."""
    text = bin(mask)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)


def piece_model(data: bytes, piece: Piece, given: Mapping[str, Message]) -> bytes:
    """The model of one piece.

    Args:
        data: the whole model.
        piece: one of those that `cut` gave for it.
        given: types of what earlier pieces gave.
    """
    model = ModelFile.load(data)
    nodes = [n for i, n in enumerate(model.nodes) if i in piece.nodes]
    read = set().union(*(uses(n) for n in nodes))
    copied = {f"{g}{OWN}": g for g in piece.gradients if g in piece.gives}
    copies = [Message().add(1, g).add(2, own).add(4, "Identity") for own, g in copied.items()]
    model.graph.replace(1, [*(n.message for n in nodes), *copies])
    model.keep_inputs(read.union(piece.results).__contains__)
    for name in piece.takes:
        model.add_input(name, given[name])
    names = [*piece.results, *piece.gradients, *copied, *piece.gives]
    model.set_outputs(list(dict.fromkeys(names)), copied)
    model.prune()
    return model.encode()


def type_proto(text: str, shape: Sequence[Any]) -> Message:
    """A TypeProto from what onnxruntime tells of a value, such as ``tensor(float)``.

    An empty shape is a scalar or an unknown one, and is left open.
    """
    kind, _, inner = text[:-1].partition("(")
    if kind == "tensor" and inner in ELEMENTS:
        return tensor_type(ELEMENTS[inner], list(shape) or None)
    if kind in {"seq", "optional"}:
        return Message().add(4 if kind == "seq" else 9, Message().add(1, type_proto(inner, [])))
    raise ModelFileError(f"A value of type {text!r} cannot be passed on.")


def share_arena(options: Any) -> None:
    """Let sessions with these options take their memory from one arena of the process.

    What one session has let go the next can then use. With an arena each, four pieces of an encoder
    needed 443 MB where the whole model needs 320; with one, 323. It lives until the process ends.
    """
    try:
        options.get_session_config_entry(SHARED)
    except RuntimeError:  # nobody has said anything about it
        if options.enable_cpu_mem_arena:
            _register_arena()
            options.add_session_config_entry(SHARED, "1")


@functools.cache
def _register_arena() -> None:
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory)
    onnxruntime.create_and_register_allocator(info, None)


class Pieces:
    """The sessions of all pieces; takes the place of the session of the whole model.

    Args:
        train: the training half of a module, whose state lives on the host.
        limit: bytes of gradients per piece.
    """

    def __init__(self, train: _Train, limit: float) -> None:
        self.train = train
        names = train.gradient_names
        sizes = {names[p]: train.gradients.specs[p].nbytes for p in names}
        results = [*train.artifact.user_outputs, *train.artifact.states.values()]
        self.pieces = cut(ModelFile.load(train.model), results, sizes, limit)
        self.after: Callable[[int], None] = _nothing
        """Called when a piece has run: its gradients are complete."""
        self.ranges = [self._ranges(index) for index in range(len(self.pieces))]
        """Where each piece's gradients lie in the flat buffer; neighbours are one range."""
        self._bindings: dict[bool, PieceBinding] = {}
        self.sessions: list[InferenceSession] = []
        if len(self.pieces) > 1:
            share_arena(train.options)
            self.sessions = list(self._sessions())

    def _sessions(self) -> Iterator[InferenceSession]:
        train, known = self.train, dict[str, Message]()
        for piece in self.pieces:
            model = piece_model(train.model, piece, known)
            session = train.module._device.session(model, train.options)
            gives = set(piece.gives)
            known |= {
                v.name: type_proto(v.type, v.shape)
                for v in session.get_outputs()
                if v.name in gives
            }
            yield session

    def parameters(self, index: int) -> list[str]:
        """Parameters whose gradients a piece computes, in the order of the flat buffer."""
        made = set(self.pieces[index].gradients)
        return [p for p, g in self.train.gradient_names.items() if g in made]

    def _ranges(self, index: int) -> list[tuple[int, int]]:
        buffer = self.train.gradients.buffers["F32"]
        wanted, found = set(self.parameters(index)), list[tuple[int, int]]()
        slots = list(buffer.slots.items())
        ends = [slot.start for _, slot in slots[1:]] + [buffer.data.size]
        for (name, slot), end in zip(slots, ends):
            if name not in wanted:
                continue
            if found and found[-1][1] == slot.start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((slot.start, end))
        return found

    def binding(self, overwrite: bool) -> PieceBinding:
        """As that of the whole model: for a step that starts anew, or for one that adds."""
        if overwrite not in self._bindings:
            self._bindings[overwrite] = PieceBinding(self, overwrite)
        return self._bindings[overwrite]

    def add(self) -> None:
        """Nothing is left to add: every piece has done so when it was complete."""


class PieceBinding:
    """Runs the pieces one after the other; used like the `Binding` of the whole model."""

    def __init__(self, pieces: Pieces, overwrite: bool) -> None:
        self.pieces, self.overwrite = pieces, overwrite
        train = pieces.train
        target = train.gradients if overwrite else train.added()
        self.bindings = [
            train.bind(session, target, self._outputs(index))
            for index, session in enumerate(pieces.sessions)
        ]
        self._inputs = [{v.name for v in s.get_inputs()} for s in pieces.sessions]
        handed_out = {*train.user.output_names, *train.artifact.states.values()}
        self._made = [[n for n in p.gives if n not in handed_out] for p in pieces.pieces]
        for binding, names in zip(self.bindings, self._made):
            for name in names:
                binding.made_output(name)
        self._last = {n: i for i, p in enumerate(pieces.pieces) for n in p.takes}

    def _outputs(self, index: int) -> dict[str, str]:
        piece, names = self.pieces.pieces[index], self.pieces.train.gradient_names
        return {
            p: names[p] + (OWN if names[p] in piece.gives else "")
            for p in self.pieces.parameters(index)
        }

    def feed(self, infos: Sequence[ValueInfo], values: Sequence[Any]) -> None:
        """Bind the user's inputs in every piece that reads them."""
        for names, binding in zip(self._inputs, self.bindings):
            used = [(i, v) for i, v in zip(infos, values) if i.name in names]
            binding.feed([i for i, _ in used], [v for _, v in used])

    def feed_again(self, values: Sequence[Any]) -> bool:
        """Always False: models that are worth cutting are not small."""
        del values
        return False

    def run(self) -> None:
        """Run all pieces; a value lives until the last piece that reads it has run."""
        kept: dict[str, Any] = {}
        for index, (piece, binding) in enumerate(zip(self.pieces.pieces, self.bindings)):
            for name in piece.takes:
                binding.io.bind_ortvalue_input(name, kept[name])
            try:
                binding.run()
                kept |= binding.taken(piece.gives)
            finally:
                for name in self._made[index]:
                    binding.made_output(name)
                for name in piece.takes:
                    binding.io.bind_ortvalue_input(name, _EMPTY)
            for name in [n for n in piece.takes if self._last[n] == index]:
                del kept[name]
            if not self.overwrite:
                self._add(index)
            self.pieces.after(index)

    def _add(self, index: int) -> None:
        train = self.pieces.train
        whole, new = train.gradients.buffers["F32"].data, train.added().buffers["F32"].data
        for start, stop in self.pieces.ranges[index]:
            np.add(whole[start:stop], new[start:stop], out=whole[start:stop])

    def results(self) -> list[Any]:
        """Results as arrays."""
        return self.bindings[0].results()

    def result_values(self) -> list[OrtValue]:
        """Results as OrtValues."""
        return self.bindings[0].result_values()


_EMPTY = OrtValue.ortvalue_from_numpy(np.zeros(0, np.float32))._ortvalue


def _nothing(index: int) -> None:
    """Nobody waits for gradients."""
    del index
