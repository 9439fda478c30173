"""A `TrainingState` to and from a file.

Tensors are named ``param/<name>`` and ``optim/<state>/<name>``; the rest is JSON in the metadata.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy.typing as npt

from ...errors import CheckpointError
from ...hyper import check_rate
from ..state.buffers import TensorSpec, TensorStore
from ..state.training_state import OptimizerState, RandomState, TrainingState, check_disjoint
from . import tensorfile
from .dtypes import ElementType, of_array, stored

Array = npt.NDArray[Any]
FORMATS = ("ortt", "odtc")
RANDOM = ("seed", "generation", "counter")
"""What is saved of the random state; files of earlier releases have no counter."""


def save(
    state: TrainingState,
    path: str | os.PathLike[str],
    include_optimizer_state: bool = False,
    form: str = "ortt",
) -> None:
    """Write a state; see `CheckpointState.save_checkpoint`."""
    if form not in FORMATS:
        raise ValueError(f"Unknown checkpoint format {form!r}; use one of {', '.join(FORMATS)}.")
    with state.lock:  # a step in another thread waits: no file has weights of two steps
        state.sync()
        if form == "odtc":
            from .odtc import save as save_odtc

            save_odtc(state, path, include_optimizer_state)
        else:
            tensorfile.write(path, *_contents(state, include_optimizer_state))


def save_arrays(
    path: str | os.PathLike[str], trainable: Mapping[str, Array], frozen: Mapping[str, Array]
) -> None:
    """Write the state of a run that has not begun, without having all of its numbers in memory.

    Args:
        path: the file.
        trainable: parameters by name. Each is asked for when it is its turn to be written, so a
            mapping may read them from where they are.
        frozen: the same of those that stay as they are.
    """
    check_disjoint(trainable, frozen)
    places = {f"param/{name}": (group, name) for group in (trainable, frozen) for name in group}
    types = {
        key: of_array(group[name], f"Parameter {name!r}") for key, (group, name) in places.items()
    }
    names = TrainingState(TensorStore([]), nominal=([*trainable], [*frozen]))
    metadata = _metadata(names, include_optimizer_state=False) | {"nominal": json.dumps(False)}
    tensorfile.write(path, _Stored(places, types), metadata, types)


class _Stored(Mapping[str, Array]):
    """Arrays as they are stored, each made when it is asked for."""

    def __init__(
        self,
        places: Mapping[str, tuple[Mapping[str, Array], str]],
        types: Mapping[str, ElementType],
    ) -> None:
        self._places, self._types = places, types

    def __getitem__(self, key: str) -> Array:
        group, name = self._places[key]
        return stored(group[name], self._types[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def to_bytes(state: TrainingState) -> bytes:
    """The file that `save` would write, with the optimizer state."""
    with state.lock:
        state.sync()
        return b"".join(tensorfile.encode(*_contents(state, include_optimizer_state=True)))


_Contents = tuple[dict[str, Array], dict[str, str], dict[str, ElementType]]


def _contents(state: TrainingState, include_optimizer_state: bool) -> _Contents:
    """Tensors, metadata and element types of a file."""
    tensors: dict[str, Array] = {}
    types: dict[str, ElementType] = {}

    def collect(prefix: str, store: TensorStore) -> None:
        for name, spec in store.specs.items():
            tensors[prefix + name] = store.view(name)
            types[prefix + name] = spec.type

    if not state.is_nominal:
        collect("param/", state.trainable)
        collect("param/", state.frozen)
        if include_optimizer_state and state.optimizer is not None:
            for kind, moments in state.optimizer.states.items():
                collect(f"optim/{kind}/", moments)
    return tensors, _metadata(state, include_optimizer_state), types


def load(path: str | os.PathLike[str]) -> TrainingState:
    """Read a state; see `CheckpointState.load_checkpoint`."""
    if os.path.isdir(path):
        from .pbseq import load as load_pbseq

        return load_pbseq(path)
    where = f"Checkpoint {os.fspath(path)!r}"
    with tensorfile.open_checkpoint(path) as file:
        if file.read(8)[4:] == b"ODTC":
            from .odtc import load as load_odtc

            return load_odtc(path)
        return _read(file, where)


def from_bytes(content: bytes) -> TrainingState:
    """The state that `to_bytes` was given."""
    return _read(io.BytesIO(content), "The checkpoint")


def _read(file: BinaryIO, where: str) -> TrainingState:
    header = tensorfile.read_header(file, where)
    state = _empty_state(header, where)
    tensorfile.fill(file, header, lambda name: _target(state, name), where)
    return state


def _metadata(state: TrainingState, include_optimizer_state: bool) -> dict[str, str]:
    trainable, frozen = state.names()
    values: dict[str, Any] = {
        "trainable": trainable,
        "frozen": frozen,
        "random": _random_out(state.random),
        "properties": {k: _float_out(v) for k, v in state.properties.items()},
        "nominal": state.is_nominal,
    }
    if include_optimizer_state:
        if state.optimizer is not None:
            optimizer = state.optimizer
            values["optimizer"] = {
                "step": optimizer.step,
                "learning_rate": optimizer.learning_rate,
                "name": optimizer.name,
            }
        if state.scheduler:
            values["scheduler"] = state.scheduler
        if state.trainer:
            values["trainer"] = state.trainer
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return {"format": "onnxtrain", "version": "1", **text}


def _random_out(random: RandomState) -> dict[str, int]:
    return {name: getattr(random, name) for name in RANDOM}


def _float_out(value: int | float | str) -> Any:
    """JSON has no NaN or infinity; a property may be one (the best loss before the first epoch)."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _empty_state(header: tensorfile.Header, where: str) -> TrainingState:
    """A state with the right tensors, values still to be read; everything is checked first."""
    form = header.metadata.get("format")
    if form != "onnxtrain":
        raise CheckpointError(
            f"{where} is a safetensors file, but not an onnxtrain checkpoint (its metadata say "
            f"format={form!r}). Write one with CheckpointState.from_arrays and save_checkpoint."
        )
    if header.metadata.get("version") != "1":
        raise CheckpointError(
            f"{where} has version {header.metadata.get('version')!r}, this release reads 1. "
            "Install a newer onnxtrain."
        )
    meta = _Metadata(header.metadata, where)
    trainable, frozen = meta.names("trainable"), meta.names("frozen")
    if len(set(trainable + frozen)) != len(trainable + frozen):
        raise CheckpointError(f"{where} is damaged: a parameter is listed twice.")
    if meta.get("nominal", bool, False):
        state = TrainingState(TensorStore([]), nominal=(trainable, frozen))
        header.entries.clear()
    else:
        moments = _split(header, {*trainable, *frozen}, where)
        state = TrainingState(
            TensorStore(_spec(header, n, where) for n in trainable),
            TensorStore(_spec(header, n, where) for n in frozen),
        )
        state.optimizer = _optimizer(meta, state.trainable, moments, where)
    state.random = meta.random()
    state.scheduler = meta.get("scheduler", dict, {})
    state.trainer = meta.get("trainer", dict, {})
    for name, value in meta.get("properties", dict, {}).items():
        meta.set_property(state, name, value)
    return state


