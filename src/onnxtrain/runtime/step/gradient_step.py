"""Loss and gradients: the training model, run on the buffers of a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ..fusion.compiler_code import release_compiler
from ..session import cutting
from ..session.binding import Binding, all_ortvalues, user_side
from ..session.cut_session import share_arena
from ..session.device_ops import DeviceOps
from ..session.devices import Device
from ..session.options import may_be_exchanged, may_spin
from ..session.threads import SessionChoice, SmallSteps, training_options
from ..state.buffers import TensorStore
from ..state.seeds import Draws, reseed
from ..state.training_state import TrainingState
from . import kernels
from .artifact import Artifact, drop_accumulation, fold_frozen
from .pieces import GradientBindings, Pieces
from .step import Step

Array = npt.NDArray[Any]


class GradientStep(Step):
    """The training model: its session, and a second one with one thread for small batches.

    Args:
        artifact: the training model, checked against the state.
        state: whose parameters and gradients are bound; it lives on `device`.
        device: where to run.
        user_options: the user's session options.
        fold: hand frozen parameters to onnxruntime as constants.
        check_finite: remember running statistics, so that a step that is no good changes none.

    Attributes:
        overwrite: whether the next step starts the gradients anew.
    """

    def __init__(
        self,
        artifact: Artifact,
        state: TrainingState,
        device: Device,
        user_options: Any = None,
        *,
        fold: bool = False,
        check_finite: bool = False,
    ) -> None:
        self.state, self.device, self.user_options = state, device, user_options
        self.check_finite, self.overwrite = check_finite, True
        self.ops = DeviceOps(device)
        self.artifact, self.user = artifact, user_side(artifact)
        self.next_states = TensorStore(state.frozen.specs[s] for s in artifact.states)
        self.next_states.place(device)
        self.is_simple = device.is_host and not self.next_states.specs
        self.old_states: TensorStore | None = None
        self.can_restore = False
        """Whether `old_states` has the states of before the batches since the last update."""
        self.saves_states = False
        """Whether they are saved even without `check_finite`: for who checks by other means."""
        reseed(artifact.model, artifact.random_nodes, state.random)
        self.draws = Draws(state) if artifact.random_input else None
        small = SmallSteps(artifact, device, user_options)
        folded = set(fold_frozen(artifact, state)) if fold else set()
        self.bound = [n for n in artifact.parameters if n not in folded]
        self.gradient_names = {
            p: artifact.gradients.get(p, f"{p}_grad") for p in artifact.trainable
        }
        self.options = training_options(artifact, user_options)
        self.gradients = state.need_gradients()
        self.scratch: TensorStore | None = None
        drop_accumulation(artifact)
        can_be_cut = device.is_host and self.gradients.buffers.keys() == {"F32"}
        self.is_long = device.is_host and cutting.is_long(artifact.model)
        self.pieces: Pieces | None = None
        self.sessions: SessionChoice[GradientBindings] = SessionChoice(
            self._bindings,
            small,
            self._options,
            lambda: (
                can_be_cut
                and may_spin(user_options)
                and may_be_exchanged(user_options)
                and not self.is_long
                and kernels.runs_alone(state.trainable.size)
            ),
        )

    def bind(self, session: Any, gradients: TensorStore, names: Mapping[str, str]) -> Binding:
        """Bind all but the user's inputs; `names` tells the outputs that are gradients."""
        takes = {v.name for v in session.get_inputs()}
        gives = {v.name for v in session.get_outputs()}
        binding = Binding(session, self.device)
        binding.user_outputs([o for o in self.user.outputs if o.name in gives])
        binding.labels = [one for one in self.user.labels if one.input in takes]
        for name in takes.intersection(self.bound):
            binding.input_tensor(name, self.state.store_of(name), name)
        if self.draws is not None and self.artifact.random_input in takes:
            binding.host_input(self.artifact.random_input, self.draws.words)
        for name, gradient in names.items():
            binding.output_tensor(gradient, gradients, name)
        for name, updated in self.artifact.states.items():
            if updated in gives:
                binding.output_tensor(updated, self.next_states, name)
        return binding

    def share_arena(self) -> None:
        """Make the sessions again, in memory that those of pieces can use too."""
        share_arena(self.options)
        self.sessions.release()
        self.use(None)

    def use(self, pieces: Pieces | None, *, keep: bool = False) -> None:
        """Run in pieces from now on, or (None) whole again; the other way is let go or kept."""
        self.pieces = pieces
        if pieces is not None and not keep:
            self.sessions.release()
        self.sessions.current = pieces if pieces is not None else self.sessions.usual

    def _bindings(self, options: Any) -> GradientBindings:
        session = self.device.session(self.artifact.model.consolidate(), options)
        release_compiler(self.state.trainable.size)
        return GradientBindings(self, session)

    def _options(self, spin: bool) -> Any:
        if not spin:
            return self.options
        return training_options(self.artifact, self.user_options, spin=True)

    @property
    def session(self) -> Any:
        """The session with the user's options."""
        if self.sessions.must_rest:
            self.sessions.rest()
        return self.sessions.usual.session

    def binding(self) -> Binding:
        """Where the next step's inputs go."""
        return self.sessions.current.binding(self.overwrite)

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; tells whether they are OrtValues."""
        arrays = self.user.check.arrays(values)
        if self.pieces is None:
            self.sessions.choose(arrays)
        self.binding().feed(self.user.inputs, arrays)
        return all_ortvalues(values)

    def run(self) -> Binding:
        """Run on what was fed; the results are in the binding, and count after `commit`."""
        binding = self.binding()
        if self.draws is not None:
            self.draws.set()
        binding.run()
        if self.draws is not None:
            self.draws.count()
        return binding

    def commit(self) -> None:
        """Let the step that has just run count: add its gradients, take over its states."""
        if not self.overwrite:
            self.sessions.current.add()
        if not self.device.is_host:
            self.gradients.written()
        if self.next_states.specs:
            if self.check_finite or self.saves_states:
                self._save_states()
            self.ops.copy(self.state.frozen, self.next_states)
        self.overwrite = False

    def _save_states(self) -> None:
        """Before the first batch of an update: keep what a step that is no good gives back."""
        if self.can_restore and not self.overwrite:
            return
        if self.old_states is None:
            self.old_states = self.next_states.like()
        self.ops.copy(self.old_states, self.state.frozen, self.next_states)
        self.can_restore = True

    def restore_states(self) -> None:
        """Undo what the batches since the last update did to the states."""
        if self.can_restore and self.old_states is not None:
            self.ops.copy(self.state.frozen, self.old_states)
        self.can_restore = False

    def discard(self) -> None:
        """Drop the batches since the last update: the next step starts the gradients anew."""
        self.overwrite = True
        self.restore_states()
        if self.draws is not None:
            self.draws.take_back()

    def updated(self) -> None:
        """The batches so far count: states and random numbers of before will not come back."""
        self.can_restore = False
        if self.draws is not None:
            self.draws.accept()

    def start_anew(self) -> None:
        """Let the next step overwrite the gradients; its batch is the first of an update."""
        self.overwrite = True
        if self.draws is not None:
            self.draws.accept()

    def again(self, values: Sequence[Any]) -> list[Array] | None:
        """A step like the one before, on small arrays; None if there is more to be done."""
        state = self.state
        if state.nominal is not None or state.write_back is not None or not self.is_simple:
            return None
        if not self.overwrite:
            return None
        draws = self.draws
        if draws is not None:
            draws.set()
        results = self.sessions.current.overwrite.again(values)
        if results is not None:
            self.overwrite = False
            if draws is not None:
                draws.count()
        return results

    def skip(self) -> None:
        """Count a pass that other ranks had rows for: all must go on with the same number."""
        if self.draws is not None:
            self.draws.count()

    def added(self) -> TensorStore:
        """Where a step leaves gradients that are then added to those there are."""
        if self.scratch is None:
            self.scratch = self.gradients.like()
        return self.scratch
