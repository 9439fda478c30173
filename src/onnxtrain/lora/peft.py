"""PEFT's folders: ``adapter_model.safetensors`` and ``adapter_config.json``, read and written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AdapterError, MissingFileError
from ..runtime.files import tensorfile
from ..runtime.files.atomic import write_atomically
from ..runtime.files.readfile import file_name, open_regular
from .adapter import Adapter, LayerAdapter
from .config import Config
from .values import Array

PREFIX = "base_model.model."
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
MAX_SETTINGS = 2**20
FINGERPRINT = "onnxtrain.base"
"""Key in the metadata of the weights: which base they were trained on."""
REFUSED: dict[str, Any] = {
    "rank_pattern": {},
    "alpha_pattern": {},
    "bias": "none",
    "layers_pattern": None,
    "lora_bias": False,
    "megatron_config": None,
    "trainable_token_indices": None,
}
"""Settings of PEFT that change what the numbers mean, and the values that are understood."""


def save_peft(adapter: Adapter, folder: str | os.PathLike[str], base_model: str = "") -> None:
    """Write an adapter as PEFT does.

    Args:
        adapter: what to write.
        folder: is made if it is not there.
        base_model: name of the torch model, for ``base_model_name_or_path``.
    """
    path = Path(file_name(folder))
    path.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Array] = {}
    for name, layer in adapter.layers.items():
        a, b = (layer.a.T, layer.b.T) if layer.a.ndim == 2 else (layer.a, layer.b)
        tensors[f"{PREFIX}{name}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{name}.lora_B.weight"] = np.ascontiguousarray(b)
        if layer.magnitude is not None:
            tensors[f"{PREFIX}{name}.lora_magnitude_vector"] = layer.magnitude
    for name, array in adapter.saved.items():
        tensors[f"{PREFIX}{name}"] = array
    tensorfile.write(path / WEIGHTS, tensors, {"format": "pt", FINGERPRINT: adapter.base})
    text = json.dumps(_settings(adapter, base_model), indent=2)
    write_atomically(path / SETTINGS, [text.encode()])


def _settings(adapter: Adapter, base_model: str) -> dict[str, Any]:
    config = adapter.config
    modules = {name.rpartition(".")[0] for name in adapter.saved}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base_model or None,
        "task_type": None,
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "target_modules": sorted(adapter.layers),
        "modules_to_save": sorted(modules - {""}) or None,
        "bias": "none",
        "fan_in_fan_out": False,
    }


def load_peft(folder: str | os.PathLike[str]) -> Adapter:
    """Read an adapter that PEFT, or `save_peft`, wrote.

    Raises:
        AdapterError: it is damaged, no LoRA adapter, or has settings that are not supported.
    """
    path = Path(folder)
    if not (path / WEIGHTS).is_file():
        pickled = (path / "adapter_model.bin").is_file()
        hint = " The .bin beside it is a pickle: save it again as safetensors." if pickled else ""
        raise MissingFileError(f"There is no {WEIGHTS} in {str(path)!r}.{hint}")
    config = _config(path / SETTINGS)
    tensors, noted = tensorfile.load(path / WEIGHTS)
    layers: dict[str, dict[str, Array]] = {}
    saved: dict[str, Array] = {}
    for key, array in tensors.items():
        name = key.removeprefix(PREFIX)
        layer, _, kind = name.rpartition(".lora_")
        if not layer:
            saved[name] = array
            continue
        layers.setdefault(layer, {})[kind.removesuffix(".weight").removesuffix(".default")] = array
    try:
        adapters = {name: _layer(parts) for name, parts in layers.items()}
    except KeyError as error:
        raise AdapterError(
            f"{str(path / WEIGHTS)!r}: a layer lacks lora_{error.args[0]}."
        ) from None
    if not adapters:
        raise AdapterError(
            f"{str(path / WEIGHTS)!r} has no lora_A and lora_B: it is no LoRA adapter."
        )
    return Adapter(config, adapters, noted.get(FINGERPRINT, ""), saved)


def _layer(parts: Mapping[str, Array]) -> LayerAdapter:
    a, b = parts["A"], parts["B"]
    a, b = (a.T, b.T) if a.ndim == 2 else (a, b)
    return LayerAdapter(a, b, parts.get("magnitude_vector"))


def _config(path: Path) -> Config:
    try:
        with open_regular(path, AdapterError) as file:
            written = json.loads(file.read(MAX_SETTINGS))
    except FileNotFoundError:
        raise MissingFileError(f"There is no {SETTINGS} in {str(path.parent)!r}.") from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{str(path)!r} is no JSON that can be read: {error}") from error
    if not isinstance(written, dict) or written.get("peft_type") != "LORA":
        kind = written.get("peft_type") if isinstance(written, dict) else written
        raise AdapterError(f"{str(path)!r} describes no LoRA adapter, but {kind!r}.")
    for key, expected in REFUSED.items():
        if written.get(key, expected) not in (expected, None):
            raise AdapterError(f"{str(path)!r}: {key}={written[key]!r} is not supported.")
    try:
        return Config(
            written["r"],
            float(written["lora_alpha"]),
            float(written.get("lora_dropout") or 0.0),
            bool(written.get("use_rslora")),
            bool(written.get("use_dora")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterError(f"{str(path)!r} lacks or has a wrong setting: {error}") from error
