"""Checkpoints of several processes put together, and the older functions around checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ....errors import CheckpointError, InputError
from ....runtime.files.readfile import file_name
from . import checkpoint_storage as storage

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]
DIVIDED_STATES = ("Moment_1", "Moment_2")


def aggregate_checkpoints(paths: Sequence[PathLike], pytorch_format: bool = True) -> dict[str, Any]:
    """One state from the checkpoints of all processes.

    Processes that divided the optimizer's states among them (ZeRO, which the predecessor had) give
    states that are put together again; of others, which all hold everything, the first is taken.

    Args:
        paths: the files, in any order.
        pytorch_format: weights only, as ``{name: tensor}``.
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise InputError("paths must be a list with at least one checkpoint.")
    options = storage.load(paths[0], key="trainer_options")
    if options.get("horizontal_parallel_size", 1) > 1:
        raise CheckpointError(
            "Checkpoints whose layers are divided among processes (horizontal_parallel_size > 1) "
            "cannot be put together."
        )
    ranks = [int(storage.load(p, key="trainer_options").get("world_rank", 0)) for p in paths]
    ordered = [paths[i] for i in sorted(range(len(paths)), key=ranks.__getitem__)]
    state = merge([storage.load(p) for p in ordered], divided=is_divided(options))
    if not pytorch_format:
        return state
    weights = state["model"]["full_precision"]
    return {n: torch.from_numpy(np.asarray(a)) for n, a in weights.items()}


def is_divided(options: Mapping[str, Any]) -> bool:
    """Whether processes with these options each hold a part of the state."""
    divisions = (options.get("zero_stage", 0), options.get("horizontal_parallel_size", 1) - 1)
    return any(int(n) > 0 for n in divisions)


def merge(states: Sequence[Mapping[str, Any]], *, divided: bool = False) -> dict[str, Any]:
    """The state of a training from those of its processes, in the order of their ranks.

    Raises:
        CheckpointError: they are not of one training, or a part is missing.
    """
    _check_together(states)
    first = dict(states[0])
    if not divided:
        return first
    lacking = [i for i, s in enumerate(states) if "partition_info" not in s]
    if lacking:
        raise CheckpointError(
            f"Checkpoint {lacking[0]} does not say which states are divided (partition_info)."
        )
    parts = states[0]["partition_info"]
    shapes = {n: tuple(int(d) for d in parts[n]["original_dim"]) for n in parts}
    options = states[0].get("trainer_options", {})
    is_mixed = bool(options.get("mixed_precision", False))
    weights = [s["model"]["full_precision"] for s in states]
    # with full precision every process holds whole weights, and only the moments are divided
    first["model"] = {"full_precision": _joined(weights, shapes if is_mixed else {}, "weight")}
    if "optimizer" in first:
        first["optimizer"] = {
            name: _joined(
                [s.get("optimizer", {}).get(name, {}) for s in states],
                dict.fromkeys(DIVIDED_STATES, shapes[name]) if name in shapes else {},
                f"state of {name!r}:",
            )
            for name in first["optimizer"]
        }
    del first["partition_info"]
    alone = {"zero_stage": 0, "world_rank": 0, "world_size": 1}
    alone |= {"data_parallel_size": 1, "horizontal_parallel_size": 1}
    first["trainer_options"] = {**options, "mixed_precision": is_mixed, **alone}
    return first


def _check_together(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the states are not of one training at one time."""
    first = states[0]
    for state in states:
        if state["model"]["full_precision"].keys() != first["model"]["full_precision"].keys():
            raise CheckpointError("The checkpoints are of different models.")
        info, other = state.get("train_step_info", {}), first.get("train_step_info", {})
        if info.get("optimization_step") != other.get("optimization_step"):
            raise CheckpointError("The checkpoints were written at different steps.")


def _joined(
    parts: Sequence[Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]], what: str
) -> dict[str, Array]:
    """Entries with a shape are joined and get it; the others must be the same everywhere."""
    whole: dict[str, Array] = {}
    if any(part.keys() != parts[0].keys() for part in parts):
        raise CheckpointError(f"Not every checkpoint has the {what} that the first one has.")
    for key, value in parts[0].items():
        arrays = [np.asarray(part[key]) for part in parts]
        if key in shapes:
            flat = np.concatenate([a.reshape(-1) for a in arrays])
            if flat.size != math.prod(shapes[key]):
                raise CheckpointError(
                    f"The {what} {key!r} has {flat.size} numbers in all checkpoints together, "
                    f"and its shape is {shapes[key]}: a checkpoint is missing, or one too many."
                )
            whole[key] = flat.reshape(shapes[key])
            continue
        if any(not np.array_equal(a, arrays[0]) for a in arrays):
            raise CheckpointError(f"The {what} {key!r} differs between the checkpoints.")
        whole[key] = value
    return whole


# --- the older functions --------------------------------------------------------------------------


def experimental_state_dict(ort_trainer: Any, include_optimizer_state: bool = True) -> Any:
    """The trainer's state, or without the optimizer's only its weights."""
    if include_optimizer_state:
        return ort_trainer.state_dict()
    return ort_trainer.state_dict(pytorch_format=True)


def experimental_load_state_dict(
    ort_trainer: Any, state_dict: Mapping[str, Any], strict: bool = False
) -> None:
    """Give a trainer a state."""
    ort_trainer.load_state_dict(state_dict, strict=strict)


def experimental_save_checkpoint(
    ort_trainer: Any,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Save a trainer's state, with more of the user's, in a folder."""
    folder = Path(file_name(checkpoint_dir))
    folder.mkdir(parents=True, exist_ok=True)
    ort_trainer.save_checkpoint(
        folder / f"{checkpoint_prefix}.ort.pt",
        dict(checkpoint_state_dict or {}),
        include_optimizer_state,
    )


def experimental_load_checkpoint(
    ort_trainer: Any,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> Any:
    """Load what `experimental_save_checkpoint` wrote; gives the user's part."""
    path = Path(checkpoint_dir) / f"{checkpoint_prefix}.ort.pt"
    return ort_trainer.load_checkpoint(path, strict=strict)
