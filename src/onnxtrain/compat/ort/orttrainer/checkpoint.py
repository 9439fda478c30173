"""Checkpoint files of the trainer: safetensors, written whole; old HDF5 files can be read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ....errors import CheckpointError, InputError
from ....runtime.files import tensorfile

Array = npt.NDArray[Any]
FORMAT = "onnxtrain.torch"
HDF5 = b"\x89HDF\r\n\x1a\n"


def write(path: str | os.PathLike[str], state: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Write a state dictionary and the user's own."""
    tensors = {f"model/{n}": np.asarray(a) for n, a in state["model"]["full_precision"].items()}
    for name, entry in state["optimizer"].items():
        tensors.update((f"optimizer/{key}/{name}", np.asarray(a)) for key, a in entry.items())
    rest = {k: v for k, v in state.items() if k not in ("model", "optimizer")}
    try:
        texts = {"state": json.dumps(rest), "user_dict": json.dumps(dict(user))}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"user_dict can hold numbers, strings, lists and dictionaries only: {error}"
        ) from None
    tensorfile.write(path, tensors, {"format": FORMAT, "version": "1", **texts})


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A state dictionary and the user's own."""
    with tensorfile.open_checkpoint(path) as file:
        if file.read(len(HDF5)) == HDF5:
            return _read_hdf5(path)
    arrays, metadata = tensorfile.load(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{os.fspath(path)!r} was not written by ORTTrainer.save_checkpoint.")
    described, user = _described(metadata, os.fspath(path))
    state: dict[str, Any] = {**described, "model": {"full_precision": {}}, "optimizer": {}}
    for name, array in arrays.items():
        part, _, rest = name.partition("/")
        if part == "model":
            state["model"]["full_precision"][rest] = array
        else:
            key, _, weight = rest.partition("/")
            state["optimizer"].setdefault(weight, {})[key] = array
    return state, user


def _described(metadata: Mapping[str, str], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file says besides the tensors, and the user's own."""
    try:
        texts = [json.loads(metadata[key]) for key in ("state", "user_dict")]
    except (KeyError, ValueError, RecursionError):
        texts = []
    if not texts or not all(isinstance(t, dict) for t in texts):
        raise CheckpointError(f"{where!r} is damaged: its description is not JSON objects.")
    for key in ("trainer_options", "train_step_info"):
        if not isinstance(texts[0].get(key, {}), dict):
            raise CheckpointError(f"{where!r} is damaged: {key!r} is not a JSON object.")
    return texts[0], texts[1]


def _read_hdf5(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file of onnxruntime-training; its user dictionary is a pickle and is not read."""
    try:
        import h5py  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CheckpointError(
            f"{os.fspath(path)!r} is an HDF5 file. Install h5py to read it, then save it again."
        ) from None

    def content(group: Any) -> dict[str, Any]:
        return {
            name: content(item) if hasattr(item, "keys") else _plain(item[()])
            for name, item in group.items()
        }

    with h5py.File(os.fspath(path), "r") as file:
        state = content(file)
    if "full_precision" not in state.get("model", {}):
        raise CheckpointError(f"{os.fspath(path)!r} holds no weights of an ORTTrainer.")
    state.pop("user_dict", None)
    return state, {}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a training whose processes all hold whole weights: that of the first.

    Raises:
        CheckpointError: they are not of one training, or the weights are divided among them.
    """
    first = dict(states[0])
    for state in states:
        options = state.get("trainer_options", {})
        if options.get("zero_stage") or options.get("horizontal_parallel_size", 1) > 1:
            raise CheckpointError("Checkpoints with divided weights cannot be put together.")
        if state["model"]["full_precision"].keys() != first["model"]["full_precision"].keys():
            raise CheckpointError("The checkpoints are of different models.")
        info, other = state.get("train_step_info", {}), first.get("train_step_info", {})
        if info.get("optimization_step") != other.get("optimization_step"):
            raise CheckpointError("The checkpoints were written at different steps.")
    return first


def aggregate_checkpoints(
    paths: Sequence[str | os.PathLike[str]], pytorch_format: bool = True
) -> dict[str, Any]:
    """One state from the checkpoints of all processes.

    Args:
        paths: the files.
        pytorch_format: weights only, as ``{name: tensor}``.
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise InputError("paths must be a list with at least one checkpoint.")
    state = merge([read(p)[0] for p in paths])
    if not pytorch_format:
        return state
    weights = state["model"]["full_precision"]
    return {n: torch.from_numpy(np.asarray(a)) for n, a in weights.items()}
