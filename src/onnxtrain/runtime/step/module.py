"""Module: the forward and backward pass of a training artifact, and the eval model."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from onnxruntime.capi import _pybind_state as ort

from ...errors import InputError, StateError
from ...preparing import preparing
from ..files.onnxfile import Source
from ..session.binding import HOST
from ..session.collector import paused_collector
from ..session.devices import Device, Provider
from ..session.native import raw_ortvalue
from ..session.sharing import OneProcess, exclusive
from ..state.checkpoint_state import CheckpointState
from .artifact import check_state, load_artifact, specs_of
from .eval_step import EvalStep
from .finite import refused
from .gradient_step import GradientStep

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
        session_options: onnxruntime's options; what they leave alone, onnxtrain chooses.
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

    @preparing("preparing the training model")
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
        self.state, self._values = state, state.training_state
        self._device = where = Device(device, providers)
        self._share(state.lock)
        artifact = load_artifact(train_model_uri, "training", self._values)
        self._eval = (
            None
            if eval_model_uri is None
            else EvalStep(eval_model_uri, self._values, where, session_options)
        )
        check_state(artifact, self._values)
        self._order, self._trainable = artifact.parameters, list(artifact.trainable)
        self._specs = specs_of(artifact)
        self._values.place(where)
        if fold_frozen:
            self._values.need_values()
        self._last_vector: Array | None = None
        self.gradient_step = GradientStep(
            artifact,
            self._values,
            where,
            session_options,
            fold=fold_frozen,
            check_finite=check_finite,
        )
        """What runs the training model."""

    @property
    def check_finite(self) -> bool:
        """Whether a loss or gradient that is NaN or infinite raises `NonFiniteError`."""
        return self.gradient_step.check_finite

    @check_finite.setter
    def check_finite(self, value: bool) -> None:
        self.gradient_step.check_finite = value

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
            train = self.gradient_step
            if train.sessions.must_rest:
                train.sessions.rest()
            part: GradientStep | EvalStep = train if self.training else self._need_eval()
            quick = None if named_inputs else part.again(user_inputs)
            if quick is not None:
                if train.check_finite and self.training:
                    self._check_loss(quick[0], user_inputs)
                return quick[0] if len(quick) == 1 else tuple(quick)
            as_values = False
            if named_inputs or not part.binding().feed_again(user_inputs):
                as_values = part.feed(part.user.ordered(user_inputs, named_inputs))
            self._values.need_values()
            if self._values.write_back is not None:
                self._values.write_back()
            binding = part.run()
            results: Sequence[Any] = binding.result_values() if as_values else binding.results()
            if self.training:
                if train.check_finite:
                    loss = results[0].numpy() if as_values else results[0]
                    self._check_loss(loss, part.user.ordered(user_inputs, named_inputs))
                train.commit()
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
            self.gradient_step.start_anew()

    def discard_step(self) -> None:
        """Drop the batches since the last update, because one of them is no good.

        The next training step overwrites the gradients. With `check_finite`, running statistics go
        back to what they were before the first of these batches.
        """
        with self._lock:
            self.gradient_step.discard()

    def input_names(self) -> list[str]:
        """Names of the user's inputs of the current mode's model."""
        return (self.gradient_step if self.training else self._need_eval()).user.input_names

    def output_names(self) -> list[str]:
        """Names of the outputs of the current mode's model."""
        return (self.gradient_step if self.training else self._need_eval()).user.output_names

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
        self._values.need_values()
        self._values.sync()
        vector = self._shared_vector(names)
        if vector is None:
            views = [self._values.store_of(n).view(n).reshape(-1) for n in names]
            vector = np.concatenate(views) if views else np.empty(0, np.float32)
        value = ort.OrtValue.ortvalue_from_numpy(vector, HOST.ort_device)
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
        state = self._values
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
        state.sync()
        at, flat = 0, vector.reshape(-1)
        for name in names:
            view = state.store_of(name).view(name)
            view[...] = flat[at : at + view.size].reshape(view.shape)
            at += view.size
        state.nominal = None
        state.push()

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
        self._values.need_values()
        self._values.sync()
        export(part.source, self._values, inference_model_uri, graph_output_names, external_data)

    def __repr__(self) -> str:
        mode = "training" if self.training else "eval"
        return (
            f"Module({mode}, inputs={self.gradient_step.user.input_names}, {len(self._trainable)} "
            f"trainable of {len(self._order)} parameters, device={self._device.name!r})"
        )

    # --- inside ----------------------------------------------------------------------------------

    def _check_loss(self, loss: Array, values: Sequence[Any]) -> None:
        if math.isfinite(loss) if loss.size == 1 else np.isfinite(loss).all():
            return
        step = self.gradient_step
        if step.user.nothing_counts(values):
            return  # the mean of no labels is no number, and no mistake
        if step.overwrite:  # batches before this one were given up without an update, and stay
            step.can_restore = False
        self.discard_step()
        memory = self._values.optimizer
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
        for store in (self._values.trainable, self._values.frozen):
            buffer = store.buffers.get("F32")
            if buffer is not None and list(buffer.slots) == list(names) and buffer.tight():
                return buffer.data[: list(buffer.slots.values())[-1].stop]
        return None

    def _need_eval(self) -> EvalStep:
        if self._eval is None:
            raise StateError(
                "Eval model was not provided. Give eval_model_uri to Module to evaluate or export."
            )
        return self._eval


def _keep(array: Array) -> None:
    """Let go of an array whose memory is no longer used."""
    del array
