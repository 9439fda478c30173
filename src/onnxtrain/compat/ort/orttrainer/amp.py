"""Loss scaling: gradients of a scaled loss, an update only when all of them are finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ....errors import InputError

if TYPE_CHECKING:
    from .trainer_v2 import TrainStepInfo


class LossScaler:
    """Base of loss scalers: subclass it, and change `loss_scale` in `update`.

    Attributes:
        input_name: name of the model's loss-scale input; set by the trainer.
        loss_scale: the factor of the coming step.
    """

    def __init__(self, loss_scale: float) -> None:
        if not isinstance(loss_scale, (int, float)) or not 0 < loss_scale < math.inf:
            raise InputError(f"loss_scale must be a positive number, not {loss_scale!r}.")
        self._input_name: str | None = None
        self._loss_scale = self._initial_loss_scale = float(loss_scale)

    @property
    def input_name(self) -> str | None:
        """Name of the loss-scale input."""
        return self._input_name

    @input_name.setter
    def input_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InputError("'input_name' must be a name.")
        self._input_name = name

    @property
    def loss_scale(self) -> float:
        """The factor of the coming step."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(f"loss_scale must be a positive number, not {value!r}.")
        self._loss_scale = float(value)

    def reset(self) -> None:
        """Start again with the initial scale."""
        self._loss_scale = self._initial_loss_scale

    def update(self, train_step_info: TrainStepInfo) -> float:
        """Look at the step that was made; gives the next scale."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"loss_scale": self._loss_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was written."""
        self._loss_scale = float(state["loss_scale"])


class DynamicLossScaler(LossScaler):
    """Halves the scale when a gradient overflows, doubles it after a while without overflow.

    Args:
        automatic_update: let the trainer call `update` after each step.
        loss_scale: to start with.
        up_scale_window: steps without overflow until the scale is doubled.
        min_loss_scale: it never falls below.
        max_loss_scale: it never rises above.
    """

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(loss_scale)
        if not isinstance(up_scale_window, int) or up_scale_window < 1:
            raise InputError(f"up_scale_window must be a positive integer: {up_scale_window!r}.")
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale, self.max_loss_scale = float(min_loss_scale), float(max_loss_scale)
        self._stable_steps_count = 0

    @property
    def stable_steps(self) -> int:
        """Steps without overflow since the scale was changed last."""
        return self._stable_steps_count

    def reset(self) -> None:
        """Start again with the initial scale."""
        super().reset()
        self._stable_steps_count = 0

    def update(self, train_step_info: TrainStepInfo) -> float:
        """Look at the step that was made; gives the next scale."""
        if not self.automatic_update:
            return self._loss_scale
        return self.adapt(train_step_info.all_finite)

    def adapt(self, all_finite: bool) -> float:
        """Halve, keep or double the scale."""
        if not all_finite:
            self._stable_steps_count = 0
            self._loss_scale = max(self.min_loss_scale, self._loss_scale / 2)
            return self._loss_scale
        self._stable_steps_count += 1
        if self._stable_steps_count >= self.up_scale_window:
            self._stable_steps_count = 0
            self._loss_scale = min(self.max_loss_scale, self._loss_scale * 2)
        return self._loss_scale

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"loss_scale": self._loss_scale, "stable_steps": self._stable_steps_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was written."""
        super().load_state_dict(state)
        self._stable_steps_count = int(state.get("stable_steps", 0))
