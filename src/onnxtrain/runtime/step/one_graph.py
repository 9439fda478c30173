"""The one-graph step: loss, gradients and update in a single run, over two sets of buffers.

The first set is the state's own, see `TwoSets`. Whoever looks at the state between two steps gets
it brought up to date (`write_back`).
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
from ..fusion.compiler_code import release_compiler
from ..session.binding import Binding, all_ortvalues, user_side
from ..session.devices import Device
from ..session.options import may_be_exchanged, may_spin
from ..session.sharing import OneProcess
from ..session.threads import SessionChoice, SmallSteps, training_options
from ..state.buffers import TensorStore
from ..state.seeds import Draws, reseed
from ..state.training_state import OptimizerState, TrainingState
from .artifact import check_state, load_artifact
from .finite import quick_square_sum, refused
from .optimizer import attach
from .step import Step
from .two_sets import Place, TwoSets
from .update import OptimizerFile

Array = npt.NDArray[Any]
TRAINABLE, FROZEN, STATISTICS = "trainable parameters", "frozen parameters", "running statistics"
"""Stores of a set, besides the optimizer's states under their names."""


class OneGraphStep(OneProcess, Step):
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
        small = SmallSteps(artifact, device, options)
        self.model = artifact.model.consolidate()
        self.rate, self.number = np.zeros(1, np.float32), np.zeros(1, np.int64)
        self._reads, self._writes = self._places()
        self.buffers = self._two_sets()
        self.sessions: SessionChoice[list[Binding]] = SessionChoice(
            self._both,
            small,
            lambda spin: training_options(artifact, options, spin=spin),
            lambda: may_spin(options) and may_be_exchanged(options),
        )
        state.write_back = self.write_back

    def _places(self) -> tuple[dict[str, Place], dict[str, Place]]:
        """Where the graph's inputs come from, and where its outputs go."""
        artifact = self.artifact
        reads: dict[str, Place] = {}
        writes: dict[str, Place] = {}
        for name in artifact.trainable:
            stores = {name: TRAINABLE, **{f"{name}.{kind}": kind for kind in self.memory.states}}
            for value, store in stores.items():
                reads[value] = writes[f"{value}.updated"] = Place(store, name)
        for name in artifact.frozen:
            reads[name] = Place(STATISTICS if name in artifact.states else FROZEN, name)
        for name, updated in artifact.states.items():
            writes[updated] = Place(STATISTICS, name)
        return reads, writes

    def _two_sets(self) -> TwoSets:
        state, moments = self.state, self.memory.states
        statistics = TensorStore(state.frozen.specs[s] for s in self.artifact.states)
        statistics.place(self.device)
        first = {TRAINABLE: state.trainable, STATISTICS: state.frozen, **moments}
        second = {
            TRAINABLE: state.trainable.like(),
            STATISTICS: statistics,
            **{kind: store.like() for kind, store in moments.items()},
        }
        same = {FROZEN: state.frozen}
        return TwoSets({**first, **same}, {**second, **same}, self.device)

    @property
    def session(self) -> InferenceSession:
        """The session with the user's options."""
        if self.sessions.must_rest:
            self.sessions.rest()
        return self.sessions.usual[0].session

    def _check_states(self, optimizer: OptimizerFile) -> None:
        inputs = {v.name for v in self.artifact.model.inputs}
        needed = [f"{p}.{s}" for s in optimizer.states for p in self.artifact.trainable]
        missing = [n for n in needed if n not in inputs]
        if missing:
            raise ModelFileError(
                f"{self.artifact.model.where} has no input {missing[0]!r}: it was made for "
                f"another optimizer than {optimizer.name}."
            )

    def _both(self, options: Any) -> list[Binding]:
        """A session and its bindings in both directions."""
        session = self.device.session(self.model, options)
        release_compiler(self.state.trainable.size)
        return [self._bind(session, turn) for turn in (0, 1)]

    def _bind(self, session: InferenceSession, turn: int) -> Binding:
        artifact = self.artifact
        binding = Binding(session, self.device)
        binding.user_outputs(self.user.outputs)
        binding.labels = self.user.labels
        inputs = {v.name for v in artifact.model.inputs}
        self.buffers.bind(binding, turn, self._reads, self._writes)
        for name, array in (("learning_rate", self.rate), ("step", self.number)):
            if name in inputs:
                binding.host_input(name, array)
        if self.draws is not None:
            binding.host_input(artifact.random_input, self.draws.words)
        return binding

    def __call__(self, values: Sequence[Any]) -> list[Array]:
        """One training step; gives loss and additional outputs."""
        with self._lock:
            if self.sessions.must_rest:
                self.sessions.rest()
            memory, buffers = self.memory, self.buffers
            self.rate[0], self.number[0] = memory.learning_rate, memory.step + 1
            if self.draws is not None:
                self.draws.set()
            results = self.sessions.current[buffers.turn].again(values)
            if results is None:
                self.feed(values)
                results = self.run().results()
            if self.check_finite:
                self._check(results[0], values)
            if self.draws is not None:
                self.draws.count()
            buffers.swap()
            memory.step += 1
            buffers.noted()
            return results

    def binding(self) -> Binding:
        """Where the next inputs go."""
        return self.sessions.current[self.buffers.turn]

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; a small batch goes to a session with one thread."""
        arrays = self.user.check.arrays(values)
        self.sessions.choose(arrays)
        self.binding().feed(self.user.inputs, arrays)
        return all_ortvalues(values)

    def _check(self, loss: Array, values: Sequence[Any]) -> None:
        """Raise before the sets change places: what was read is untouched and stays the state."""
        is_good = math.isfinite(loss) if loss.size == 1 else bool(np.isfinite(loss).all())
        is_good = is_good or self.user.nothing_counts(values)
        if is_good and self.device.is_host:
            written = self.buffers.vectors(self._writes)
            if math.isfinite(quick_square_sum(written)):
                return
        reason = self._problem() if is_good else f"The loss is {loss}"
        if reason:
            raise refused(f"{reason}, in update {self.memory.step + 1}")

    def _problem(self) -> str:
        """What is wrong with the tensors just written; empty if all are finite."""
        name = self.buffers.first_not_finite(self._writes.values())
        # clipping by norm spreads what is wrong with one gradient over all of them
        return f"A gradient, or what it makes of {name!r}, is NaN or infinite" if name else ""

    def write_back(self) -> None:
        """Bring the state's own buffers up to date."""
        self.buffers.write_back()
