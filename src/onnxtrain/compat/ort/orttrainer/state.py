"""Values of a trainer, in and out, under the names that torch knows them by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import torch

from ....errors import StateError
from .engine import Engine, as_array

Array = npt.NDArray[Any]
Model = torch.nn.Module | onnx.ModelProto


@dataclass
class Loaded:
    """Values that wait for the engine: weights, moments by kind, number of updates, randomness."""

    weights: dict[str, Array] = field(default_factory=dict)
    moments: dict[str, dict[str, Array]] = field(default_factory=dict)
    updates: int | None = None
    random: tuple[int, int] | None = None
    strict: bool = False


def read(engine: Engine, model: Model, names: Mapping[str, str]) -> dict[str, Array]:
    """All weights and buffers; of a torch module those too that the graph does not use.

    Args:
        engine: what trains them.
        model: the user's.
        names: from torch's names to initializers.
    """
    changing, constants = engine.weights(), engine.constants()

    def value(initializer: str) -> Array:
        if initializer in changing:
            return changing[initializer]
        return np.asarray(onnx.numpy_helper.to_array(constants[initializer]))

    if isinstance(model, torch.nn.Module):
        return {
            name: value(names[name]) if name in names else as_array(tensor)
            for name, tensor in model.state_dict().items()
        }
    return {**{n: value(n) for n in constants}, **changing}


def write(
    engines: Sequence[Engine], model: Model, names: Mapping[str, str], loaded: Loaded
) -> None:
    """Take over values; engines share what changes and have constants of their own."""
    is_torch = isinstance(model, torch.nn.Module)
    own = model.state_dict() if isinstance(model, torch.nn.Module) else {}
    if loaded.strict:
        _check_names(list(own) if is_torch else list(names), loaded.weights)
    engine = engines[0]
    changing, constants = engine.weights(), engine.constants()
    fixed: dict[str, Array] = {}
    for name, array in loaded.weights.items():
        target = names.get(name)
        if target in changing:
            _copy(name, changing[target], array)
        elif target in constants:
            _check_shape(name, tuple(constants[target].dims), array)
            fixed[target] = np.asarray(array)
        elif name in own:
            with torch.no_grad():
                own[name].copy_(torch.as_tensor(array))
    _copy_moments(engine, loaded)
    if loaded.updates is not None:
        engine.updates = loaded.updates
    if loaded.random is not None:
        engine.random = loaded.random
    engine.state.push()
    for each in engines:
        each.set_constants(fixed)


def _copy_moments(engine: Engine, loaded: Loaded) -> None:
    for kind, of_weights in loaded.moments.items():
        views = engine.moments().get(kind, {})
        for name, array in of_weights.items():
            if name in views:
                _copy(f"{kind} of {name}", views[name], array)


def _check_names(known: Collection[str], weights: Collection[str]) -> None:
    missing = [n for n in known if n not in weights]
    extra = [n for n in weights if n not in known]
    if missing or extra:
        raise StateMismatchError(
            f"The state does not fit the model: missing {missing}, unexpected {extra}."
        )


def check_keys(known: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Raise unless the sections that both states have, have the same names.

    Args:
        known: the trainer's own state dictionary.
        loaded: one that is to be loaded.
    """
    for section in ("model", "optimizer"):
        if section in known and section in loaded:
            _check_nested(known[section], loaded[section], section)


def _check_nested(known: Any, loaded: Any, where: str) -> None:
    if not isinstance(known, Mapping) or not isinstance(loaded, Mapping):
        return
    missing = [n for n in known if n not in loaded]
    extra = [n for n in loaded if n not in known]
    if missing or extra:
        raise StateMismatchError(
            f"The state does not fit the model: under {where!r} are missing {missing} and "
            f"unexpected {extra}."
        )
    for name in known:
        _check_nested(known[name], loaded[name], f"{where}/{name}")


def random_of(saved: Any) -> tuple[int, int]:
    """Seed and counter, as a state has them."""
    try:
        seed, counter = saved
        if 0 <= seed < 1 << 64 and 0 <= counter < 1 << 63:
            return int(seed), int(counter)
    except (TypeError, ValueError):
        pass
    raise StateMismatchError(
        f"The state's random numbers are {saved!r}, where seed and counter are needed. Leave them "
        "out of the state to draw new ones."
    )


class StateMismatchError(StateError, KeyError):
    """A state has other names or shapes than the model."""

    def __str__(self) -> str:
        return str(self.args[0])


def _copy(name: str, target: Array, value: Any) -> None:
    array = np.asarray(value)
    _check_shape(name, target.shape, array)
    target[...] = array


def _check_shape(name: str, shape: tuple[int, ...], array: Any) -> None:
    if np.shape(array) != tuple(shape):
        raise StateMismatchError(
            f"{name!r} has the shape {tuple(shape)} in the model and {np.shape(array)} in the "
            "state."
        )