def _split(
    header: tensorfile.Header, parameters: set[str], where: str
) -> dict[str, dict[str, TensorSpec]]:
    """Optimizer state by kind; a tensor that is neither that nor a parameter is an error."""
    moments: dict[str, dict[str, TensorSpec]] = {}
    for key, entry in header.entries.items():
        section, _, rest = key.partition("/")
        if section == "param" and rest in parameters:
            continue
        kind, _, name = rest.partition("/")
        if section != "optim" or not kind or not name:
            raise CheckpointError(f"{where}: tensor {key!r} belongs to no parameter.")
        moments.setdefault(kind, {})[name] = entry.spec
    return moments


def _spec(header: tensorfile.Header, name: str, where: str) -> TensorSpec:
    entry = header.entries.get(f"param/{name}")
    if entry is None:
        raise CheckpointError(f"{where} is damaged: parameter {name!r} is listed and not there.")
    return TensorSpec(name, entry.spec.type, entry.spec.shape)


def _optimizer(
    meta: _Metadata, trainable: TensorStore, moments: dict[str, dict[str, TensorSpec]], where: str
) -> OptimizerState | None:
    described = meta.get("optimizer", dict, None)
    if described is None:
        if moments:
            raise CheckpointError(f"{where} has optimizer tensors and does not say of what.")
        return None
    step, rate = described.get("step", 0), described.get("learning_rate", 0.001)
    name = described.get("name", "")
    if not (isinstance(step, int) and 0 <= step < 2**63 and isinstance(name, str)):
        raise CheckpointError(f"{where} is damaged: optimizer {described!r}.")
    rate = check_rate(rate, f"{where} is damaged: the learning rate", CheckpointError)
    state = OptimizerState(name, step, rate)
    for kind, specs in moments.items():
        if set(specs) != set(trainable):
            wrong = sorted(set(specs) ^ set(trainable))
            raise CheckpointError(
                f"{where}: optimizer state {kind!r} does not fit the trainable parameters; "
                f"missing or too many: {', '.join(wrong[:8])}."
            )
        state.states[kind] = TensorStore(
            TensorSpec(n, specs[n].type, specs[n].shape) for n in trainable
        )
    return state


def _target(state: TrainingState, key: str) -> Array:
    section, _, rest = key.partition("/")
    if section == "param":
        return state.store_of(rest).view(rest)
    kind, _, name = rest.partition("/")
    assert state.optimizer is not None
    return state.optimizer.states[kind].view(name)


class _Metadata:
    """JSON values of the metadata, with errors that name the file and the key."""

    def __init__(self, values: dict[str, str], where: str) -> None:
        self.values, self.where = values, where

    def get(self, key: str, kind: type, default: Any) -> Any:
        if key not in self.values:
            return default
        try:
            value = json.loads(self.values[key])
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, kind):
            raise CheckpointError(
                f"{self.where} is damaged: metadata {key!r} is no {kind.__name__}."
            )
        return value

    def names(self, key: str) -> list[str]:
        entries = self.get(key, list, [])
        if not all(isinstance(n, str) for n in entries):
            raise CheckpointError(f"{self.where} is damaged: {key!r} are not names.")
        return list(entries)

    def random(self) -> RandomState:
        fields = self.get("random", dict, {})
        numbers = [fields.get(name) or 0 for name in RANDOM]
        limits = (1 << 64, 1 << 64, 1 << 63)
        if not all(isinstance(n, int) and 0 <= n < end for n, end in zip(numbers, limits)):
            raise CheckpointError(f"{self.where} is damaged: random state {fields!r}.")
        return RandomState(*numbers)

    def set_property(self, state: TrainingState, name: str, value: Any) -> None:
        if isinstance(value, dict) and value.get("float") in ("nan", "inf", "-inf"):
            value = float(value["float"])
        try:
            state.set_property(name, value)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{self.where} is damaged: {error}") from None
