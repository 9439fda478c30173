"""What a trainer trains, seen as the session of onnxruntime-training was."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .core import Core

Array = npt.NDArray[Any]
MOMENTS = {"Moment_1": "first_order_moments", "Moment_2": "second_order_moments"}


class TrainerSession:
    """Weights and optimizer states of a trainer that has seen its first batch: copies.

    Args:
        core: what trains.
        shared_step: whether the number of updates belongs to all weights (Lamb) or to each.
    """

    def __init__(self, core: Core, *, shared_step: bool = False) -> None:
        self._core, self._shared_step = core, shared_step

    def get_model_state(
        self, include_mixed_precision_weights: bool = False
    ) -> dict[str, dict[str, Array]]:
        """All weights and buffers, in the one precision there is."""
        return {"full_precision": {n: np.array(a) for n, a in self._core.weights().items()}}

    def get_optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Moments and number of updates by weight; nothing for an optimizer without moments."""
        engine = self._core.need_engine("get_optimizer_state()")
        moments = engine.moments()
        if not moments:
            return {}
        count = np.array([engine.updates + 1], np.int64)
        states: dict[str, dict[str, Array]] = {}
        for name in self._core.trained():
            states[name] = {k: moments[kind][name].copy() for k, kind in MOMENTS.items()}
            if not self._shared_step:
                states[name]["Update_Count"] = count.copy()
        if self._shared_step:
            states["shared_optimizer_state"] = {"step": count}
        return states

    def get_state(self) -> dict[str, Array]:
        """What training changes: the trained weights, then ``Moment_1_<weight>`` and the like."""
        weights = self._core.need_engine("get_state()").weights()
        states = {name: np.array(weights[name]) for name in self._core.trained()}
        for weight, entry in self.get_optimizer_state().items():
            if weight == "shared_optimizer_state":
                states["Step"] = entry["step"]
            else:
                states.update((f"{key}_{weight}", array) for key, array in entry.items())
        return states

    def get_partition_info_map(self) -> dict[str, Any]:
        """Which weights are divided among processes: none, every process has all of them."""
        return {}
