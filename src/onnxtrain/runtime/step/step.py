"""The two small interfaces that all training goes through.

A `Step` runs one model on the buffers of a state; an `Engine` makes updates out of batches.
`Module`, `Optimizer` and `Trainer` are faces of them, and so are the classes in `compat/` and
`torch/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ..session.binding import Binding, UserSide, all_ortvalues
from ..session.devices import Device
from ..state.training_state import TrainingState

Array = npt.NDArray[Any]


class Step(ABC):
    """One model, run again and again on the buffers of a state.

    All but the user's inputs is bound once. `feed` checks and binds those, `run` runs, and the
    results are in the binding that it gives.

    Attributes:
        state: whose buffers are bound.
        device: where they live.
        user: the inputs and outputs that belong to the user.
    """

    state: TrainingState
    device: Device
    user: UserSide

    @abstractmethod
    def binding(self) -> Binding:
        """Where the next inputs go."""

    def again(self, values: Sequence[Any]) -> list[Array] | None:
        """A run like the one before, on small arrays; None if there is more to be done."""
        del values
        return None

    def feed(self, values: Sequence[Any]) -> bool:
        """Check and bind the user's inputs; tells whether they are OrtValues."""
        self.binding().feed(self.user.inputs, self.user.check.arrays(values))
        return all_ortvalues(values)

    def run(self) -> Binding:
        """Run on what was fed; the results are in the binding."""
        binding = self.binding()
        binding.run()
        return binding


class Engine(ABC):
    """What a training loop drives: batches go in, updates are made.

    Attributes:
        training_state: what is trained.
        input_names: what a batch consists of.
        fixed_batch: the number of rows of each batch, if the model takes no other.
    """

    training_state: TrainingState
    input_names: list[str]
    fixed_batch: int | None = None

    @property
    @abstractmethod
    def step_count(self) -> int:
        """Number of updates so far, those before a resume included."""

    @abstractmethod
    def run(self, values: Any) -> tuple[float, int]:
        """One (micro-)batch; gives mean loss and rows as far as they are known, else zeros."""

    def finish(self) -> tuple[float, int]:
        """Update from what is gathered, at the end of an epoch from fewer micro-batches.

        Gives loss and rows that `run` has not told yet.
        """
        return 0.0, 0

    def forget(self) -> None:  # noqa: B027  # most have none
        """Drop micro-batches that an interrupted training left behind."""

    @abstractmethod
    def nothing_counts(self, values: Any) -> bool:
        """Whether every label of a batch is ignored: then its mean loss is 0/0, and no mistake."""
