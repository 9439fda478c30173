"""A long model as consecutive sessions that are used like one.

onnxruntime creates a session in a time that grows faster than the number of nodes (ADR 11), and
hands its results over when a run is complete. So a long model is cut: each piece is a session of
its own, and what a later piece reads is passed on as it is, without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state as ort

from ...errors import UnknownNameError
from ..files.onnxfile import ModelFile, ValueInfo
from ..files.outline import Outline
from ..files.wire import Message
from . import cutting
from .cutting import ELEMENTS, OWN, Piece, ReadNode, Template, cut_by_nodes, type_proto
from .native import core_of, ort_device, raw_ortvalue
from .options import ALLOCATORS, entry_of

HOST = ort_device("cpu")
Create = Callable[[bytes], onnxruntime.InferenceSession]


def share_arena(options: Any) -> None:
    """Let sessions with these options take their memory from one arena of the process.

    What one session has let go the next can then use. With an arena each, four pieces of an encoder
    needed 443 MB where the whole model needs 320; with one, 323. It lives until the process ends.
    """
    if entry_of(options, ALLOCATORS) is None and options.enable_cpu_mem_arena:
        _register_arena()
        options.add_session_config_entry(ALLOCATORS, "1")


@functools.cache
def _register_arena() -> None:
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory)
    onnxruntime.create_and_register_allocator(info, None)


def cut_if_long(
    model: bytes, outline: Outline | None, options: Any, create: Create
) -> CutSession | None:
    """Sessions of the pieces of a model; None if it is short, and one session is there sooner."""
    if not cutting.may_be_long(outline):
        return None
    file = ModelFile(Message.parse(model))
    if not cutting.is_long(file):
        return None
    names = cutting.output_names(file)
    share_arena(options)
    nodes = cutting.read_nodes(file)
    pieces = cut_by_nodes(file, names[:1], names[1:], cutting.NODES_OF_A_PIECE, nodes)
    return CutSession(file, pieces, create, nodes=nodes)


@dataclass(frozen=True)
class Argument:
    """An input or output, as onnxruntime describes it."""

    name: str
    type: str
    shape: list[Any]


class CutSession:
    """The sessions of all pieces of a model, used like a session of the whole.

    Args:
        model: the model; the memory of its constants is not copied.
        pieces: how it is cut.
        create: makes a session from the bytes of a piece.
        own: outputs that their reader may change when their piece has run: later pieces get a copy.
        nodes: of the model, if somebody has read them already.

    Attributes:
        sessions: one for each piece, in the order in which they run.
    """

    def __init__(
        self,
        model: ModelFile,
        pieces: Sequence[Piece],
        create: Create,
        own: Collection[str] = (),
        nodes: Sequence[ReadNode] | None = None,
    ) -> None:
        self.pieces, self._own = list(pieces), frozenset(own)
        self.sessions = list(_sessions(Template(model, own, nodes), self.pieces, create))
        self.cores = [core_of(session) for session in self.sessions]
        self._inputs = _arguments(model.inputs, [s.get_inputs() for s in self.sessions])
        self._outputs = _arguments(model.outputs, [s.get_outputs() for s in self.sessions])
        self.reads = [[v.name for v in s.get_inputs()] for s in self.sessions]
        self._readers: dict[str, list[int]] = {v.name: [] for v in self._inputs}
        self._makers: dict[str, int] = {}
        self._last: list[list[str]] = [[] for _ in self.pieces]
        for index, piece in enumerate(self.pieces):
            for name in set(self.reads[index]) & self._readers.keys():
                self._readers[name].append(index)
            self._makers |= dict.fromkeys([*piece.results, *piece.gradients], index)
        for name, index in {n: i for i, p in enumerate(self.pieces) for n in p.takes}.items():
            self._last[index].append(name)

    # --- as onnxruntime's own session ------------------------------------------------------------

    def get_inputs(self) -> list[Argument]:
        """The inputs of the whole model."""
        return self._inputs

    def get_outputs(self) -> list[Argument]:
        """The outputs of the whole model."""
        return self._outputs

    @property
    def model_meta(self) -> Any:
        """The metadata of the model, which the first piece carries."""
        return self.cores[0].model_meta

    @property
    def session_options(self) -> Any:
        """Options, the same for all pieces."""
        return self.cores[0].session_options

    def get_provider_options(self) -> Any:
        """Options of the execution providers, the same for all pieces."""
        return self.cores[0].get_provider_options()

    def get_providers(self) -> list[str]:
        """Execution providers, the same for all pieces."""
        return list(self.sessions[0].get_providers())

    def get_session_options(self) -> Any:
        """Options, the same for all pieces."""
        return self.sessions[0].get_session_options()

    def new_io(self) -> CutBinding:
        """A binding, with the methods of one of the C level."""
        return CutBinding(self)

    def run_with_iobinding(self, binding: CutBinding, options: Any = None) -> None:
        """Run all pieces on what is bound."""
        binding.run(options)

    def run_with_ortvaluevector(
        self,
        options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        devices: Sequence[Any],
    ) -> None:
        """Run the pieces that the results asked for depend on; the results are appended."""
        values = {name: feeds[i] for i, name in enumerate(feed_names)}
        device_of = dict(zip(fetch_names, devices))
        needed = self._needed(fetch_names)
        for index, names in needed.items():
            vector, results = ort.OrtValueVector(), ort.OrtValueVector()
            for name in self.reads[index]:
                vector.push_back(values[name])
            fetch_devices = [device_of.get(name, HOST) for name in names]
            run = self.cores[index].run_with_ortvaluevector
            run(options, self.reads[index], vector, names, results, fetch_devices)
            values |= {name: results[i] for i, name in enumerate(names)}
            for name in self._last[index]:
                if name not in device_of:
                    del values[name]
        for name in fetch_names:
            fetches.push_back(values[name])

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None
    ) -> list[Any]:
        """Results as arrays, all of them by default."""
        vector, results = ort.OrtValueVector(), ort.OrtValueVector()
        for value in feeds.values():
            vector.push_back(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), HOST))
        names = list(output_names or self._makers)
        options = ort.RunOptions() if options is None else options
        devices = [HOST] * len(names)
        self.run_with_ortvaluevector(options, list(feeds), vector, names, results, devices)
        return [results[i].numpy() for i in range(len(names))]

    # --- who makes what --------------------------------------------------------------------------

    def readers(self, name: str) -> list[int]:
        """Pieces that read an input of the model."""
        if name not in self._readers:
            raise UnknownNameError("input", name, list(self._readers))
        return self._readers[name]

    def maker(self, name: str) -> tuple[int, str]:
        """The piece that makes an output of the model, and the output's name there."""
        if name not in self._makers:
            raise UnknownNameError("output", name, list(self._makers))
        index = self._makers[name]
        is_copied = name in self._own and name in self.pieces[index].gives
        return index, f"{name}{OWN}" if is_copied else name

    def last_reads(self, index: int) -> list[str]:
        """Values that no piece after this one reads."""
        return self._last[index]

    def _needed(self, names: Collection[str]) -> dict[int, list[str]]:
        """Pieces to run, in order, with the results that are needed of each."""
        needed: dict[int, dict[str, None]] = {}
        taken: set[str] = set()
        for index in reversed(range(len(self.pieces))):
            piece = self.pieces[index]
            here = [n for n in names if self._makers[n] == index]
            here += [n for n in piece.gives if n in taken]
            if here:
                needed[index] = dict.fromkeys(here)
                taken.update(piece.takes)
        return {index: list(needed[index]) for index in sorted(needed)}


