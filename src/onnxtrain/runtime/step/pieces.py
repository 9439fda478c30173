"""The sessions of a training model, with gradients that replace or add to those there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..session.binding import Binding
from ..session.cut_session import CutSession, share_arena
from ..session.cutting import cut, cut_by_nodes
from ..session.devices import create_session
from ..state.buffers import TensorStore

if TYPE_CHECKING:
    from .gradient_step import GradientStep


class GradientBindings:
    """A training session with one binding that overwrites gradients and one that adds to them."""

    def __init__(self, step: GradientStep, session: Any) -> None:
        self.step, self.session = step, session
        self.overwrite = self._bind(step.gradients)
        self._accumulate: Binding | None = None

    def _bind(self, gradients: TensorStore) -> Binding:
        return self.step.bind(self.session, gradients, self.step.gradient_names)

    def binding(self, overwrite: bool) -> Binding:
        """The binding for a step that starts anew, or for one that adds to the gradients."""
        if overwrite:
            return self.overwrite
        if self._accumulate is None:
            self._accumulate = self._bind(self.step.added())
        return self._accumulate

    def add(self) -> None:
        """Add what the accumulating binding has left to the gradients."""
        self.step.ops.add(self.step.gradients, self.step.added())


class Pieces(GradientBindings):
    """The same, cut so that some gradients are complete while others are still being computed.

    The first piece holds the forward pass and what the first gradients need, each further piece
    what the next ones need on top.

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
        self.after: Callable[[int], None] | None = None
        """Called when a piece has run: its gradients are complete."""
        self.ranges = [self._ranges(index) for index in range(len(self.pieces))]
        """Where each piece's gradients lie in the flat buffer; neighbours are one range."""
        if len(self.pieces) > 1:
            share_arena(step.options)
            create = partial(create_session, options=step.options, providers=step.device.providers)
            super().__init__(step, CutSession(model, self.pieces, create, own=sizes))

    def parameters(self, index: int) -> list[str]:
        """Parameters whose gradients a piece computes, in the order of the flat buffer."""
        here = set(self.pieces[index].gradients)
        return [p for p, g in self.step.gradient_names.items() if g in here]

    def _ranges(self, index: int) -> list[tuple[int, int]]:
        buffer = self.step.gradients.buffers["F32"]
        parameters, ranges = set(self.parameters(index)), list[tuple[int, int]]()
        slots = list(buffer.slots.items())
        ends = [slot.start for _, slot in slots[1:]] + [buffer.data.size]
        for (name, slot), end in zip(slots, ends):
            if name not in parameters:
                continue
            if ranges and ranges[-1][1] == slot.start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((slot.start, end))
        return ranges

    def _bind(self, gradients: TensorStore) -> Binding:
        binding = super()._bind(gradients)
        binding.io.after = partial(self._complete, adds=gradients is not self.step.gradients)
        return binding

    def _complete(self, index: int, *, adds: bool) -> None:
        """A piece has run: its gradients count, whole, before those of the next one."""
        if adds:
            whole = self.step.gradients.buffers["F32"].data
            new = self.step.added().buffers["F32"].data
            for start, stop in self.ranges[index]:
                np.add(whole[start:stop], new[start:stop], out=whole[start:stop])
        if self.after is not None:
            self.after(index)

    def add(self) -> None:
        """Nothing is left to add: every piece has done so when it was complete."""
