"""The eval model with outputs of choice, on the parameters that are being trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelFileError
from ..files.onnxfile import Source
from ..session.binding import Binding, UserSide
from ..session.devices import Device, session_options
from ..session.sharing import OneProcess, exclusive
from ..state.training_state import TrainingState
from .artifact import load_artifact
from .step import Step

Array = npt.NDArray[Any]


class Evaluator(OneProcess, Step):
    """Runs the part of the eval model that the chosen outputs need.

    Args:
        source: path or bytes of the eval model.
        state: the parameters, shared.
        device: where to run.
        with_loss: loss first, then the model's outputs; otherwise the latter only, and
            inputs that only the loss needs (the targets) are not asked for.
        with_outputs: the model's outputs too; without them a language model's scores, which may
            take gigabytes, need not be kept.
        options: onnxruntime's session options.
    """

    _instead = "Hand over the CheckpointState, and make a new one from it and the model there."

    def __init__(
        self,
        source: Source,
        state: TrainingState,
        device: Device,
        *,
        with_loss: bool,
        with_outputs: bool = True,
        options: Any = None,
    ) -> None:
        artifact = load_artifact(source, "eval", state)
        model = artifact.model
        self.model_outputs = artifact.model_outputs
        loss = artifact.user_outputs[:1] if with_loss else []
        chosen = list(dict.fromkeys([*loss, *(self.model_outputs if with_outputs else [])]))
        if not chosen:
            raise ModelFileError(f"{model.where} says of no output that it is a prediction.")
        model.set_outputs(chosen)
        model.prune()
        used = model.used_names()
        model.keep_inputs(lambda name: name in used)
        inputs = [n for n in artifact.user_inputs if n in used]
        self.user = UserSide(
            artifact.infos(inputs),
            artifact.infos(chosen, outputs=True),
            set(model.initializer_names),
            artifact.labels,
        )
        self.target_index = len(inputs) - 1
        self.fixed_batch = self.user.fixed_batch
        self.state, self.device = state, device
        self._share(state.lock)
        chosen_options = session_options(
            options, folder=artifact.folder, constants=model.external_size
        )
        session = device.session(model.encode(), chosen_options)
        self._binding = Binding(session, device)
        self._binding.user_outputs(self.user.outputs)
        for name in artifact.parameters:
            self._binding.input_tensor(name, state.store_of(name), name)

    def binding(self) -> Binding:
        """Where the next inputs go."""
        return self._binding

    def weight(self, target: Array) -> int:
        """How many elements a batch's mean loss is the mean of: labels that count, or rows."""
        name = self.user.input_names[self.target_index]
        for labels in self.user.labels:
            if labels.input == name:
                return labels.counted(target)
        return len(target) if target.ndim else 1

    def counted(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        """Predictions and targets without the elements whose label is ignored.

        Once a label is ignored, every other one is a row: (N, C, …) becomes (n, C).
        """
        name = self.user.input_names[self.target_index]
        for labels in self.user.labels:
            if labels.input == name and labels.counted(target) < target.size:
                return _rows(prediction, target, target != labels.ignore_index)
        return prediction, target

    def filled(self, values: Sequence[Any]) -> list[Any] | None:
        """A batch with as many rows as the model takes: others are added whose labels are ignored.

        None if the loss has no label that is ignored: then the added rows would count.
        """
        missing = self._missing(values)
        if missing <= 0:
            return list(values)
        name = self.user.input_names[self.target_index]
        ignored = [c.ignore_index for c in self.user.labels if c.input == name]
        if not ignored or ignored[0] is None:
            return None
        *inputs, target = _with_more_rows(values, missing)
        target[-missing:] = ignored[0]
        return [*inputs, target]

    def _missing(self, values: Sequence[Any]) -> int:
        rows = len(values[0]) if np.ndim(values[0]) else 0
        return (self.fixed_batch or 0) - rows if rows else 0

    def predict(self, values: Sequence[Any]) -> list[Array]:
        """Run on one batch that may have fewer rows than the model takes."""
        missing = self._missing(values)
        if missing <= 0:
            return self(values)
        outputs = self(_with_more_rows(values, missing))
        return [o[:-missing] if o.ndim and len(o) == self.fixed_batch else o for o in outputs]

    @exclusive
    def __call__(self, values: Sequence[Any]) -> list[Array]:
        """Run on one batch."""
        self.feed(values)
        if self.state.write_back is not None:
            self.state.write_back()
        return self.run().results()


def _with_more_rows(values: Sequence[Any], count: int) -> list[Array]:
    """Each array with its last row repeated."""
    arrays = [np.asarray(v) for v in values]
    return [np.concatenate([a, np.repeat(a[-1:], count, axis=0)]) for a in arrays]


def _rows(prediction: Array, target: Array, counts: Array) -> tuple[Array, Array]:
    """The scores and labels of the elements that count, one row each."""
    shape = (*prediction.shape[:1], *prediction.shape[2:])
    if prediction.ndim < 2 or shape != target.shape:
        return prediction, target[counts]
    rows = np.moveaxis(prediction, 1, -1).reshape(-1, prediction.shape[1])
    return rows[counts.reshape(-1)], target[counts]


def join(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Outputs of several batches, put together row by row; single numbers, one per batch."""
    return [np.concatenate([np.atleast_1d(p[i]) for p in parts]) for i in range(len(parts[0]))]