class CutBinding:
    """Bindings of all pieces; has the methods of onnxruntime's own binding.

    Attributes:
        after: called with the number of a piece when it has run: its outputs are complete.
    """

    def __init__(self, session: CutSession) -> None:
        self._session = session
        self._parts = [ort.SessionIOBinding(core) for core in session.cores]
        self._positions: list[dict[str, int]] = [{} for _ in self._parts]
        self._bound: dict[str, tuple[int, int]] = {}
        self.after: Callable[[int], None] | None = None
        self._bind_crossing()

    def _bind_crossing(self) -> None:
        """Ask every piece for what later ones read."""
        self._crossing: list[set[str]] = [set(piece.gives) for piece in self._session.pieces]
        for index, piece in enumerate(self._session.pieces):
            for name in piece.gives:
                self._output_index(index, name)
                self._parts[index].bind_output(name, HOST)

    def _output_index(self, index: int, name: str) -> int:
        """Where an output comes among the results of its piece; binding it again keeps that."""
        positions = self._positions[index]
        return positions.setdefault(name, len(positions))

    def bind_input(self, name: str, *buffer: Any) -> None:
        """Bind an array, or memory, in every piece that reads it."""
        for index in self._session.readers(name):
            self._parts[index].bind_input(name, *buffer)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Bind a value in every piece that reads it."""
        for index in self._session.readers(name):
            self._parts[index].bind_ortvalue_input(name, value)

    def bind_output(self, name: str, *buffer: Any) -> None:
        """Ask for an output on a device, or in memory of the caller."""
        self._output(name, "bind_output", *buffer)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """Bind an output to a value."""
        self._output(name, "bind_ortvalue_output", value)

    def _output(self, name: str, method: str, *buffer: Any) -> None:
        index, there = self._session.maker(name)
        getattr(self._parts[index], method)(there, *buffer)
        self._bound[name] = index, self._output_index(index, there)
        self._crossing[index].discard(there)  # whoever asked for it says when it is let go

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        for part in self._parts:
            part.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs that were asked for."""
        for part, positions in zip(self._parts, self._positions):
            part.clear_binding_outputs()
            positions.clear()
        self._bound.clear()
        self._bind_crossing()

    def synchronize_inputs(self) -> None:
        """Wait for copies of inputs to a device."""
        for part in self._parts:
            part.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait for copies of outputs from a device."""
        for part in self._parts:
            part.synchronize_outputs()

    def get_outputs(self) -> list[Any]:
        """The outputs that were asked for, in the order of binding."""
        results = [part.get_outputs() for part in self._parts]
        return [results[index][position] for index, position in self._bound.values()]

    def run(self, options: Any = None) -> None:
        """Run all pieces; a value lives until the last piece that reads it has run."""
        options = ort.RunOptions() if options is None else options
        values: dict[str, Any] = {}
        for index, piece in enumerate(self._session.pieces):
            part = self._parts[index]
            for name in piece.takes:
                part.bind_ortvalue_input(name, values[name])
            try:
                self._session.cores[index].run_with_iobinding(part, options)
                values |= self._outputs_of(index, piece.gives)
            finally:
                for name in self._crossing[index]:
                    part.bind_output(name, HOST)
                for name in piece.takes:
                    part.bind_ortvalue_input(name, _EMPTY)
            for name in self._session.last_reads(index):
                del values[name]
            if self.after is not None:
                self.after(index)

    def _outputs_of(self, index: int, names: Sequence[str]) -> dict[str, Any]:
        results = self._parts[index].get_outputs() if names else []
        positions = self._positions[index]
        return {name: results[positions[name]] for name in names}


_EMPTY = raw_ortvalue(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(0, np.float32)))
_NAMES = {number: name for name, number in ELEMENTS.items()}


def _sessions(
    template: Template, pieces: Sequence[Piece], create: Create
) -> Iterator[onnxruntime.InferenceSession]:
    known: dict[str, Message] = {}
    for piece in pieces:
        session = create(template.piece(piece, known))
        gives = set(piece.gives)
        known |= {
            v.name: type_proto(v.type, v.shape) for v in session.get_outputs() if v.name in gives
        }
        yield session


def _arguments(infos: Sequence[ValueInfo], by_piece: Sequence[Sequence[Any]]) -> list[Argument]:
    """Inputs or outputs of the whole, described as the pieces' sessions describe them."""
    known = {v.name.removesuffix(OWN): v for values in by_piece for v in values}
    arguments = []
    for info in infos:
        described = known.get(info.name)
        if described is not None:
            arguments.append(Argument(info.name, described.type, list(described.shape)))
        else:  # an input that no piece reads
            kind = f"tensor({_NAMES.get(info.elem_type or 0, 'float')})"
            arguments.append(Argument(info.name, kind, list(info.shape or ())))
    return arguments
