"""The eval model, run on the parameters of a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ..files.onnxfile import ModelFile, Source
from ..files.predecessor import repaired_eval
from ..session.binding import Binding, user_side
from ..session.devices import Device, session_options
from ..state.training_state import TrainingState
from .artifact import check_state, load_artifact
from .step import Step

Array = npt.NDArray[Any]


class EvalStep(Step):
    """The eval session, made when it is first used.

    Args:
        source: path or bytes of the eval model.
        state: whose parameters are bound.
        device: where to run.
        options: the user's session options.
    """

    def __init__(
        self, source: Source, state: TrainingState, device: Device, options: Any = None
    ) -> None:
        self.state, self.device, self.user_options = state, device, options
        self.source = repaired_eval(source)
        self.artifact = load_artifact(self.source, "eval", state)
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
        state = self.state
        if self._binding is None or state.nominal is not None or state.write_back is not None:
            return None
        return self._binding.again(values)

    def _bind(self) -> Binding:
        state, device = self.state, self.device
        state.need_values()
        check_state(self.artifact, state)
        model = ModelFile.load(self.source)  # checked again: the file may be another one by now
        options = session_options(
            self.user_options, folder=model.folder, constants=model.external_size
        )
        binding = Binding(device.session(model.encode(), options), device)
        binding.user_outputs(self.user.outputs)
        binding.labels = self.user.labels
        for name in self.artifact.parameters:
            binding.input_tensor(name, state.store_of(name), name)
        return binding
