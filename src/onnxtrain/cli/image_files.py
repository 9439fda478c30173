"""How a model wants its images, where its metadata do not say: first nodes, files beside it.

Hugging Face's libraries write ``preprocessor_config.json`` beside a model, timm ``config.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ..runtime.files.readfile import read_regular
from ..summary import ModelSummary
from ..transfer import normalization
from .images import LARGEST
from .output import UserError

if TYPE_CHECKING:
    from .settings import Settings

FILES = ("preprocessor_config.json", "config.json")
MAX_BYTES = 2**20
WHITE = 255
"""The largest number of a pixel in a file."""


def described(settings: Settings, summary: ModelSummary) -> dict[str, str]:
    """What is known of a model's images, as the keys of `ImageSettings.metadata`.

    What the nodes of the model do themselves is not done a second time: then a file that says it
    counts for the size only.
    """
    known: dict[str, Any] = {}
    for name in FILES:
        path = Path(settings.model).parent / name
        if path.is_file() and not known:
            known = _from_config(path)
    own = normalization(settings.model) if len(summary.inputs) == 1 else None
    if own is not None and own.white is not None:
        known |= {"image_mean": [0.0], "image_std": [1 / own.white]}
    return {key: json.dumps(value) for key, value in known.items()}


def _from_config(path: Path) -> dict[str, Any]:
    """Size, mean and deviation from a file; what it does not say is left out."""
    try:
        config = json.loads(read_regular(path, UserError, MAX_BYTES))
    except (ValueError, RecursionError):
        raise UserError(
            f"{path} is not valid JSON; it should say how the model takes images. Repair it or "
            "move it away, and give --image-size, --mean and --std."
        ) from None
    if not isinstance(config, Mapping):
        return {}
    if isinstance(config.get("pretrained_cfg"), Mapping):
        return _from_timm(config["pretrained_cfg"])
    return _from_processor(config)


def _from_timm(config: Mapping[Any, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    size, mean, std = (config.get(k) for k in ("input_size", "mean", "std"))
    if isinstance(size, list) and len(size) == 3 and _is_size(size[1:]):
        known["image_size"] = size[1:]
    if _are_numbers(mean) and _are_numbers(std) and min(std) > 0:
        known |= {"image_mean": mean, "image_std": std}
    return known


def _from_processor(config: Mapping[Any, Any]) -> dict[str, Any]:
    """From an image processor of transformers: (pixel · rescale_factor − mean) / std."""
    known: dict[str, Any] = {}
    size = _size(config.get("crop_size") if config.get("do_center_crop") else None)
    size = size or _size(config.get("size"))
    if size is not None:
        known["image_size"] = size
    mean, std = config.get("image_mean"), config.get("image_std")
    if config.get("do_normalize") is False:
        mean, std = [0.0], [1.0]
    factor = config.get("rescale_factor", 1 / WHITE) if config.get("do_rescale", True) else 1.0
    if not (_are_numbers(mean) and _are_numbers(std) and _are_numbers([factor])):
        return known
    if min(std) > 0 and factor > 0:
        scale = WHITE * factor
        known["image_mean"] = [m / scale for m in mean]
        known["image_std"] = [s / scale for s in std]
    return known


def _size(value: Any) -> list[int] | None:
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        value = [value.get("height", edge), value.get("width", edge)]
    elif isinstance(value, int):
        value = [value, value]
    return value if _is_size(value) else None


def _is_size(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
    return whole and all(0 < v <= LARGEST for v in value)


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    """Whether this is one number for each of at most four channels."""
    if not isinstance(values, list) or not 0 < len(values) <= 4:
        return False
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return plain and all(math.isfinite(v) and abs(v) < 1e6 for v in values)
