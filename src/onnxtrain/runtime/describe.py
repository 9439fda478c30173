"""What an optimizer model says about itself, checked: it decides what is written where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ModelFileError

LAYOUTS = ("elementwise", "tensor")
STATE_TYPES = ("F32", "F16", "I8", "U8")
"""What states may be stored as, under the names of checkpoints."""


def check_optimizer(description: Mapping[str, Any], where: str) -> None:
    """Raise `ModelFileError` for a description that no optimizer of ours has."""

    def need(is_fine: bool, key: str) -> None:
        if not is_fine:
            value = str(description.get(key))[:80]
            raise ModelFileError(
                f"{where}: the optimizer's description has {key!r} = {value}, which cannot be "
                "used. Generate the artifacts again."
            )

    layout = description.get("layout")
    need(layout in LAYOUTS, "layout")
    states = description.get("states")
    need(isinstance(states, list) and all(isinstance(s, str) for s in states), "states")
    need(isinstance(description.get("name", ""), str), "name")
    hyper = description.get("hyper") or {}
    need(isinstance(hyper, dict) and all(map(_is_setting, hyper.values())), "hyper")
    need(_is_number(hyper.get("weight_decay") or 0.0), "hyper")
    clip = description.get("clip") or {}
    need(isinstance(clip, dict) and all(map(_is_limit, clip.values())), "clip")
    groups = description.get("groups") or []
    need(isinstance(groups, list) and all(map(_is_group, groups)), "groups")
    shapes = description.get("state_shapes") or {}
    need(isinstance(shapes, dict) and all(map(_are_shapes, shapes.values())), "state_shapes")
    types = description.get("state_types") or {}
    need(isinstance(types, dict) and set(types) <= set(states or ()), "state_types")
    need(all(type(t) is str and t in STATE_TYPES for t in types.values()), "state_types")
    need(layout == "tensor" or not types, "state_types")
    # In a flat vector a state lies beside its parameter: another size would be another place.
    need(layout == "tensor" or not shapes, "state_shapes")


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value) and abs(value) < 2**63


def _is_limit(value: Any) -> bool:
    return _is_number(value) or value == math.inf


def _is_setting(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 8 and all(map(_is_number, value))
    return value is None or isinstance(value, bool | str) or _is_number(value)


def _is_group(group: Any) -> bool:
    return (
        isinstance(group, dict)
        and isinstance(group.get("params") or [], list)
        and all(isinstance(n, str) for n in group.get("params") or [])
        and _is_number(group.get("lr_scale", 1.0))
        and (group.get("weight_decay") is None or _is_number(group["weight_decay"]))
        and isinstance(group.get("flat", ""), str)
    )


def _are_shapes(shapes: Any) -> bool:
    return isinstance(shapes, dict) and all(
        isinstance(s, list) and all(type(d) is int and 0 <= d < 2**31 for d in s)
        for s in shapes.values()
    )
