"""Where to cut the forward half for recomputation: into how many segments, and at which values.

A cut costs what is alive there, because that is kept until the backward half comes by; a segment
costs what its gradients read, because that is alive while they are computed. Good cuts lie where
little is alive (between the layers), and the segments between them weigh about the same.
"""

from __future__ import annotations

import fnmatch
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import onnx_ir as ir

from ..errors import ModelError, UnknownNameError
from ..graph.subgraphs import used_values
from ..operators import VIEWS
from .sizes import SYMBOLIC, elements_of

Recompute: TypeAlias = "int | str | Sequence[str] | None"
"""How to recompute: see `check_recompute`."""

WORDS = ("auto", "cheap")
MOST_SEGMENTS = 256


class RecomputeError(ModelError):
    """A value of `recompute` that cannot be used."""


def check_recompute(how: Recompute) -> None:
    """Raise unless `how` is None, "auto", "cheap", a number of segments, or names of values."""
    if how is None or (isinstance(how, str) and how in WORDS):
        return
    if isinstance(how, int) and not isinstance(how, bool) and how >= 1:
        return
    names = [] if isinstance(how, (int, str)) or not isinstance(how, Collection) else list(how)
    if names and all(isinstance(n, str) for n in names):
        return
    raise RecomputeError(
        f"recompute={how!r} cannot be used. Pass a number of segments (1 or more), 'auto', 'cheap' "
        "(element-wise operators only), or a list with the names of the values to keep."
    )


def stored_by_name(how: Recompute) -> frozenset[str]:
    """The names of values in `how`, if it has any."""
    return frozenset() if how is None or isinstance(how, (int, str)) else frozenset(how)


def weight(value: ir.Value) -> float:
    """Bytes of a value, roughly: dimensions of unknown size count `SYMBOLIC`."""
    width = value.dtype.itemsize if value.dtype is not None else 4
    if value.shape is None:
        return float(SYMBOLIC**3 * width)
    return elements_of(value.shape) * width


def assign(
    how: Recompute,
    forward: Sequence[ir.Node],
    needed: Collection[ir.Value],
    stored: Collection[ir.Value] = (),
) -> dict[ir.Node, int]:
    """The segment of every forward node, counted from 0; the last one is never recomputed.

    Args:
        how: see `check_recompute`.
        forward: nodes of the forward half, in an order in which they can run.
        needed: values of them that the backward half reads and that need not be kept.
        stored: values of them that are kept in any case: a cut there costs nothing.
    """
    if isinstance(how, (int, str)):
        return _by_size(how, forward, needed, stored)
    assert how is not None
    return _by_name(how, forward)


# -- names -----------------------------------------------------------------------------------------


def _by_name(names: Sequence[str], forward: Sequence[ir.Node]) -> dict[ir.Node, int]:
    """A node belongs to the segment that the last named value before it opens."""
    opens = {value: i + 1 for i, value in enumerate(named_values(names, forward))}
    segment: dict[ir.Node, int] = {}
    for node in forward:
        reads = used_values([node])
        segment[node] = max((opens.get(v, segment.get(v.producer(), 0)) for v in reads), default=0)  # type: ignore[arg-type]
    return segment


def named_values(names: Sequence[str], forward: Sequence[ir.Node]) -> list[ir.Value]:
    """Values that names and patterns (``"*/norm2/*"``) mean, in the order of the graph."""
    known = {o.name: o for node in forward for o in node.outputs if o.name}
    chosen: set[str] = set()
    for name in names:
        matches = [name] if name in known else fnmatch.filter(known, name)
        if not matches:
            raise UnknownNameError("value to keep (in recompute)", name, list(known))
        chosen.update(matches)
    return [value for name, value in known.items() if name in chosen]


# -- sizes -----------------------------------------------------------------------------------------


def _by_size(
    how: int | str,
    forward: Sequence[ir.Node],
    needed: Collection[ir.Value],
    stored: Collection[ir.Value],
) -> dict[ir.Node, int]:
    alive = _alive_after(forward, stored)
    saved = _saved_by(forward, needed)
    if isinstance(how, int):
        cuts = _cuts(how, alive, saved)
    else:
        tried = [_cuts(n, alive, saved) for n in _counts(len(forward))]
        cuts = min(tried, key=lambda cuts: (_peak(cuts, alive, saved), len(cuts)))
    segment, starts = {}, set(cuts)
    number = 0
    for i, node in enumerate(forward):
        segment[node] = number
        number += i in starts
    return segment


def _counts(nodes: int) -> list[int]:
    """Numbers of segments that "auto" compares: all up to 64, then in steps of a fifth."""
    counts, number = [], 1
    while number <= min(MOST_SEGMENTS, max(1, nodes // 4)):
        counts.append(number)
        number = number + 1 if number < 64 else number * 6 // 5
    return counts


def _alive_after(forward: Sequence[ir.Node], stored: Collection[ir.Value]) -> list[float]:
    """Bytes that forward nodes still read, after each node."""
    position = {node: i for i, node in enumerate(forward)}
    change = [0.0] * (len(forward) + 1)
    last = _last_reads(forward, position)
    for value, end in last.items():
        producer = value.producer()
        if producer is not None and producer in position and value not in stored:
            change[position[producer]] += weight(value)
            change[end] -= weight(value)
    return list(accumulate(change[:-1]))


def _last_reads(forward: Sequence[ir.Node], position: Mapping[ir.Node, int]) -> dict[ir.Value, int]:
    """Where each value is read for the last time; a view counts as what it looks at."""
    last: dict[ir.Value, int] = {}
    for node in reversed(forward):
        until = position[node]
        if node.op_type in VIEWS and not node.domain:
            until = max(until, last.pop(node.outputs[0], until))
        for value in used_values([node]):
            last[value] = max(until, last.get(value, until))
    return last


def _saved_by(forward: Sequence[ir.Node], needed: Collection[ir.Value]) -> list[float]:
    """Bytes that the backward half reads of the results of all nodes up to each."""
    sizes = [
        0.0 if node.op_type in VIEWS else sum(weight(o) for o in node.outputs if o in needed)
        for node in forward
    ]
    return list(accumulate(sizes))


def _cuts(count: int, alive: Sequence[float], saved: Sequence[float]) -> list[int]:
    """Positions of the last nodes of the first `count` − 1 segments."""
    total = saved[-1] if saved else 0.0
    cuts: list[int] = []
    for i in range(1, count):
        low = bisect_left(saved, total * (i - 0.5) / count)
        high = bisect_left(saved, total * (i + 0.5) / count)
        low = max(low, cuts[-1] + 1 if cuts else 0)
        if low < min(high, len(saved) - 1):
            middle = total * i / count
            span = range(low, min(high, len(saved) - 1))
            cuts.append(min(span, key=lambda k: (alive[k], abs(saved[k] - middle))))
    return cuts


def _peak(cuts: Sequence[int], alive: Sequence[float], saved: Sequence[float]) -> float:
    """Bytes at the worst moment: what the cuts so far keep, and one segment."""
    stored = peak = start = 0.0
    for cut in cuts:
        peak = max(peak, stored + saved[cut] - start)
        stored, start = stored + alive[cut], saved[cut]
    return max(peak, stored + (saved[-1] if saved else 0.0) - start)
