"""What a checkpoint says about an interrupted fit, checked before anything is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError

LIMIT = 2**63


@dataclass(frozen=True)
class Position:
    """Where a fit stood."""

    epoch: int
    batch: int
    seed: int
    sums: tuple[float, int]
    history: dict[str, list[float]]
    callbacks: list[tuple[str, dict[str, Any]]]
    data: dict[str, Any]

    @classmethod
    def parse(cls, saved: Mapping[str, Any]) -> Position:
        """From the checkpoint's JSON; `CheckpointError` names what is wrong."""
        sums = saved.get("sums")
        if not (isinstance(sums, list) and len(sums) == 2 and is_number(sums[0])):
            raise _damaged("sums", sums)
        history = saved.get("history")
        if not isinstance(history, dict) or not all(
            isinstance(v, list) and all(map(is_number, v)) for v in history.values()
        ):
            raise _damaged("history", history)
        callbacks = saved.get("callbacks", [])
        if not isinstance(callbacks, list) or not all(map(_is_callback, callbacks)):
            raise _damaged("callbacks", callbacks)
        data = saved.get("data", {})
        if not isinstance(data, dict):
            raise _damaged("data", data)
        return cls(
            whole_in(saved, "epoch"),
            whole_in(saved, "batch"),
            whole_in(saved, "seed"),
            (float(sums[0]), whole_in({"sums": sums[1]}, "sums")),
            {name: list(values) for name, values in history.items()},
            [(entry["name"], entry["state"]) for entry in callbacks],
            data,
        )


def is_number(value: Any) -> bool:
    """A number as JSON has them; NaN and infinity among them."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and (isinstance(value, float) or abs(value) < LIMIT)


def number_in(state: Mapping[str, Any], key: str) -> float:
    """A number that was saved."""
    if not is_number(state.get(key)):
        raise _damaged(key, state.get(key))
    return float(state[key])


def best_in(state: Mapping[str, Any], key: str = "best") -> float | None:
    """The best value so far, None before the first."""
    return None if key in state and state[key] is None else number_in(state, key)


def whole_in(state: Mapping[str, Any], key: str) -> int:
    """A whole number that was saved, not negative."""
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LIMIT:
        raise _damaged(key, value)
    return value


def _is_callback(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("state"), dict)
    )


def _damaged(key: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint is damaged: what it says about the interrupted fit has "
        f"{key!r} = {str(value)[:80]}. Take the checkpoint before it, or fit without resume."
    )
