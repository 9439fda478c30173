"""Module: the forward and backward pass of a training artifact, and the eval model."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state as ort

from ...errors import InputError, StateError
from ..files.onnxfile import ModelFile, Source
from ..files.predecessor import repaired_eval
from ..session.binding import Binding, all_ortvalues, user_side
from ..session.collector import paused_collector
from ..session.device_ops import DeviceOps
from ..session.devices import Device, Provider, session_options
from ..session.feeds import raw_ortvalue
from ..session.sharing import OneProcess, exclusive
from ..session.threads import SmallSteps, Spinner, is_alone, training_options
from ..state.buffers import TensorStore
from ..state.checkpoint_state import CheckpointState
from ..state.seeds import Draws, reseed
from . import kernels
from .artifact import (
    Artifact,
    check_state,
    drop_accumulation,
    fold_frozen,
    load_artifact,
    specs_of,
)
from .finite import refused
from .pieces import Pieces

if TYPE_CHECKING:
    from .pieces import PieceBinding

Array = npt.NDArray[Any]
Self = TypeVar("Self", bound="Module")


class Module(OneProcess):
    """Computes loss and gradients with the training model, or outputs with the eval model.

    Parameters and gradients stay in the flat buffers of `state`; every input and output
    that is not the user's is bound once, so a step allocates nothing but its outputs. Calls from
    several threads follow one another, those of everything else that works on `state` included.

    Args:
        train_model_uri: path or bytes of the training model.
        state: the checkpoint; shared with `Optimizer`.
        eval_model_uri: path or bytes of the eval model, for `eval()` and for export.
        device: ``cpu``, ``cuda[:id]``, … or the name of an execution provider. Anything but the CPU
            keeps the state in the device's memory. That path has not been run on such hardware.
        session_options: onnxruntime's options, used as they are.
        providers: execution providers with their options, instead of those of `device`.
        check_finite: raise `NonFiniteError` when a training loss is NaN or infinite, or, in
            `Optimizer.step`, when a gradient is. Nothing is changed then: parameters, moments, step
            count and running statistics are those of before the batch, the gradients gathered
            since the last update are dropped, and the next batch can follow.
        fold_frozen: hand frozen parameters to onnxruntime's training session as constants. Frozen
            convolutions then run up to a few times faster, at the price of a second copy,
            and of this module's training not seeing later changes of frozen parameters.

    Example:
        >>> state = CheckpointState.load_checkpoint("checkpoint")  # doctest: +SKIP
        >>> module = Module("training_model.onnx", state, "eval_model.onnx")  # doctest: +SKIP
        >>> loss = module(x, labels)  # doctest: +SKIP
    """

    training: bool
    _instead = (
        "Hand over the CheckpointState, and make a new Module from it and the model files there."
    )

    @paused_collector()
    def __init__(
        self,
        train_model_uri: Source,
        state: CheckpointState,
        eval_model_uri: Source | None = None,
        device: str = "cpu",
        session_options: Any = None,
        providers: Sequence[Provider] | None = None,
        *,
        check_finite: bool = False,
        fold_frozen: bool = False,
    ) -> None:
        if not isinstance(state, CheckpointState):
            raise TypeError(f"state must be a CheckpointState, not {type(state).__name__}.")
        self.training = True
        self.check_finite = check_finite
        self._state, self._device = state, Device(device, providers)
        self._share(state.lock)
        self._device_type, self._session_options = device, session_options
        artifact = load_artifact(train_model_uri, "training", state)
        self._eval = _Eval(eval_model_uri, self) if eval_model_uri is not None else None
        check_state(artifact, state)
        self._order, self._trainable = artifact.parameters, list(artifact.trainable)
        self._specs = specs_of(artifact)
        self._ops = DeviceOps(self._device)
        state._place(self._device)
        if state._gradients is None:
            state._gradients = state._trainable.like()
        if fold_frozen:
            state._need_values()
        self._last_vector: Array | None = None
        self._train = _Train(artifact, self, fold_frozen)
        self._overwrite = True

    # --- running ---------------------------------------------------------------------------------

    def __call__(self, *user_inputs: Any, **named_inputs: Any) -> Any:
        """Run one step.

        In training mode: loss (and additional outputs), gradients added to those there are,
        unless `lazy_reset_grad` was called. In eval mode: the eval model's outputs.

        Args:
            user_inputs: in the order of `input_names()`: arrays, or values that become arrays. If
                all are OrtValues the results are OrtValues as well.
            named_inputs: the same by name.

        Returns:
            One output as it is, several as a tuple.
        """
        with self._lock:
            if self._train.must_rest:
                self._train.rest()
            part: _Train | _Eval = self._train if self.training else self._need_eval()
            quick = None if named_inputs else part.again(user_inputs)
            if quick is not None:
                if self.check_finite and self.training:
                    self._check_loss(quick[0], user_inputs)
                return quick[0] if len(quick) == 1 else tuple(quick)
            as_values = False
            if named_inputs or not part.binding().feed_again(user_inputs):
                as_values = part.feed(part.user.ordered(user_inputs, named_inputs))
            self._state._need_values()
            if self._state._settle is not None:
                self._state._settle()
            binding = part.run()
            results: Sequence[Any] = binding.result_values() if as_values else binding.results()
            if self.training:
                if self.check_finite:
                    loss = results[0].numpy() if as_values else results[0]
                    self._check_loss(loss, part.user.ordered(user_inputs, named_inputs))
                self._train.commit()
            return results[0] if len(results) == 1 else tuple(results)

    def train(self: Self, mode: bool = True) -> Self:
        """Use the training model from now on (or, with False, the eval model)."""
        with self._lock:  # not in the middle of another thread's step
            self.training = bool(mode)
        return self

    def eval(self: Self) -> Self:
        """Use the eval model from now on."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step overwrite the gradients; until then they stay readable."""
        with self._lock:  # the end of another thread's step would take it back
            self._overwrite = True

    def discard_step(self) -> None:
        """Drop the batches since the last update, because one of them is no good.

        The next training step overwrites the gradients. With `check_finite`, running statistics go
        back to what they were before the first of these batches.
        """
        with self._lock:
            self._overwrite = True
            self._train.restore_states()

    def input_names(self) -> list[str]:
        """Names of the user's inputs of the current mode's model."""
        return (self._train if self.training else self._need_eval()).user.input_names

    def output_names(self) -> list[str]:
        """Names of the outputs of the current mode's model."""
        return (self._train if self.training else self._need_eval()).user.output_names

    # --- parameters as one vector ----------------------------------------------------------------

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements of the (trainable) parameters."""
        return sum(self._specs[n].size for n in self._chosen(trainable_only))

    @exclusive
    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:
        """All parameters as one float vector, in the order of the training model's inputs.

        A view of the parameters themselves when nothing lies between them in memory (each
        tensor starts on a multiple of 64 bytes), otherwise a copy.
        """
        names = self._chosen(trainable_only)
        self._need_floats(names)
        self._state._need_values()
        self._state._sync()
        vector = self._shared_vector(names)
        if vector is None:
            views = [self._state._store_of(n).view(n).reshape(-1) for n in names]
            vector = np.concatenate(views) if views else np.empty(0, np.float32)
        value = ort.OrtValue.ortvalue_from_numpy(vector, _host())
        # The value points into the array and does not hold it, nor does its `.numpy()` hold the
        # value: the array lives as long as the value does, and at least until the next call.
        weakref.finalize(value, _keep, vector)
        self._last_vector = vector
        return value

    @exclusive
    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set the parameters from one vector, the inverse of `get_contiguous_parameters`.

        Completes a nominal state; then `trainable_only` must be False.
        """
        raw = raw_ortvalue(buffer)
        vector = np.asarray(raw.numpy() if raw is not None else buffer)
        names = self._chosen(trainable_only)
        self._need_floats(names)
        state = self._state
        if state.is_nominal and trainable_only and set(names) != set(self._order):
            raise StateError(
                "The checkpoint is nominal: all parameters are needed at once. Call "
                "copy_buffer_to_parameters(buffer, trainable_only=False)."
            )
        size = sum(self._specs[n].size for n in names)
        if vector.dtype != np.float32 or vector.size != size:
            raise InputError(
                f"The buffer must hold {size} float32 values, it holds {vector.size} of "
                f"{vector.dtype}."
            )
        state._sync()
        at, flat = 0, vector.reshape(-1)
        for name in names:
            view = state._store_of(name).view(name)
            view[...] = flat[at : at + view.size].reshape(view.shape)
            at += view.size
        state._nominal = None
        for store in state._stores():
            store.push()

    @exclusive
    def export_model_for_inferencing(
        self,
        inference_model_uri: str | os.PathLike[str],
        graph_output_names: Sequence[str],
        *,
        external_data: bool | None = None,
    ) -> None:
        """Write a clean inference model with the current parameters.

        Made from the eval model: only the outputs asked for and what they need, parameters as
        initializers, targets and Dropout gone, names, opset and metadata as in the original model.

        Args:
            inference_model_uri: the file to write, atomically.
            graph_output_names: its outputs.
            external_data: put the weights into ``<file>.data``; by default only above 2 GB.
        """
        from .export import export

        part = self._need_eval()
        self._state._need_values()
        self._state._sync()
        export(part.source, self._state, inference_model_uri, graph_output_names, external_data)

    def __repr__(self) -> str:
        mode = "training" if self.training else "eval"
        return (
            f"Module({mode}, inputs={self._train.user.input_names}, {len(self._trainable)} "
            f"trainable of {len(self._order)} parameters, device={self._device.name!r})"
        )

    # --- inside ----------------------------------------------------------------------------------

    def _check_loss(self, loss: Array, values: Sequence[Any]) -> None:
        if math.isfinite(loss) if loss.size == 1 else np.isfinite(loss).all():
            return
        if self._train.user.nothing_counts(values):
            return  # the mean of no labels is no number, and no mistake
        if self._overwrite:  # batches before this one were given up without an update, and stay
            self._train.updated()
        self.discard_step()
        memory = self._state._optimizer
        where = f", in update {memory.step + 1}" if memory is not None else ""
        raise refused(f"The loss is {loss}{where}")

    def _chosen(self, trainable_only: bool) -> list[str]:
        trainable = set(self._trainable)
        return [n for n in self._order if n in trainable or not trainable_only]

    def _need_floats(self, names: Sequence[str]) -> None:
        wrong = [n for n in names if self._specs[n].type.code != "F32"]
        if wrong:
            raise InputError(
                f"A contiguous buffer holds float32 only; {', '.join(map(repr, wrong[:8]))} have "
                "another type."
            )

    def _shared_vector(self, names: Sequence[str]) -> Array | None:
        """The flat buffer itself, if it holds exactly these tensors, in order, without padding."""
        for store in (self._state._trainable, self._state._frozen):
            buffer = store.buffers.get("F32")
            if buffer is not None and list(buffer.slots) == list(names) and buffer.tight():
                return buffer.data[: list(buffer.slots.values())[-1].stop]
        return None

    def _need_eval(self) -> _Eval:
        if self._eval is None:
            raise StateError(
                "Eval model was not provided. Give eval_model_uri to Module to evaluate or export."
            )
        return self._eval


