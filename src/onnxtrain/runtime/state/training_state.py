"""TrainingState: everything a training run has to remember, as fields.

What trains works on these fields; `CheckpointState` is the view of them that users have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...errors import InputError, StateError
from ..session.devices import Device
from ..session.sharing import Lock, lock_after_fork, note
from .buffers import TensorSpec, TensorStore

Property: TypeAlias = "int | float | str"


def check_disjoint(trainable: Collection[str], frozen: Collection[str]) -> None:
    """An error if a parameter is both."""
    both = {*trainable} & {*frozen}
    if both:
        raise InputError(f"Parameters {sorted(both)} are given as trainable and as frozen.")


@dataclass
class OptimizerState:
    """What an optimizer remembers: counters, learning rate, and one store per kind of moment."""

    name: str
    step: int = 0
    learning_rate: float = 0.001
    states: dict[str, TensorStore] = field(default_factory=dict)


@dataclass
class RandomState:
    """From which the masks of Dropout follow.

    Attributes:
        seed: of 64 bits.
        generation: the sessions started so far, from which models of earlier releases, whose
            kernels draw, get their seeds.
        counter: the training passes drawn for so far.
        rank: that of this process among those that train together; each draws its own masks. It is
            not saved.
    """

    seed: int = 0
    generation: int = 0
    counter: int = 0
    rank: int = field(default=0, compare=False)


@dataclass(eq=False)
class TrainingState:
    """The tensors and numbers of a training run.

    Attributes:
        trainable: the parameters that are trained.
        frozen: the other parameters, and states that a forward pass changes (running statistics).
        nominal: names of trainable and frozen parameters, while these have no values yet.
        gradients: like `trainable`; None until something computes them.
        optimizer: step count, learning rate and moments; None until there is an optimizer.
        scheduler: position of the learning rate's schedule.
        resumable_scheduler: the position that a loaded checkpoint had; None if no schedule was
            made since.
        trainer: position of a `Trainer`.
        random: from which the masks of Dropout follow.
        properties: the user's own numbers and strings.
        write_back: brings the stores up to date, if a step keeps newer values elsewhere.
        lock: held by every call that reads or changes the state.
    """

    trainable: TensorStore
    frozen: TensorStore = field(default_factory=lambda: TensorStore([]))
    nominal: tuple[list[str], list[str]] | None = None
    gradients: TensorStore | None = None
    optimizer: OptimizerState | None = None
    scheduler: dict[str, Any] = field(default_factory=dict)
    resumable_scheduler: dict[str, Any] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    random: RandomState = field(default_factory=RandomState)
    properties: dict[str, Property] = field(default_factory=dict)
    write_back: Callable[[], None] | None = None
    lock: Lock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        note(self)

    @property
    def is_nominal(self) -> bool:
        """Whether the parameters have no values yet."""
        return self.nominal is not None

    def names(self) -> tuple[list[str], list[str]]:
        """Names of the trainable and of the frozen parameters."""
        return self.nominal or (list(self.trainable), list(self.frozen))

    def store_of(self, name: str) -> TensorStore:
        """The store that holds a parameter."""
        return self.trainable if name in self.trainable else self.frozen

    def stores(self) -> list[TensorStore]:
        """All that a checkpoint holds: parameters, and moments if there are any."""
        moments = list(self.optimizer.states.values()) if self.optimizer else []
        return [self.trainable, self.frozen, *moments]

    def need_gradients(self) -> TensorStore:
        """The gradients; made, as zeros, if there are none."""
        if self.gradients is None:
            self.gradients = self.trainable.like()
        return self.gradients

    def need_optimizer(self) -> OptimizerState:
        """The optimizer's state; an error if somebody took it away."""
        if self.optimizer is None:
            raise StateError("The optimizer state of this checkpoint was taken away.")
        return self.optimizer

    def need_values(self) -> None:
        """Raise if the parameters have no values yet."""
        if self.is_nominal:
            raise StateError(
                "Please load the model parameters first. The checkpoint is nominal (names only): "
                "call Module.copy_buffer_to_parameters(buffer, trainable_only=False)."
            )

    def set_property(self, name: object, value: object) -> None:
        """Set one of the user's own numbers and strings, if it is one."""
        self.properties[_property_name(name)] = _property_value(name, value)

    def sync(self) -> None:
        """Bring the host's buffers up to date before anyone reads or changes them."""
        with self.lock:
            if self.write_back is not None:
                self.write_back()
            for store in self.stores():
                store.pull()

    def push(self) -> None:
        """Send what was changed on the host to the device."""
        for store in self.stores():
            store.push()

    def allocate(self, specs: Mapping[str, TensorSpec]) -> None:
        """Give a nominal state room for its values, shapes taken from the training model."""
        if self.nominal is None or len(self.trainable) or len(self.frozen):
            return
        trainable, frozen = self.nominal
        self.trainable = TensorStore(specs[n] for n in trainable)
        self.frozen = TensorStore(specs[n] for n in frozen)

    def place(self, device: Device) -> None:
        """Keep the values on `device` from now on."""
        self.sync()
        for store in self.stores():
            store.place(device)

    def after_fork(self) -> None:
        """Be usable in a forked process, unless another thread was in the middle of a step."""
        self.lock = lock_after_fork(self.lock, "CheckpointState")


def _property_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"The name of a property is a string, not {name!r}.")
    return name


def _property_value(name: object, value: object) -> Property:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | np.integer | np.bool_):
        number = int(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"Property {name!r}: {number} does not fit into 64 bits.")
        return number
    if isinstance(value, float | np.floating):
        return float(value)
    raise TypeError(
        f"Property {name!r} must be an int, a float or a string, not {type(value).__name__}."
    )
