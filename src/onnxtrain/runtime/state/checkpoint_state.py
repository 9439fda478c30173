"""CheckpointState: what users see of a `TrainingState`, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InputError, MissingParameterError, StateError
from ..session.sharing import Lock
from .buffers import TensorSpec, TensorStore
from .training_state import OptimizerState as OptimizerState
from .training_state import Property, TrainingState, check_disjoint
from .training_state import RandomState as RandomState

Array = npt.NDArray[Any]
Format = Literal["ortt", "odtc"]
PathLike: TypeAlias = "str | os.PathLike[str]"


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
        self.training_state = TrainingState(trainable)
        """What is viewed here, as typed fields."""
        if frozen is not None:
            self.training_state.frozen = frozen

    @classmethod
    def view(cls, state: TrainingState) -> CheckpointState:
        """A view of a state that there is; both see what either changes."""
        view = cls.__new__(cls)
        view.training_state = state
        return view

    @property
    def lock(self) -> Lock:
        """Held by every call that reads or changes the state; hold it to make several calls one."""
        return self.training_state.lock

    # --- making, loading, saving -----------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls, trainable: Mapping[str, Array], frozen: Mapping[str, Array] | None = None
    ) -> CheckpointState:
        """A state with copies of the given arrays, in the order given."""
        check_disjoint(trainable, frozen or {})
        return cls(TensorStore.from_arrays(trainable), TensorStore.from_arrays(frozen or {}))

    @classmethod
    def nominal(cls, trainable: list[str], frozen: list[str]) -> CheckpointState:
        """A state that knows the names of its parameters and no values yet."""
        state = cls(TensorStore([]))
        state.training_state.nominal = (list(trainable), list(frozen))
        return state

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: PathLike) -> CheckpointState:
        """Read a checkpoint: onnxtrain's own, or a file of onnxruntime-training 1.16 to 1.19.

        A damaged or foreign file raises `CheckpointError`; nothing else is changed by it.
        """
        from ..files.checkpoint import load

        return cls.view(load(checkpoint_uri))

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

        save(state.training_state, checkpoint_uri, include_optimizer_state, format)

    # --- what users see --------------------------------------------------------------------------

    @property
    def parameters(self) -> Parameters:
        """The parameters, by name."""
        return Parameters(self.training_state)

    @property
    def properties(self) -> Properties:
        """Numbers and strings of the user's own, saved with the state."""
        return Properties(self.training_state)

    @property
    def seed(self) -> int:
        """From which Dropout masks follow, together with the number of training passes so far."""
        return self.training_state.random.seed

    @seed.setter
    def seed(self, value: int) -> None:
        if not 0 <= int(value) < 2**64:
            raise ValueError(f"A seed is a number of 64 bits, not negative: {value} is none.")
        self.training_state.random.seed = int(value)

    @property
    def is_nominal(self) -> bool:
        """Whether the parameters have no values yet."""
        return self.training_state.is_nominal

    def __getitem__(self, name: str) -> Property:
        """A property, as in the first releases of this interface."""
        return self.properties[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self.properties[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.training_state.properties

    def __repr__(self) -> str:
        trainable, frozen = self.training_state.names()
        kind = "nominal, " if self.is_nominal else ""
        return (
            f"CheckpointState({kind}{len(trainable)} trainable and {len(frozen)} frozen "
            f"parameters, {len(self.training_state.properties)} properties)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        from ..files.checkpoint import to_bytes

        return _unpickled, (to_bytes(self.training_state),)


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

    def __init__(self, name: str, state: TrainingState) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        """The name it has in the model."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self._name in self._state.names()[0]

    @property
    def data(self) -> Array:
        """Its values: a view of the buffer that is trained (a read-only copy on a GPU)."""
        state = self._state
        if state.is_nominal:
            raise _no_values(self._name)
        state.sync()
        store = state.store_of(self._name)
        return _guard(store.view(self._name), store)

    @data.setter
    def data(self, value: npt.ArrayLike) -> None:
        state = self._state
        if state.is_nominal:
            raise StateError(
                f"Parameter {self._name!r} cannot be set alone. Please load all the parameter "
                "states first (Module.copy_buffer_to_parameters)."
            )
        store = state.store_of(self._name)
        array = checked(self._name, value, store.specs[self._name])
        with state.lock:
            state.sync()
            store.view(self._name)[...] = array
            store.push()

    @property
    def grad(self) -> Array | None:
        """Its gradient: a view; None if it is frozen or no `Module` was made yet."""
        gradients = self._state.gradients
        if gradients is None or self._name not in gradients:
            return None
        with self._state.lock:
            gradients.pull()
        return _guard(gradients.view(self._name), gradients)

    def __repr__(self) -> str:
        return f"Parameter(name={self._name!r}, requires_grad={self.requires_grad})"


def _no_values(name: str) -> StateError:
    return StateError(
        f"Parameter {name!r} has no values yet. Please load the parameter states first "
        "(Module.copy_buffer_to_parameters)."
    )


class Parameters:
    """The parameters of a state, by name; iteration gives (name, Parameter), sorted."""

    __slots__ = ("_state",)

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def _names(self) -> list[str]:
        trainable, frozen = self._state.names()
        return trainable + frozen

    def __getitem__(self, name: str) -> Parameter:
        parameter = self._parameter(name)
        if self._state.is_nominal:
            raise _no_values(name)
        return parameter

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self._parameter(name).data = value

    def _parameter(self, name: str) -> Parameter:
        if name not in self:
            raise MissingParameterError(name, self._names())
        return Parameter(name, self._state)

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
        spec = self._state.store_of(name).specs[name]
        return f"{name}: {spec.type.numpy}{list(spec.shape)}"


class Properties:
    """Numbers and strings of the user's own; iteration gives (name, value), sorted.

    Example:
        >>> state = CheckpointState.from_arrays({})
        >>> state.properties["best"] = 0.5
        >>> state.properties
        Properties(best=0.5)
    """

    __slots__ = ("_state", "_values")

    def __init__(self, state: TrainingState) -> None:
        self._state, self._values = state, state.properties

    def __getitem__(self, name: str) -> Property:
        if name not in self._values:
            raise KeyError(f"Property {name!r} not found.")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self._state.set_property(name, value)

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


def _unpickled(content: bytes) -> CheckpointState:
    from ..files.checkpoint import from_bytes

    return CheckpointState.view(from_bytes(content))