MANY_NODES = 12_000
"""A longer model is cut into pieces: the time to create a session grows faster than its nodes."""
NODES_OF_A_PIECE = 2_500


class _Passes:
    """A training session with one binding that overwrites gradients and one that adds to them."""

    def __init__(self, train: _Train, session: InferenceSession) -> None:
        self.train, self.sessions = train, [session]
        self.overwrite = self._binding(train.gradients)
        self.accumulate: Binding | None = None

    def _binding(self, gradients: TensorStore) -> Binding:
        return self.train.bind(self.sessions[0], gradients, self.train.gradient_names)

    def binding(self, overwrite: bool) -> Binding:
        """The binding for a step that starts anew, or for one that adds to the gradients."""
        if overwrite:
            return self.overwrite
        if self.accumulate is None:
            self.accumulate = self._binding(self.train.added())
        return self.accumulate

    def add(self) -> None:
        """Add what the accumulating binding has left to the gradients."""
        self.train.module._ops.add(self.train.gradients, self.train.added())


class _Train(Spinner):
    """The training model: its session, and a second one with one thread for small batches."""

    def __init__(self, artifact: Artifact, module: Module, fold: bool) -> None:
        self.module, state = module, module._state
        self.artifact, self.user = artifact, user_side(artifact)
        self.next_states = TensorStore(state._frozen.specs[s] for s in artifact.states)
        self.next_states.place(module._device)
        self.is_simple = module._device.is_host and not self.next_states.specs
        self.old_states: TensorStore | None = None
        self.can_restore = False
        """Whether `old_states` has the states of before the batches since the last update."""
        self.saves_states = False
        """Whether they are saved even without `check_finite`: for who checks by other means."""
        reseed(artifact.model, artifact.random_nodes, state._random)
        self.draws = Draws(state) if artifact.random_input else None
        self.small = SmallSteps(artifact, module._device, module._session_options)
        folded = set(fold_frozen(artifact, state)) if fold else set()
        self.bound = [n for n in module._order if n not in folded]
        self.gradient_names = {
            p: artifact.gradients.get(p, f"{p}_grad") for p in artifact.trainable
        }
        self.options = training_options(artifact, module._session_options)
        assert state._gradients is not None
        self.gradients = state._gradients
        self.scratch: TensorStore | None = None
        drop_accumulation(artifact)
        can_be_cut = module._device.is_host and self.gradients.buffers.keys() == {"F32"}
        self.is_long = can_be_cut and len(artifact.model.nodes) > MANY_NODES
        self.spins = (
            is_alone(self)
            and can_be_cut
            and module._session_options is None
            and kernels.runs_alone(state._trainable.size)
        )
        self._usual: _Passes | Pieces | None = None
        self.now: _Passes | Pieces = self.usual
        self.single: _Passes | None = None
        self.pieces: Pieces | None = None

    def bind(
        self, session: InferenceSession, gradients: TensorStore, names: Mapping[str, str]
    ) -> Binding:
        """Bind all but the user's inputs; `names` tells the outputs that are gradients."""
        module = self.module
        takes = {v.name for v in session.get_inputs()}
        gives = {v.name for v in session.get_outputs()}
        binding = Binding(session, module._device)
        binding.user_outputs([o for o in self.user.outputs if o.name in gives])
        binding.labels = [one for one in self.user.labels if one.input in takes]
        for name in takes.intersection(self.bound):
            binding.input_tensor(name, module._state._store_of(name), name)
        if self.draws is not None and self.artifact.random_input in takes:
            binding.host_input(self.artifact.random_input, self.draws.words)
        for name, gradient in names.items():
            binding.output_tensor(gradient, gradients, name)
        for name, updated in self.artifact.states.items():
            if updated in gives:
                binding.output_tensor(updated, self.next_states, name)
        return binding

    def use(self, pieces: Pieces | None, *, keep: bool = False) -> None:
        """Run in pieces from now on, or (None) whole again; the other way is let go or kept."""
        self.pieces = pieces
        if pieces is not None and not keep:
            self._usual = self.single = None
        self.now = pieces if pieces is not None else self.usual

    def _session(self, options: Any) -> InferenceSession:
        return self.module._device.session(self.artifact.model.settle(), options)

    @property
    def usual(self) -> _Passes | Pieces:
        """The model with the user's options: one session, or several if it is long."""
        if self._usual is None and self.is_long:
            self._usual = Pieces(self, nodes=NODES_OF_A_PIECE)
        elif self._usual is None:
            options = self.options
            if self.spins:
                options = training_options(self.artifact, None, spin=True)
            self._usual = _Passes(self, self._session(options))
        return self._usual

    def rest(self) -> None:
        """Do what `stop_spinning` asked for, between two steps."""
        before, spun = self._usual, self.spins
        self.must_rest = self.spins = False
        if spun and isinstance(before, _Passes):
            self._usual = None
            if self.now is before:
                self.now = self.usual

    @property
    def session(self) -> InferenceSession:
        """The (first) session with the user's options."""
        if self.must_rest:
            self.rest()
        return self.usual.sessions[0]

    def binding(self) -> Binding | PieceBinding:
        """Where the next step's inputs go."""
        return self.now.binding(self.module._overwrite)

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; tells whether they are OrtValues."""
        arrays = self.user.check.arrays(values)
        if self.pieces is None:
            small = self.small.has(arrays) and not self.is_long
            self.now = self._single() if small else self.usual
        self.binding().feed(self.user.inputs, arrays)
        return all_ortvalues(values)

    def run(self) -> Binding | PieceBinding:
        binding = self.binding()
        if self.draws is not None:
            self.draws.set()
        binding.run()
        if self.draws is not None:
            self.draws.count()
        return binding

    def commit(self) -> None:
        """Let the step that has just run count: add its gradients, take over its states."""
        module = self.module
        if not module._overwrite:
            self.now.add()
        if not module._device.is_host:
            self.gradients.written()
        if self.next_states.specs:
            if module.check_finite or self.saves_states:
                self._save_states()
            module._ops.copy(module._state._frozen, self.next_states)
        module._overwrite = False

    def _save_states(self) -> None:
        """Before the first batch of an update: keep what a step that is no good gives back."""
        if self.can_restore and not self.module._overwrite:
            return
        if self.old_states is None:
            self.old_states = self.next_states.like()
        self.module._ops.copy(self.old_states, self.module._state._frozen, self.next_states)
        self.can_restore = True

    def restore_states(self) -> None:
        """Undo what the batches since the last update did to the states."""
        if self.can_restore and self.old_states is not None:
            self.module._ops.copy(self.module._state._frozen, self.old_states)
        self.can_restore = False

    def updated(self) -> None:
        """The batches so far count: the states of before them will not come back."""
        self.can_restore = False

    def again(self, values: Sequence[Any]) -> list[Array] | None:
        """A step like the one before, on small arrays; None if there is more to be done."""
        module, now = self.module, self.now
        state = module._state
        if state._nominal is not None or state._settle is not None or not self.is_simple:
            return None
        if not module._overwrite or not isinstance(now, _Passes):
            return None
        draws = self.draws
        if draws is not None:
            draws.set()
        results = now.overwrite.again(values)
        if results is not None:
            module._overwrite = False
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

    def _single(self) -> _Passes:
        if self.single is None:
            self.single = _Passes(self, self._session(self.small.options()))
        return self.single


class _Eval:
    """The eval session, made when it is first used."""

    def __init__(self, source: Source, module: Module) -> None:
        self.module, self.source = module, repaired_eval(source)
        self.artifact = load_artifact(self.source, "eval", module._state)
        self.artifact.model.forget_values()  # a session reads the source again
        self.user = user_side(self.artifact)
        self._binding: Binding | None = None

    def binding(self) -> Binding:
        """Where the next inputs go."""
        if self._binding is None:
            self._binding = self._bind()
        return self._binding

    def again(self, values: Sequence[Any]) -> list[Array] | None:
        """A run like the one before, on small arrays; None if there is more to be done."""
        state = self.module._state
        if self._binding is None or state._nominal is not None or state._settle is not None:
            return None
        return self._binding.again(values)

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; tells whether they are OrtValues."""
        self.binding().feed(self.user.inputs, self.user.check.arrays(values))
        return all_ortvalues(values)

    def run(self) -> Binding:
        self.binding().run()
        return self.binding()

    def _bind(self) -> Binding:
        module = self.module
        module._state._need_values()
        check_state(self.artifact, module._state)
        model = ModelFile.load(self.source)  # checked again: the file may be another one by now
        options = session_options(module._session_options, folder=model.folder)
        binding = Binding(module._device.session(model.encode(), options), module._device)
        binding.user_outputs(self.user.outputs)
        binding.labels = self.user.labels
        for name in self.artifact.parameters:
            binding.input_tensor(name, module._state._store_of(name), name)
        return binding


def _keep(array: Array) -> None:
    """Let go of an array whose memory is no longer used."""
    del array


def _host() -> Any:
    return ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)
