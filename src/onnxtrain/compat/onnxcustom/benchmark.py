"""How long a statement takes."""

from __future__ import annotations

from collections.abc import Mapping
from timeit import Timer
from typing import Any

import numpy as np


def measure_time(
    stmt: Any,
    context: Mapping[str, Any] | None = None,
    repeat: int = 10,
    number: int = 50,
    div_by_number: bool = False,
) -> dict[str, float]:
    """Run a statement many times.

    Args:
        stmt: a statement as text, or a function without arguments.
        context: variables of the statement.
        repeat: number of measurements.
        number: runs in one measurement.
        div_by_number: seconds of one run instead of one measurement.

    Returns:
        ``average``, ``deviation``, ``min_exec`` and ``max_exec`` in seconds, and ``repeat`` and
        ``number``.

    Example:
        >>> times = measure_time("sum(x)", {"x": [1, 2]}, repeat=3, number=5, div_by_number=True)
        >>> 0 < times["min_exec"] <= times["average"] <= times["max_exec"] < 1
        True
    """
    timer = Timer(stmt, globals=dict(context or {}))
    times = np.array(timer.repeat(repeat, number)) / (number if div_by_number else 1)
    return {
        "average": float(times.mean()),
        "deviation": float(times.std()),
        "min_exec": float(times.min()),
        "max_exec": float(times.max()),
        "repeat": repeat,
        "number": number,
    }
