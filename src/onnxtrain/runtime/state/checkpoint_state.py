"""CheckpointState: everything a training run has to remember, and views of it by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InputError, MissingParameterError, StateError
from ..session.devices import Device
from ..session.sharing import Lock, lock_after_fork, note
from .buffers import TensorSpec, TensorStore

Array = npt.NDArray[Any]
Property: TypeAlias = "int | float | str"
Format = Literal["ortt", "odtc"]
PathLike: TypeAlias = "str | os.PathLike[str]"


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


class CheckpointState:
    """Parameters, optimizer state, properties and random state of a training run.

    Made by `load_checkpoint`, or from arrays by `from_arrays`. `Module` and `Optimizer` work on its
    buffers directly, so what they change is seen here and the reverse.

    Example:
        >>> state = CheckpointState.from_arrays({"w": np.zeros(3, np.float32)})
        >>> state.parameters["w"].data = np.ones(3, np.float32)
        >>> state.properties["epoch"] = 4
        >>> state.parameters
        Parameters(w: float32[3])
    """

    def __init__(self, trainable: TensorStore, frozen: TensorStore | None = None) -> None:
        if not isinstance(trainable, TensorStore):
            raise TypeError(
                "CheckpointState is made by CheckpointState.load_checkpoint(path) or "
                f".from_arrays(...), not from {type(trainable).__name__}."
            )
        self._trainable = trainable
        self._frozen = frozen if frozen is not None else TensorStore([])
        self._nominal: tuple[list[str], list[str]] | None = None
        self._gradients: TensorStore | None = None
        self._optimizer: OptimizerState | None = None
        self._scheduler: dict[str, Any] = {}
        self._resumable_scheduler: dict[str, Any] | None = None
        self._trainer: dict[str, Any] = {}
        self._random = RandomState()
        self._properties: dict[str, Property] = {}
        self._settle: Callable[[], None] | None = None
        self.lock: Lock = threading.RLock()
        """Held by every call that reads or changes the state; hold it to make several calls one."""
        note(self)

    # --- making, loading, saving -----------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls, trainable: Mapping[str, Array], frozen: Mapping[str, Array] | None = None
    ) -> CheckpointState:
        """A state with copies of the given arrays, in the order given."""
        both = set(trainable) & set(frozen or {})
        if both:
            raise InputError(f"Parameters {sorted(both)} are given as trainable and as frozen.")
        return cls(TensorStore.from_arrays(trainable), TensorStore.from_arrays(frozen or {}))

    @classmethod
    def nominal(cls, trainable: list[str], frozen: list[str]) -> CheckpointState:
        """A state that knows the names of its parameters and no values yet."""
        state = cls(TensorStore([]))
        state._nominal = (list(trainable), list(frozen))
        return state

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: PathLike) -> CheckpointState:
        """Read a checkpoint: onnxtrain's own, or a file of onnxruntime-training 1.16 to 1.19.

        A damaged or foreign file raises `CheckpointError`; nothing else is changed by it.
        """
        from ..files.checkpoint import load

        return load(checkpoint_uri)

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: PathLike,
        include_optimizer_state: bool = False,
        *,
        format: Format = "ortt",  # noqa: A002
    ) -> None:
        """Write a checkpoint atomically: killed at any moment, the old or the new is complete.

        Args:
            state: what to write.
            checkpoint_uri: the file.
            include_optimizer_state: also moments, step, learning rate, scheduler. Needed to
                continue a run exactly.
            format: ``"ortt"`` is a safetensors file; ``"odtc"`` is what onnxruntime-training 1.18
                and 1.19 read (no scheduler, random state or learning rate).
        """
        from ..files.checkpoint import save

        save(state, checkpoint_uri, include_optimizer_state, format)

    # --- what users see --------------------------------------------------------------------------

    @property
    def parameters(self) -> Parameters:
        """The parameters, by name."""
        return Parameters(self)

    @property
    def properties(self) -> Properties:
        """Numbers and strings of the user's own, saved with the state."""
        return Properties(self._properties)

    @property
    def seed(self) -> int:
        """From which Dropout masks follow, together with the number of training passes so far."""
        return self._random.seed

    @seed.setter
    def seed(self, value: int) -> None:
        if not 0 <= int(value) < 2**64:
            raise ValueError(f"A seed is a number of 64 bits, not negative: {value} is none.")
        self._random.seed = int(value)

    @property
    def is_nominal(self) -> bool:
        """Whether the parameters have no values yet."""
        return self._nominal is not None

    def __getitem__(self, name: str) -> Property:
        """A property, as in the first releases of this interface."""
        return self.properties[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self.properties[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._properties

    def __repr__(self) -> str:
        trainable, frozen = self._names()
        kind = "nominal, " if self.is_nominal else ""
        return (
            f"CheckpointState({kind}{len(trainable)} trainable and {len(frozen)} frozen "
            f"parameters, {len(self._properties)} properties)"
        )

    # --- what Module, Optimizer and the file formats use -----------------------------------------

    def _names(self) -> tuple[list[str], list[str]]:
        return self._nominal or (list(self._trainable), list(self._frozen))

    def _store_of(self, name: str) -> TensorStore:
        return self._trainable if name in self._trainable else self._frozen

    def _stores(self) -> list[TensorStore]:
        moments = list(self._optimizer.states.values()) if self._optimizer else []
        return [self._trainable, self._frozen, *moments]

    def _sync(self) -> None:
        """Bring the host's buffers up to date before anyone reads or changes them."""
        with self.lock:
            if self._settle is not None:
                self._settle()
            for store in self._stores():
                store.pull()

    def _allocate(self, specs: Mapping[str, TensorSpec]) -> None:
        """Give a nominal state room for its values, shapes taken from the training model."""
        if self._nominal is None or len(self._trainable) or len(self._frozen):
            return
        trainable, frozen = self._nominal
        self._trainable = TensorStore(specs[n] for n in trainable)
        self._frozen = TensorStore(specs[n] for n in frozen)

    def _need_values(self) -> None:
        if self.is_nominal:
            raise StateError(
                "Please load the model parameters first. The checkpoint is nominal (names only): "
                "call Module.copy_buffer_to_parameters(buffer, trainable_only=False)."
            )

    def _place(self, device: Device) -> None:
        self._sync()
        for store in self._stores():
            store.place(device)

    # --- other processes -------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Be usable in a forked process, unless another thread was in the middle of a step."""
        self.lock = lock_after_fork(self.lock, "CheckpointState")

    def __reduce__(self) -> tuple[Any, ...]:
        from ..files.checkpoint import from_bytes, to_bytes

        return from_bytes, (to_bytes(self),)


class Parameter:
    """A named tensor of the model, with its gradient.

    Example:
        >>> state = CheckpointState.from_arrays({"w": np.zeros(3, np.float32)})
        >>> w = state.parameters["w"]
        >>> w.data[0] = 5.0  # a view: the model sees it
        >>> w
        Parameter(name='w', requires_grad=True)
    """

    __slots__ = ("_name", "_state")

    def __init__(self, name: str, state: CheckpointState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        """The name it has in the model."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self._name in self._state._names()[0]

    @property
    def data(self) -> Array:
        """Its values: a view of the buffer that is trained (a read-only copy on a GPU)."""
        state = self._state
        if state.is_nominal:
            raise StateError(
                f"Parameter {self._name!r} has no values yet. Please load the parameter states "
                "first (Module.copy_buffer_to_parameters)."
            )
        state._sync()
        store = state._store_of(self._name)
        return _guard(store.view(self._name), store)

    @data.setter
    def data(self, value: npt.ArrayLike) -> None:
        state = self._state
        if state.is_nominal:
            raise StateError(
                f"Parameter {self._name!r} cannot be set alone. Please load all the parameter "
                "states first (Module.copy_buffer_to_parameters)."
            )
        store = state._store_of(self._name)
        array = checked(self._name, value, store.specs[self._name])
        with state.lock:
            state._sync()
            store.view(self._name)[...] = array
            store.push()

    @property
    def grad(self) -> Array | None:
        """Its gradient: a view; None if it is frozen or no `Module` was made yet."""
        gradients = self._state._gradients
        if gradients is None or self._name not in gradients:
            return None
        with self._state.lock:
            gradients.pull()
        return _guard(gradients.view(self._name), gradients)

    def __repr__(self) -> str:
        return f"Parameter(name={self._name!r}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state, by name; iteration gives (name, Parameter), sorted."""

    __slots__ = ("_state",)

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def _names(self) -> list[str]:
        trainable, frozen = self._state._names()
        return trainable + frozen

    def __getitem__(self, name: str) -> Parameter:
        if name not in self:
            raise MissingParameterError(name, self._names())
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((n, Parameter(n, self._state)) for n in sorted(self._names()))

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"Parameters({', '.join(map(self._shown, sorted(self._names())))})"

    def _shown(self, name: str) -> str:
        if self._state.is_nominal:
            return f"{name}: nominal"
        spec = self._state._store_of(name).specs[name]
        return f"{name}: {spec.type.numpy}{list(spec.shape)}"


class Properties:
    """Numbers and strings of the user's own; iteration gives (name, value), sorted.

    Example:
        >>> state = CheckpointState.from_arrays({})
        >>> state.properties["best"] = 0.5
        >>> state.properties
        Properties(best=0.5)
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Property]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Property:
        if name not in self._values:
            raise KeyError(f"Property {name!r} not found.")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self._values[_property_name(name)] = _property(name, value)

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._values.items()))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{k}={v!r}' for k, v in self)})"


def checked(name: str, value: npt.ArrayLike, spec: TensorSpec) -> Array:
    """`value` as an array, if type and shape are exactly those of the parameter."""
    array = np.asarray(value)
    if array.dtype != spec.type.numpy:
        raise InputError(
            f"Parameter {name!r} is {spec.type.numpy}, the new value {array.dtype}: "
            f"convert it with .astype({str(spec.type.numpy)!r})."
        )
    if array.shape != spec.shape:
        raise InputError(f"Parameter {name!r} has shape {spec.shape}, the new value {array.shape}.")
    return array


def _guard(view: Array, store: TensorStore) -> Array:
    """On a device the host has only a copy: forbid writing to it, it would be lost."""
    if store.placed:
        view = view.view()
        view.flags.writeable = False
    return view


def _property_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"The name of a property is a string, not {name!r}.")
    return name


def _property(name: str, value: object) -> Property:
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
