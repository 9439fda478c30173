"""What a group of runs says: medians and quartiles of times, and of ratios round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .race import OURS, TORCH
from .runs import Entry, Run
from .workloads import WORKLOADS

OTHERS = ("old", "jax", "onnxsim", "sklearn")
BASE = "ours_parts"
"""What the peers other than torch are divided by."""

ALONE, BESIDE = "peers", "beside"
"""The two settings: a process for each contestant; ours and torch in one process."""


class Spread(NamedTuple):
    """Lower quartile, median, upper quartile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """nan without values; of one value three times that."""
        if len(values) < 2:
            return cls(*(values or [math.nan]) * 3)
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


class Loss(NamedTuple):
    """A ratio below 1.

    Attributes:
        name: the workload.
        way: which of ours.
        kind: the setting, "memory", or the peer if that is not torch.
        peer: who is better.
        ratio: peer ÷ ours.
    """

    name: str
    way: str
    kind: str
    peer: str
    ratio: Spread


class Figures:
    """Runs of the same sources, pooled: every round of every run counts.

    Args:
        runs: the group; some may lack workloads.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = list(runs)

    @property
    def names(self) -> list[str]:
        """Workloads that one run at least has, in the order of the tables."""
        return [name for name in WORKLOADS if any(name in r.workloads for r in self.runs)]

    @property
    def ways(self) -> list[str]:
        """Those of ours that one run at least has timed."""
        return [
            way for way in OURS
            if any(math.isfinite(self.time(name, way).median) for name in self.names)
        ]  # fmt: skip

    def entries(self, name: str) -> list[Entry]:
        """What the runs say about a workload."""
        return [run.workloads[name] for run in self.runs if name in run.workloads]

    def last(self, name: str) -> Entry:
        """What the last of them says: title, losses, errors."""
        return self.entries(name)[-1]

    def time(self, name: str, peer: str, setting: str = ALONE) -> Spread:
        """Milliseconds of a step."""
        return Spread.of([t for times in self._times(name, peer, setting) for t in times])

    def ratio(self, name: str, peer: str, way: str, setting: str = ALONE) -> Spread:
        """The peer's time ÷ that of one of our ways, of turns of the same round."""
        rounds = zip(self._times(name, peer, setting), self._times(name, way, setting))
        return Spread.of([t / mine for a, b in rounds for t, mine in zip(a, b)])

    def better_torch(self, name: str, setting: str = ALONE) -> str:
        """Eager or compiled, whichever has the lower median."""
        times = {peer: self.time(name, peer, setting).median for peer in TORCH}
        known = {peer: t for peer, t in times.items() if math.isfinite(t)}
        return min(known, key=lambda peer: known[peer], default="eager")

    def against_torch(self, name: str, way: str, setting: str = ALONE) -> Spread:
        """The better torch ÷ one of our ways."""
        return self.ratio(name, self.better_torch(name, setting), way, setting)

    def memory(self, name: str, peer: str, key: str = "rss_mb") -> float:
        """Peak in MB, the median over the runs."""
        sizes = (e["peers"].get(peer, {}).get(key) for e in self.entries(name))
        return Spread.of([s for s in sizes if s]).median

    def start(self, name: str, peer: str) -> dict[str, float]:
        """Seconds to the end of the first step by part, medians over the runs."""
        parts = [
            e["peers"].get(peer, {}).get("first_step_parts_s") or {} for e in self.entries(name)
        ]
        keys = dict.fromkeys(key for found in parts for key in found)
        return {k: Spread.of([p[k] for p in parts if k in p]).median for k in keys}

    def peers(self, name: str) -> dict[str, dict[str, Any]]:
        """The contestants' results in the last run."""
        found: dict[str, dict[str, Any]] = self.last(name)["peers"]
        return found

    def losses(self) -> list[Loss]:
        """Every ratio below 1, of time to any peer and of memory to torch eager."""
        losses = []
        for name in self.names:
            for way in OURS:
                torch, beside = self.better_torch(name), self.better_torch(name, BESIDE)
                eager = self.memory(name, "eager") / self.memory(name, way)
                ratios = [
                    ("alone", torch, self.ratio(name, torch, way)),
                    ("beside", beside, self.ratio(name, beside, way, BESIDE)),
                    ("memory", "eager", Spread.of([eager])),
                    *((p, p, self.ratio(name, p, way)) for p in OTHERS if way == BASE),
                ]
                losses += [Loss(name, way, *r) for r in ratios if r[-1].median < 1]
        return losses

    def mean(self, way: str, setting: str = ALONE, names: Iterable[str] | None = None) -> Mean:
        """Geometric mean of the ratios to the better torch."""
        wanted = self.names if names is None else names
        return geometric_mean(self.against_torch(n, way, setting).median for n in wanted)

    def _times(self, name: str, peer: str, setting: str) -> list[list[float]]:
        return [e.get(setting, {}).get(peer, {}).get("times_ms", []) for e in self.entries(name)]


class Mean(NamedTuple):
    """A geometric mean, of how many, and the least of them."""

    value: float
    count: int
    least: float


def geometric_mean(ratios: Iterable[float]) -> Mean:
    """Over those that are there."""
    known = [r for r in ratios if math.isfinite(r)]
    if not known:
        return Mean(math.nan, 0, math.nan)
    return Mean(math.exp(sum(map(math.log, known)) / len(known)), len(known), min(known))
