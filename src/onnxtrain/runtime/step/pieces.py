"""A training model in consecutive pieces, each a session of its own.

onnxruntime hands its results over when a run is complete. So to have some gradients while others
are still being computed, the graph is cut: the first piece holds the forward pass and what the
first gradients need, each further piece what the next ones need on top. Values that a later piece
reads are passed on as they are, without a copy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, OrtValue

from ..files.onnxfile import ValueInfo
from ..files.wire import Message
from ..session.native import raw_ortvalue
from .cutting import OWN, Template, cut, cut_by_nodes, type_proto

if TYPE_CHECKING:
    from .gradient_step import GradientStep

SHARED = "session.use_env_allocators"


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
        step: that computes the gradients, with a state that lives on the host.
        limit: bytes of gradients per piece.
        nodes: instead of that, nodes per piece.
    """

    def __init__(
        self, step: GradientStep, limit: float = math.inf, nodes: int | None = None
    ) -> None:
        self.step = step
        model, names = step.artifact.model, step.gradient_names
        sizes = {names[p]: step.gradients.specs[p].nbytes for p in names}
        results = [*step.artifact.user_outputs, *step.artifact.states.values()]
        if nodes is not None:
            self.pieces = cut_by_nodes(model, results, list(sizes), nodes)
        else:
            self.pieces = cut(model, results, sizes, limit)
        self.after: Callable[[int], None] = _nothing
        """Called when a piece has run: its gradients are complete."""
        self.ranges = [self._ranges(index) for index in range(len(self.pieces))]
        """Where each piece's gradients lie in the flat buffer; neighbours are one range."""
        self._bindings: dict[bool, PieceBinding] = {}
        self.sessions: list[InferenceSession] = []
        if len(self.pieces) > 1:
            share_arena(step.options)
            self.sessions = list(self._sessions(Template(model)))

    def _sessions(self, template: Template) -> Iterator[InferenceSession]:
        step, known = self.step, dict[str, Message]()
        for piece in self.pieces:
            model = template.piece(piece, known)
            session = step.device.session(model, step.options)
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
        return [p for p, g in self.step.gradient_names.items() if g in made]

    def _ranges(self, index: int) -> list[tuple[int, int]]:
        buffer = self.step.gradients.buffers["F32"]
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
        step = pieces.step
        target = step.gradients if overwrite else step.added()
        self.bindings = [
            step.bind(session, target, self._outputs(index))
            for index, session in enumerate(pieces.sessions)
        ]
        self._inputs = [{v.name for v in s.get_inputs()} for s in pieces.sessions]
        handed_out = {*step.user.output_names, *step.artifact.states.values()}
        self._made = [[n for n in p.gives if n not in handed_out] for p in pieces.pieces]
        for binding, names in zip(self.bindings, self._made):
            for name in names:
                binding.made_output(name)
        self._last = {n: i for i, p in enumerate(pieces.pieces) for n in p.takes}

    def _outputs(self, index: int) -> dict[str, str]:
        piece, names = self.pieces.pieces[index], self.pieces.step.gradient_names
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
        step = self.pieces.step
        whole, new = step.gradients.buffers["F32"].data, step.added().buffers["F32"].data
        for start, stop in self.pieces.ranges[index]:
            np.add(whole[start:stop], new[start:stop], out=whole[start:stop])

    def results(self) -> list[Any]:
        """Results as arrays."""
        return self._in_order([binding.results() for binding in self.bindings])

    def result_values(self) -> list[OrtValue]:
        """Results as OrtValues."""
        return self._in_order([binding.result_values() for binding in self.bindings])

    def _in_order(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """The user's outputs as they follow each other, whichever piece they are from."""
        by_name = {
            name: value
            for binding, values in zip(self.bindings, found)
            for name, value in zip(binding.output_names, values)
        }
        return [by_name[name] for name in self.pieces.step.user.output_names]


_EMPTY = raw_ortvalue(OrtValue.ortvalue_from_numpy(np.zeros(0, np.float32)))


def _nothing(index: int) -> None:
    """Nobody waits for gradients."""
    del index
