"""Checkpoint files of the trainer: safetensors, written whole; old HDF5 files can be read.

A file holds a state dictionary of `ORTTrainer`, and under ``user_dict`` what its user adds, as a
string (`to_serialized_hex`). The predecessor pickled that; here it is JSON, with arrays and
tensors, so that reading a file of somebody else's runs nothing.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ....errors import CheckpointError, InputError
from ....runtime.files import tensorfile

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]
FORMAT = "onnxtrain.torch"
HDF5 = b"\x89HDF\r\n\x1a\n"
WITHOUT_MOMENTS = "SGDOptimizer"
ARRAY, TENSOR = "onnxtrain.array", "onnxtrain.tensor"
SAVED_TYPES = "biufc"
"""Kinds of numpy types that an array in a user dictionary may have: numbers and truth values."""


def save(state: Mapping[str, Any], path: PathLike) -> None:
    """Write a state dictionary, atomically.

    Args:
        state: with the sections that `ORTTrainer.state_dict` gives; each may be missing.
        path: the file.
    """
    if not isinstance(state, Mapping):
        raise InputError(f"A checkpoint is a dictionary, not a {type(state).__name__}.")
    weights = state.get("model", {}).get("full_precision", {})
    tensors = {f"model/{n}": np.asarray(a) for n, a in weights.items()}
    for name, entry in state.get("optimizer", {}).items():
        tensors.update((f"optimizer/{key}/{name}", np.asarray(a)) for key, a in entry.items())
    rest = {k: v for k, v in state.items() if k not in ("model", "optimizer", "user_dict")}
    texts = {"state": json.dumps(rest, default=_plain), "user_dict": "{}"}
    if "user_dict" in state:
        texts["user_dict"] = bytes.fromhex(state["user_dict"]).decode()
    tensorfile.write(path, tensors, {"format": FORMAT, "version": "1", **texts})


def load(path: PathLike, key: str | None = None) -> Any:
    """Read a state dictionary, or with ``key="trainer_options"`` or ``"a/b"`` a part of it."""
    with tensorfile.open_checkpoint(path) as file:
        is_hdf5 = file.read(len(HDF5)) == HDF5
    state = _load_hdf5(path) if is_hdf5 else _load_own(path, tensors=key != "trainer_options")
    for part in key.split("/") if key else ():
        if not isinstance(state, Mapping) or part not in state:
            raise CheckpointError(f"{os.fspath(path)!r} has no part {key!r}.")
        state = state[part]
    return state


def _load_own(path: PathLike, *, tensors: bool) -> dict[str, Any]:
    where = os.fspath(path)
    if tensors:
        arrays, metadata = tensorfile.load(path)
    else:
        arrays = {}
        with tensorfile.open_checkpoint(path) as file:
            metadata = tensorfile.read_header(file, repr(where)).metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{where!r} was not written by ORTTrainer.save_checkpoint.")
    state, user = _described(metadata, where)
    state["model"] = {"full_precision": {}}
    moments: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        part, _, rest = name.partition("/")
        if part == "model":
            state["model"]["full_precision"][rest] = array
        else:
            key, _, weight = rest.partition("/")
            moments.setdefault(weight, {})[key] = array
    # without moments a checkpoint either is one of gradient descent, or was saved without them
    if moments or state.get("trainer_options", {}).get("optimizer_name") == WITHOUT_MOMENTS:
        state["optimizer"] = moments
    if user:
        state["user_dict"] = json.dumps(user).encode().hex()
    return state


def _described(metadata: Mapping[str, str], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file says besides the tensors, and the user's own."""
    try:
        texts = [json.loads(metadata[key]) for key in ("state", "user_dict")]
    except (KeyError, ValueError, RecursionError):
        texts = []
    if not texts or not all(isinstance(t, dict) for t in texts):
        raise CheckpointError(f"{where!r} is damaged: its description is not JSON objects.")
    _check_description(texts[0], where)
    return texts[0], texts[1]


NUMBERS = {
    "trainer_options": (
        "zero_stage", "world_rank", "world_size", "data_parallel_size", "horizontal_parallel_size",
        "mixed_precision",
    ),
    "train_step_info": ("optimization_step", "step"),
}  # fmt: skip


def _check_description(state: Mapping[str, Any], where: str) -> None:
    """Raise unless numbers are numbers and shapes are shapes."""
    for section in (*NUMBERS, "partition_info"):
        if not isinstance(state.get(section, {}), dict):
            raise CheckpointError(f"{where!r} is damaged: {section!r} is not a JSON object.")
    for section, keys in NUMBERS.items():
        for key in keys:
            value = state.get(section, {}).get(key, 0)
            if not isinstance(value, int):
                raise CheckpointError(f"{where!r} is damaged: its {key} is {value!r}.")
    for name, entry in state.get("partition_info", {}).items():
        shape = entry.get("original_dim") if isinstance(entry, dict) else None
        if not isinstance(shape, (list, np.ndarray)) or not all(
            isinstance(n, (int, np.integer)) and n >= 0 for n in shape
        ):
            raise CheckpointError(f"{where!r} is damaged: {name!r} has no original_dim.")


def _load_hdf5(path: PathLike) -> dict[str, Any]:
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
    _check_description(state, os.fspath(path))
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    return value.item() if isinstance(value, np.generic) else value


# --- what the user adds ---------------------------------------------------------------------------


def to_serialized_hex(user_dict: Mapping[str, Any]) -> str:
    """A user's dictionary as a string: numbers, strings, lists, dictionaries, arrays and tensors.

    Example:
        >>> text = to_serialized_hex({"epoch": 3, "seen": np.arange(2)})
        >>> from_serialized_hex(text)
        {'epoch': 3, 'seen': array([0, 1])}
    """
    try:
        return json.dumps(dict(user_dict), default=_encoded).encode().hex()
    except (TypeError, ValueError) as error:
        raise InputError(
            "user_dict can hold numbers, strings, lists, dictionaries, arrays and tensors only: "
            f"{error}"
        ) from None


def from_serialized_hex(serialized_hex: str | bytes) -> dict[str, Any]:
    """The dictionary that `to_serialized_hex` made a string of."""
    try:
        text = serialized_hex.decode() if isinstance(serialized_hex, bytes) else serialized_hex
        user = json.loads(bytes.fromhex(text), object_hook=_decoded)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"The user's dictionary in the checkpoint is damaged: {error}"
        ) from None
    if not isinstance(user, dict):
        raise CheckpointError("The user's dictionary in the checkpoint is not a dictionary.")
    return user


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    kind = TENSOR if isinstance(value, torch.Tensor) else ARRAY
    array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if not isinstance(value, (np.ndarray, torch.Tensor)) or array.dtype.kind not in SAVED_TYPES:
        raise TypeError(f"a {type(value).__name__} is among them")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {kind: [array.dtype.str, list(array.shape), data]}


def _decoded(entry: dict[str, Any]) -> Any:
    kind = next((k for k in (ARRAY, TENSOR) if entry.keys() == {k}), None)
    if kind is None:
        return entry
    name, shape, data = entry[kind]
    dtype = np.dtype(name)
    if dtype.kind not in SAVED_TYPES:
        raise ValueError(f"an array of type {name!r}")
    array = np.frombuffer(base64.b64decode(data, validate=True), dtype).reshape(shape).copy()
    return torch.from_numpy(array) if kind == TENSOR else array
