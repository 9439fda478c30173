"""Updates that are clipped, and that are taken back when they are no good."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ...errors import NonFiniteError
from ..state.training_state import OptimizerState, TrainingState
from .finite import HUGE, Snapshot, clip_factor, first_not_finite, global_norm, refused


class RunsUpdate(Protocol):
    """What changes parameters and moments from the gradients, in place."""

    @property
    def is_foreign(self) -> bool:
        """Whether a user wrote it, so that nothing is known of what it makes of gradients."""

    def run(self, step: int, rate: float, scale: float) -> None:
        """One update with the given number, learning rate and gradient scale."""


class Watch:
    """Looks at the norm of the gradients before an update, and at the result if it may overflow.

    Args:
        state: what is updated.
        discard: called before an update is refused.
    """

    def __init__(self, state: TrainingState, discard: Callable[[], None] | None = None) -> None:
        self._state, self._discard = state, discard

    def apply(
        self,
        update: RunsUpdate,
        rate: float,
        scale: float,
        *,
        limit: float | None,
        check_finite: bool,
    ) -> None:
        """Update with clipped gradients, or not at all if they are no good and that is checked.

        One norm serves both.

        Args:
            update: makes it.
            rate: the learning rate.
            scale: what all gradients are multiplied with.
            limit: of their norm; None does not clip.
            check_finite: raise `NonFiniteError`, and change nothing, when gradients or results are
                NaN or infinite.
        """
        memory = self._state.need_optimizer()
        norm = abs(scale) * (self.check_gradients() if check_finite else self._norm())
        if limit is not None:
            factor = clip_factor(norm, limit)
            scale, norm = scale * factor, norm * factor
        numbers = (memory.step + 1, rate, scale)
        if check_finite and (update.is_foreign or max(norm, rate) > HUGE):
            self._try(update, memory, numbers)
        else:
            update.run(*numbers)

    def check_gradients(self) -> float:
        """The norm of all gradients together; raises `NonFiniteError` if one is not finite."""
        norm = self._norm()
        if not math.isfinite(norm):
            bad = first_not_finite(self._state.need_gradients())
            raise self._refused(f"The gradient of {bad!r}")
        return norm

    def _norm(self) -> float:
        return global_norm(self._state.need_gradients())

    def _try(
        self, update: RunsUpdate, memory: OptimizerState, numbers: tuple[int, float, float]
    ) -> None:
        """Update, and take it back if the result is not finite."""
        stores = [self._state.trainable, *memory.states.values()]
        before = Snapshot(stores)
        with np.errstate(over="ignore", invalid="ignore"):  # that is what is looked for
            update.run(*numbers)
        name = next(filter(None, map(first_not_finite, stores)), None)
        if name is not None:
            before.restore()
            raise self._refused(f"What update {numbers[0]} would make of {name!r}")

    def _refused(self, what: str) -> NonFiniteError:
        if self._discard is not None:
            self._discard()
        memory = self._state.optimizer
        number = (memory.step if memory is not None else 0) + 1
        return refused(f"{what} is NaN or infinite, in update {number}")
