"""Which positions a Slice takes."""

from __future__ import annotations

TO_THE_END = (2**31 - 1, 2**63 - 1)
"""Ends that are no positions but "all the rest"; backwards, the rest is what comes before."""


def taken(size: int, start: int, end: int, step: int = 1) -> range:
    """The positions that onnxruntime takes of an axis.

    Unlike Python, a backward slice that starts before the first element starts at it.

    >>> list(taken(3, -1, 2**63 - 1, -1)), list(taken(3, -9, -(2**63), -1)), list(taken(3, 1, 9))
    ([2, 1, 0], [0], [1, 2])
    """
    if not size:
        return range(0)
    back = step < 0
    start = min(max(start + size if start < 0 else start, 0), size - back)
    if end in TO_THE_END:
        return range(start, -1 if back else size, step)
    return range(start, min(max(end + size if end < 0 else end, -back), size), step)
