"""All ranks start from what rank 0 has."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.files.dtypes import BY_CODE
from ..runtime.files.onnxfile import Source
from ..runtime.state.buffers import TensorSpec, TensorStore
from ..runtime.state.checkpoint_state import CheckpointState
from ..runtime.state.training_state import OptimizerState, RandomState, TrainingState
from .backend import Backend


def shared_state(
    backend: Backend, state: CheckpointState | str | os.PathLike[str]
) -> CheckpointState:
    """The state of rank 0 on every rank; only rank 0 reads the file, the others need none.

    A state that was handed in as an object keeps its buffers where the layout is the same.
    """
    loaded: list[CheckpointState] = [state] if isinstance(state, CheckpointState) else []

    def described_here() -> dict[str, Any]:
        if not isinstance(state, CheckpointState):
            loaded.append(CheckpointState.load_checkpoint(state))
        return _described(loaded[0].training_state)

    described = once(backend, described_here)
    shared = _rebuilt(described, loaded[0].training_state if loaded else None)
    shared.sync()
    for store in shared.stores():
        for buffer in store.buffers.values():
            backend.broadcast(buffer.data)
        store.push()
    return loaded[0] if loaded else CheckpointState.view(shared)


def once(backend: Backend, work: Callable[[], Any]) -> Any:
    """Let rank 0 do something and give its (JSON-ready) result to all; an error reaches all too."""
    outcome: Any = None
    error: Exception | None = None
    if backend.is_main:
        try:
            outcome = {"result": work()}
        except Exception as problem:  # told to the others, so that nobody waits for this rank
            error, outcome = problem, {"error": str(problem)}
    shared = backend.share_json(outcome)
    if error is not None:
        raise error
    if "error" in shared:
        raise InputError(f"Rank 0 stopped: {shared['error']}")
    return shared["result"]


def _described(state: TrainingState) -> dict[str, Any]:
    memory = state.optimizer
    return {
        "nominal": state.nominal,
        "trainable": _layout(state.trainable),
        "frozen": _layout(state.frozen),
        "optimizer": memory
        and {
            "name": memory.name,
            "step": memory.step,
            "learning_rate": memory.learning_rate,
            "states": {kind: _layout(store) for kind, store in memory.states.items()},
        },
        "scheduler": state.scheduler,
        "trainer": state.trainer,
        "random": [state.random.seed, state.random.generation, state.random.counter],
        "properties": state.properties,
    }


def _layout(store: TensorStore) -> list[Any]:
    return [[s.name, s.type.code, list(s.shape)] for s in store.specs.values()]


def _store(layout: list[Any], existing: TensorStore | None) -> TensorStore:
    if existing is not None and _layout(existing) == layout:
        return existing
    return TensorStore(TensorSpec(n, BY_CODE[code], tuple(shape)) for n, code, shape in layout)


def _rebuilt(described: dict[str, Any], existing: TrainingState | None) -> TrainingState:
    """A state as described, on the buffers of `existing` where they fit."""
    state = existing if existing is not None else TrainingState(TensorStore([]))
    state.trainable = _store(described["trainable"], state.trainable)
    state.frozen = _store(described["frozen"], state.frozen)
    nominal = described["nominal"]
    state.nominal = (nominal[0], nominal[1]) if nominal else None
    optimizer, old = described["optimizer"], state.optimizer
    if optimizer is None:
        state.optimizer = None
    else:
        stores = old.states if old is not None else {}
        state.optimizer = OptimizerState(
            optimizer["name"],
            optimizer["step"],
            optimizer["learning_rate"],
            {
                kind: _store(layout, stores.get(kind))
                for kind, layout in optimizer["states"].items()
            },
        )
    state.scheduler, state.trainer = described["scheduler"], described["trainer"]
    state.random = RandomState(*described["random"])
    state.properties = described["properties"]
    return state


def check_same_models(backend: Backend, **models: Source) -> None:
    """Raise on every rank if one has other model files than rank 0."""
    sums = np.array([zlib.crc32(_content(m)) for m in models.values()], np.float64)
    tables = backend.gather(sums)
    for rank, table in enumerate(tables):
        wrong = [n for n, a, b in zip(models, table, tables[0]) if a != b]
        if wrong:
            raise InputError(
                f"Rank {rank} has another {' and '.join(wrong)} than rank 0. Give all ranks the "
                "same files."
            )


def _content(source: Source) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    try:
        return Path(source).read_bytes()
    except OSError:
        return b""  # the loader that comes next says it better
