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
from ...runtime.step.finite import all_finite, first_not_finite, is_finite, refused
from .step import Step

Array = npt.NDArray[Any]
Key = tuple[bool, int]
"""Whether the step updates, and which of the two sets of buffers it reads."""


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
        sets: two sets of buffers; a step reads one and writes the other.
        turn: which of them the next step reads.
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
        self.sets = (first, second)
        self.turn, self.pending = 0, 0

    def key(self) -> Key:
        """What the next step does, and which buffers it reads."""
        return self.pending + 1 == self.accumulation, self.turn

    def bind(self, key: Key, binding: Binding) -> Iterable[str]:
        """Bind the state that a step reads and writes; gives the names of the outputs."""
        updates, turn = key
        step, source, target = self.steps[updates], self.sets[turn], self.sets[1 - turn]
        read = {v.name for v in step.model.graph.inputs}
        for store in (source, self.sums):
            for name in store:
                if name in read:
                    binding.input_tensor(name, store, name)
        for name, output in step.states.items():
            binding.output_tensor(output, self.sums if name in self.sums else target, name)
        outputs = list(step.states.values())
        if step.check:
            binding.host_output(step.check, self._check_value)
            outputs.append(step.check)
        return outputs

    def finish(self, key: Key) -> None:
        """Note that a step has run."""
        if self._check_finite:
            self._look_at_results(key)
        updates, turn = key
        if updates and self._updates:
            self.turn, self.pending = 1 - turn, 0
            if self.sums.specs:
                self._drop_sums()
        else:
            self.pending = (self.pending + 1) % self.accumulation
            self._keep_statistics(updates, turn)
        if not self.device.is_host:
            for store in (*self.sets, self.sums):
                store.written()

    def _look_at_results(self, key: Key) -> None:
        """Raise before the sets change places: what was read is untouched and stays the state."""
        problem = "The loss" if np.isnan(self._check_value) else self._first_not_finite(key)
        source = self.sets[key[1]]
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
        updates, turn = key
        target, states = self.sets[1 - turn], self.steps[updates].states
        for store in (target, self.sums):
            written = [n for n in states if n in store and n not in store.parts]
            if not written:
                continue
            store.written()
            complete = store is self.sums or (updates and self._updates)
            if complete and is_finite(store):
                continue
            name = first_not_finite(store, written)
            if name is not None:
                parts = [n for n, p in store.parts.items() if p.whole == name]
                name = next((n for n in parts if not all_finite(store.view(n).ravel())), name)
                return f"A gradient, or what it makes of {name!r},"
        return ""

    def _drop_sums(self) -> None:
        self.pending = 0
        for buffer in self.sums.buffers.values():
            buffer.data[...] = 0
        self.sums.push()

    def _keep_statistics(self, updates: bool, turn: int) -> None:
        """A run that does not update still moves the running statistics; bring them over."""
        source, target = self.sets[turn], self.sets[1 - turn]
        moved = [n for n in self.steps[updates].states if n not in self.sums]
        if not moved:
            return
        if not self.device.is_host:
            for store in (source, target):
                store.written()
                store.pull()
        for name in moved:
            source.view(name)[...] = target.view(name)
        source.push()

    def current(self) -> TensorStore:
        """The set of buffers that holds the state, up to date in the host's memory."""
        store = self.sets[self.turn]
        store.pull()
        return store
