"""The graphs of a `TrainingSession`, run over two sets of buffers that change places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...runtime.files.dtypes import BY_ONNX
from ...runtime.session.binding import Binding
from ...runtime.session.devices import Device
from ...runtime.state.buffers import TensorSpec, TensorStore
from ...runtime.step.finite import refused
from ...runtime.step.two_sets import Place, TwoSets
from .step import Step

Array = npt.NDArray[Any]
Key = tuple[bool, int]
"""Whether the step updates, and which of the two sets of buffers it reads."""
STATE, SUMS = "state", "sums"
"""Stores of a set: what the session keeps, and gradients that were added up."""


class StepRunner:
    """Binds the state to steps, and keeps track of it.

    Args:
        steps: the graph that updates and, if gradients are accumulated, the one that adds to them.
        arrays: first values of all that a step reads besides the user's inputs.
        device: where the state lives.
        accumulation: steps per update.
        updates: whether there is an optimizer.
        check_finite: refuse a step whose loss or results are not finite.

    Attributes:
        buffers: the state, twice; a step reads one set and writes the other.
        sums: gradients that were added up for the next update.
        pending: steps since the last update.
    """

    def __init__(
        self,
        steps: Mapping[bool, Step],
        arrays: Mapping[str, Array],
        device: Device,
        accumulation: int,
        *,
        updates: bool,
        check_finite: bool,
    ) -> None:
        self.steps, self.device, self.accumulation = steps, device, accumulation
        self._updates, self._check_finite = updates, check_finite
        self._check_value: Array = np.zeros((), np.float32)
        self._old_statistics: dict[str, Array] = {}
        self._make_state(steps[True], arrays)

    def _make_state(self, step: Step, arrays: Mapping[str, Array]) -> None:
        kinds = {v.name: v.dtype for v in step.model.graph.inputs}
        specs = {
            name: TensorSpec(name, BY_ONNX[int(kinds[name] or 1)], array.shape)
            for name, array in arrays.items()
        }
        accumulators = set(step.accumulators.values())
        apart = {*accumulators, *step.parts}
        first = TensorStore((specs[n] for n in specs if n not in apart), step.parts)
        for name in first:
            if name in arrays:
                first.view(name)[...] = arrays[name].view(specs[name].type.numpy)
        first.place(self.device)
        self.sums = TensorStore(specs[n] for n in accumulators)
        self.sums.place(self.device)
        second = first.like()
        second.copy_from(first)
        second.push()
        sums = {SUMS: self.sums}
        self.buffers = TwoSets({STATE: first, **sums}, {STATE: second, **sums}, self.device)
        self.pending = 0

    def _place(self, name: str) -> Place:
        return Place(SUMS if name in self.sums else STATE, name)

    def _written(self, updates: bool) -> list[Place]:
        return [self._place(name) for name in self.steps[updates].states]

    def key(self) -> Key:
        """What the next step does, and which buffers it reads."""
        return self.pending + 1 == self.accumulation, self.buffers.turn

    def bind(self, key: Key, binding: Binding) -> Iterable[str]:
        """Bind the state that a step reads and writes; gives the names of the outputs."""
        updates, turn = key
        step = self.steps[updates]
        read = {v.name for v in step.model.graph.inputs}
        names = [n for store in self.buffers.source().values() for n in store if n in read]
        reads = {name: self._place(name) for name in names}
        writes = {output: self._place(name) for name, output in step.states.items()}
        self.buffers.bind(binding, turn, reads, writes)
        outputs = list(step.states.values())
        if step.check:
            binding.host_output(step.check, self._check_value)
            outputs.append(step.check)
        return outputs

    def finish(self, key: Key) -> None:
        """Note that a step has run."""
        if self._check_finite:
            self._look_at_results(key)
        updates, _ = key
        if updates and self._updates:
            self.buffers.swap()
            self.pending = 0
            if self.sums.specs:
                self._drop_sums()
        else:
            self.pending = (self.pending + 1) % self.accumulation
            # a run that does not update still moves running statistics
            self.buffers.take_over(p for p in self._written(updates) if p.store == STATE)
        self.buffers.noted()

    def _look_at_results(self, key: Key) -> None:
        """Raise before the sets change places: what was read is untouched and stays the state."""
        problem = "The loss" if np.isnan(self._check_value) else self._first_not_finite(key)
        source = self.buffers.source(key[1])[STATE]
        names = self.steps[key[0]].statistics if self.accumulation > 1 else []
        if names:
            source.pull()
        if not problem:
            if not self.pending:  # what a later batch for the same update has to give back
                self._old_statistics = {n: source.view(n).copy() for n in names}
            return
        if names and self.pending:
            for name in names:
                source.view(name)[...] = self._old_statistics[name]
            source.push()
        self._drop_sums()
        raise refused(f"{problem} is NaN or infinite")

    def _first_not_finite(self, key: Key) -> str:
        """What is not finite among the tensors that were just written; empty if all are."""
        name = self.buffers.first_not_finite(self._written(key[0]), key[1])
        return f"A gradient, or what it makes of {name!r}," if name else ""

    def _drop_sums(self) -> None:
        self.pending = 0
        for buffer in self.sums.buffers.values():
            buffer.data[...] = 0
        self.sums.push()

    def current(self) -> TensorStore:
        """The set of buffers that holds the state, up to date in the host's memory."""
        store = self.buffers.source()[STATE]
        store.pull()
        return store
