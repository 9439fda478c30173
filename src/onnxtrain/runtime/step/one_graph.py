"""The one-graph step: loss, gradients and update in a single run, over two sets of buffers.

A graph cannot update in place what it still reads, so it reads one set and writes the other, and
the next step goes the other way. Whoever looks at the state in between gets the first set,
brought up to date (`write_back`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import InferenceSession

from ...errors import ModelFileError
from ..files.onnxfile import Source
from ..session.binding import Binding, all_ortvalues, user_side
from ..session.device_ops import DeviceOps
from ..session.devices import Device
from ..session.options import may_be_exchanged, may_spin
from ..session.sharing import OneProcess
from ..session.threads import SmallSteps, Spinner, is_alone, training_options
from ..state.buffers import TensorStore
from ..state.seeds import Draws, reseed
from ..state.training_state import OptimizerState, TrainingState
from .artifact import check_state, load_artifact
from .finite import first_not_finite, quick_square_sum, refused
from .optimizer import attach
from .step import Step
from .update import OptimizerFile

Array = npt.NDArray[Any]


class OneGraphStep(Spinner, OneProcess, Step):
    """Runs a step model.

    Args:
        source: path or bytes of the step model.
        state: the checkpoint whose buffers are trained.
        optimizer: the optimizer model that the step contains; names its states.
        device: where to run.
        options: onnxruntime's session options.
        check_finite: raise `NonFiniteError`, and leave everything as it was, when the loss or a
            result of the update is NaN or infinite.
    """

    _instead = "Hand over the CheckpointState, and make a new step from it and the model there."

    def __init__(
        self,
        source: Source,
        state: TrainingState,
        optimizer: OptimizerFile,
        device: Device,
        options: Any = None,
        *,
        check_finite: bool = False,
    ) -> None:
        self.state, self.device, self.check_finite = state, device, check_finite
        self._share(state.lock)
        artifact = load_artifact(source, "step")
        check_state(artifact, state)
        self.artifact = artifact
        self.user = user_side(artifact)
        state.need_values()
        state.sync()
        self.memory: OptimizerState = attach(state, optimizer)
        self._check_states(optimizer)
        state.place(device)
        reseed(artifact.model, artifact.random_nodes, state.random)
        self.draws = Draws(state) if artifact.random_input else None
        self.small = SmallSteps(artifact, device, options)
        self.model = artifact.model.consolidate()
        self.rate, self.number = np.zeros(1, np.float32), np.zeros(1, np.int64)
        self._ops = DeviceOps(device)
        states = TensorStore(state.frozen.specs[s] for s in artifact.states)
        states.place(device)
        moments = {kind: store.like() for kind, store in self.memory.states.items()}
        self._second = (state.trainable.like(), states, moments)
        self._options = options
        self.spins = is_alone(self) and may_spin(options) and may_be_exchanged(options)
        self._usual = self._now = self._both(training_options(artifact, options, spin=self.spins))
        self._single: list[Binding] | None = None
        self._vectors: dict[int, list[Array]] = {}
        self._turn = 0
        state.write_back = self.write_back

    @property
    def _first(self) -> _Set:
        return self.state.trainable, self.state.frozen, self.memory.states

    @property
    def session(self) -> InferenceSession:
        """The session with the user's options."""
        if self.must_rest:
            self.rest()
        return self._usual[0].session

    def _check_states(self, optimizer: OptimizerFile) -> None:
        inputs = {v.name for v in self.artifact.model.inputs}
        needed = [f"{p}.{s}" for s in optimizer.states for p in self.artifact.trainable]
        missing = [n for n in needed if n not in inputs]
        if missing:
            raise ModelFileError(
                f"{self.artifact.model.where} has no input {missing[0]!r}: it was made for "
                f"another optimizer than {optimizer.name}."
            )

    def rest(self) -> None:
        """Do what `stop_spinning` asked for, between two steps."""
        self.must_rest = False
        if not self.spins:
            return
        self.spins, before = False, self._usual
        self._usual = self._both(training_options(self.artifact, self._options))
        if self._now is before:
            self._now = self._usual

    def _both(self, options: Any) -> list[Binding]:
        """A session and its bindings in both directions."""
        session = self.device.session(self.model, options)
        first, second = self._first, self._second
        return [self._bind(session, first, second), self._bind(session, second, first)]

    def _bind(self, session: InferenceSession, source: _Set, target: _Set) -> Binding:
        artifact = self.artifact
        binding = Binding(session, self.device)
        binding.user_outputs(self.user.outputs)
        binding.labels = self.user.labels
        inputs = {v.name for v in artifact.model.inputs}
        for name in artifact.trainable:
            binding.input_tensor(name, source[0], name)
            binding.output_tensor(f"{name}.updated", target[0], name)
            for kind, store in source[2].items():
                binding.input_tensor(f"{name}.{kind}", store, name)
                binding.output_tensor(f"{name}.{kind}.updated", target[2][kind], name)
        for name in artifact.frozen:
            store = source[1] if name in artifact.states else self.state.frozen
            binding.input_tensor(name, store, name)
        for name, updated in artifact.states.items():
            binding.output_tensor(updated, target[1], name)
        for name, array in (("learning_rate", self.rate), ("step", self.number)):
            if name in inputs:
                binding.host_input(name, array)
        if self.draws is not None:
            binding.host_input(artifact.random_input, self.draws.words)
        return binding

    def __call__(self, values: Sequence[Any]) -> list[Array]:
        """One training step; gives loss and additional outputs."""
        with self._lock:
            if self.must_rest:
                self.rest()
            memory = self.memory
            self.rate[0], self.number[0] = memory.learning_rate, memory.step + 1
            if self.draws is not None:
                self.draws.set()
            results = self._now[self._turn].again(values)
            if results is None:
                self.feed(values)
                results = self.run().results()
            if self.draws is not None:
                self.draws.count()
            if self.check_finite:
                self._check(results[0], values)
            self._turn = 1 - self._turn
            memory.step += 1
            if not self.device.is_host:
                for store in self.state.stores():
                    store.written()
            return results

    def binding(self) -> Binding:
        """Where the next inputs go."""
        return self._now[self._turn]

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; a small batch goes to a session with one thread."""
        arrays = self.user.check.arrays(values)
        if not self.small.has(arrays):
            self._now = self._usual
        else:
            if self._single is None:
                self._single = self._both(self.small.options())
            self._now = self._single
        self.binding().feed(self.user.inputs, arrays)
        return all_ortvalues(values)

    def _check(self, loss: Array, values: Sequence[Any]) -> None:
        """Raise before the sets change places: what was read is untouched and stays the state."""
        is_good = math.isfinite(loss) if loss.size == 1 else bool(np.isfinite(loss).all())
        is_good = is_good or self.user.nothing_counts(values)
        if is_good and self.device.is_host and math.isfinite(quick_square_sum(self._written())):
            return
        reason = self._problem() if is_good else f"The loss is {loss}"
        if reason:
            raise refused(f"{reason}, in update {self.memory.step + 1}")

    def _written(self) -> list[Array]:
        """The float vectors that the step has written, in the host's memory."""
        if self._turn not in self._vectors:
            params, states, moments = self._first if self._turn else self._second
            stores = [params, *moments.values()]
            vectors = [b.data for store in stores for b in store.buffers.values()]
            vectors += [states.view(name).reshape(-1) for name in self.artifact.states]
            self._vectors[self._turn] = [v for v in vectors if v.dtype.kind == "f"]
        return self._vectors[self._turn]

    def _problem(self) -> str:
        """What is wrong with the tensors just written; empty if all are finite."""
        params, states, moments = self._first if self._turn else self._second
        for store, names in (
            *((store, None) for store in (params, *moments.values())),
            (states, list(self.artifact.states)),
        ):
            store.written()
            name = first_not_finite(store, names)
            if name is not None:
                # clipping by norm spreads what is wrong with one gradient over all of them
                return f"A gradient, or what it makes of {name!r}, is NaN or infinite"
        return ""

    def write_back(self) -> None:
        """Bring the state's own buffers up to date."""
        if self._turn == 0:
            return
        params, states, moments = self._second
        self._ops.copy(self.state.trainable, params)
        self._ops.copy(self.state.frozen, states)
        for kind, store in moments.items():
            self._ops.copy(self.memory.states[kind], store)
        self._turn = 0


_Set = tuple[TensorStore, TensorStore, dict[str, TensorStore]]
