"""Who is right where two gradients differ: float64 differences of the function decide.

Along a direction u the function f(x + h·u) is looked at for several steps h, on both sides. Where
the central differences settle on a value, that is the derivative. Where the two one-sided
differences stay apart however small the step, x is at a kink (or within rounding of one), and
every number between them is a derivative there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Array], float]
Line = Callable[[float], float]
Word = Literal["right", "rounding", "kink", "torch wrong", "undecided", "wrong"]
WORST_LAST: tuple[Word, ...] = ("right", "rounding", "kink", "torch wrong", "undecided", "wrong")

STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
CLOSER = (1e-7, 1e-8, 1e-9)
"""Where a function bends within the smallest step (a logarithm near zero), it is looked at closer:
float64 can tell such differences from its rounding if the slope is large."""
KINK_STEP = 1e-4
"""One-sided differences at larger steps also differ where a function merely bends."""
ROUNDING = 1e-6
"""Of the largest gradient of a model: what float32 leaves of one that is zero."""
COARSE = 0.05
"""What a gradient that is small beside others may be off by itself, unless torch's is as far off:
rounding of the others does not excuse a wrong factor."""
NOTHING = 1e-9
"""Of the largest gradient of a model: one that is zero but for the rounding of float64."""
WORSE_THAN_TORCH = 10.0
"""Where torch's own float32 gradient is off float64, ours may be that many times as far off."""
CONDITIONED = 0.1
"""Above this, an error of torch's float32 says nothing about what rounding does."""
OUTSIDE = 0.05
"""How far, in parts of their distance, a slope may lie outside of two one-sided differences: the
kink is not exactly where they begin."""
FORMULA = 1e-6
"""What a formula that is right may be off in float64."""
COORDINATES = 6
"""Axes that are looked at one by one, those with the largest difference first."""
AXES = 600
"""Entries of a gradient that are looked at one by one where it seems wrong."""
FAR_AXES = 40
"""Of those in which a gradient differs from torch's: the ones furthest apart."""
APART = "one-sided differences differ"


@dataclass(frozen=True)
class Verdict:
    """About one gradient: a word, its error relative to the largest entry, and why."""

    word: Word
    error: float = 0.0
    note: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one that counts for a whole model."""
    ranked = sorted(verdicts, key=lambda v: (WORST_LAST.index(v.word), v.error))
    return ranked[-1] if ranked else Verdict("right")


def judge(
    ours: Array,
    torch32: Array,
    torch64: Callable[[], Array],
    function: Function,
    at: Array,
    *,
    largest: float,
    tolerance: float = 1e-3,
) -> Verdict:
    """Compare a gradient with torch's in float32, then in float64, then with differences.

    Args:
        ours: the gradient in question.
        torch32: autograd's, in float32.
        torch64: gives autograd's in float64.
        function: what is differentiated, in float64.
        at: where.
        largest: the largest entry of all gradients of the model.
        tolerance: relative to the largest entry of this gradient.
    """
    compared = compare(ours, torch32, torch64, largest=largest, tolerance=tolerance)
    if compared.word != "undecided":
        return compared
    return judge_by_differences(ours, torch64(), function, at, largest=largest, tolerance=tolerance)


def compare(
    ours: Array,
    torch32: Array,
    torch64: Callable[[], Array],
    *,
    largest: float,
    tolerance: float = 1e-3,
) -> Verdict:
    """Compare a gradient with torch's in float32, then in float64; undecided if both differ."""
    if ours.shape != torch32.shape:
        return Verdict("wrong", np.inf, f"shape {ours.shape}, not {torch32.shape}")
    error = distance(ours, torch32, largest)
    if error <= tolerance and distance(ours, torch32, 0.0) <= COARSE:
        return Verdict("right", error)
    exact = torch64()
    error = distance(ours, exact, largest)
    noise = WORSE_THAN_TORCH * distance(torch32, exact, 0.0)
    vanishes = float(np.abs(exact).max(initial=0.0)) <= NOTHING * largest
    if error <= tolerance:
        fine = vanishes or distance(ours, exact, 0.0) <= max(COARSE, noise)
        return Verdict("right" if fine else "undecided", error)
    theirs = distance(torch32, exact, largest)
    allowed = max(tolerance, WORSE_THAN_TORCH * theirs)
    if error <= allowed < CONDITIONED or error <= theirs < CONDITIONED:
        return Verdict("right", error, "torch's float32 is as far from float64")
    return Verdict("undecided", error)


def judge_by_differences(
    ours: Array,
    exact: Array,
    function: Function,
    at: Array,
    *,
    largest: float,
    tolerance: float = 1e-3,
    axes: int = FAR_AXES,
) -> Verdict:
    """Whether differences agree with a gradient that autograd's float64 contradicts.

    Where it does not seem so, along so many `axes` by themselves.
    """
    error = distance(ours, exact, largest)
    if error <= tolerance:  # small beside others: it counts by its own size
        largest = float(np.abs(exact).max(initial=0.0))
        error = distance(ours, exact, largest)
    ways = [direction_of(ours - exact), *coordinates(ours - exact)]
    found = [_along(u, ours, function, at, largest, tolerance) for u in ways]
    decided = worst(found)
    if decided.word in ("wrong", "undecided"):
        # At several kinks at once a choice at each need not lie between the two sides of a slant.
        differ = ~(np.abs(ours - exact) <= tolerance * np.abs(exact).max(initial=0.0))
        far = [u for u in coordinates(ours - exact, axes) if np.any(differ & (u != 0))]
        each: list[Verdict] = []
        for u in far:
            each.append(_along(u, ours, function, at, largest, tolerance, early=True))
            if each[-1].word not in ("right", "kink"):
                break  # of a large network every one of them takes a minute
        else:
            decided, found = worst(each), each
    if decided.word == "right":
        if any(one.note == APART for one in found):
            return Verdict("kink", error, APART)
        return Verdict("torch wrong", error, "differences agree with ours, not with autograd")
    return Verdict(decided.word, error, decided.note)


def or_rounding(
    verdict: Verdict, ours64: Array | None, exact: Array, largest: float, ours: Array | None = None
) -> Verdict:
    """A wrong gradient whose formula is right in float64 is off by rounding alone.

    So is one that is a million times as near there as `ours` in float32: where all gradients are
    zero but for rounding, nothing else tells how large an error is.
    """
    if verdict.word not in ("wrong", "undecided") or ours64 is None:
        return verdict
    own = max(float(np.abs(exact).max(initial=0.0)), ROUNDING * largest)
    if ours64.shape != exact.shape:
        return verdict
    shrinks = ours is not None and _gap(ours64, exact) <= FORMULA * _gap(ours, exact)
    if not shrinks and distance(ours64, exact, own) > FORMULA:
        return verdict
    return Verdict("rounding", verdict.error, f"in float32 alone: {verdict.note}")


def _gap(one: Array, other: Array) -> float:
    """The largest difference; infinite if there is one that is no number."""
    with np.errstate(all="ignore"):
        gap = np.abs(one.astype(np.float64) - other)
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))


def judge_alone(
    ours: Array,
    function: Function,
    at: Array,
    *,
    largest: float,
    tolerance: float = 2e-3,
    seed: int = 0,
    steps: Sequence[float] = STEPS,
) -> Verdict:
    """Compare a gradient with differences alone: in random directions, and where it is largest."""
    if ours.shape != at.shape:
        return Verdict("wrong", np.inf, f"shape {ours.shape}, not {at.shape}")
    if not ours.size:
        return Verdict("right")
    rng = np.random.default_rng(seed)
    ways = [direction_of(rng.standard_normal(at.shape)) for _ in range(2)]
    ways += coordinates(ours, 2)

    def along(u: Array) -> Verdict:
        return _along(u, ours, function, at, largest, tolerance, steps, early=True)

    verdict = worst(map(along, ways))
    if verdict.word in ("wrong", "undecided") and ours.size <= AXES:
        # At several kinks at once a choice at each need not lie between the two sides of a slant.
        each = worst(map(along, coordinates(ours, ours.size)))
        verdict = each if each.word == "kink" else verdict
    return verdict


def judge_together(
    ours: Mapping[str, Array],
    function: Callable[[Mapping[str, Array]], float],
    at: Mapping[str, Array],
    *,
    tolerance: float,
    steps: Sequence[float],
    seed: int = 0,
) -> Verdict:
    """Compare all gradients of a model at once, where differences of each would take too long.

    In the direction of the gradients themselves, each with a length of one so that none of them is
    lost beside a larger one, and in a random direction.
    """
    rng = np.random.default_rng(seed)
    largest = largest_of(ours)
    aligned = {n: np.asarray(direction_of(g), np.float32) for n, g in ours.items()}
    first = _together(aligned, ours, function, at, largest, tolerance, steps)
    del aligned  # of a large network each of them is half a gigabyte
    random = {n: rng.standard_normal(g.shape, np.float32) for n, g in ours.items()}
    return worst([first, _together(random, ours, function, at, largest, tolerance, steps)])


def _together(
    u: Mapping[str, Array],
    ours: Mapping[str, Array],
    function: Callable[[Mapping[str, Array]], float],
    at: Mapping[str, Array],
    largest: float,
    tolerance: float,
    steps: Sequence[float],
) -> Verdict:
    """About all gradients along a direction of any length."""
    length = float(np.sqrt(sum(float(np.vdot(v, v)) for v in u.values()))) or 1.0
    claimed = sum(float(np.vdot(np.asarray(g, np.float32), u[n])) for n, g in ours.items())
    widest = max((float(np.abs(v).max(initial=0.0)) for v in u.values()), default=0.0)
    scale = max([1.0, *(float(np.abs(x).max(initial=0.0)) for x in at.values())])

    def line(step: float) -> float:
        return function({n: at[n] + np.float64(step / length) * u[n] for n in ours})

    size = max(abs(claimed), largest * widest, 1e-30) / length  # all may be zero
    return _on_line(line, scale, claimed / length, size, largest, tolerance, steps, early=True)


def distance(one: Array, other: Array, largest: float) -> float:
    """The largest difference, relative to the largest entry; NaN equals NaN."""
    if not one.size:
        return 0.0
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (a == b)
    if not (finite | same).all():
        return np.inf
    gap = float(np.abs(a - b, where=finite, out=np.zeros_like(a)).max())
    scale = float(np.abs(b, where=finite, out=np.zeros_like(b)).max())
    floor = ROUNDING * largest if np.isfinite(largest) else 0.0
    return max(gap - floor, 0.0) / scale if scale else (0.0 if gap <= floor else np.inf)


def direction_of(difference: Array) -> Array:
    """A unit vector; where entries are not finite, along those."""
    vector = np.asarray(difference, np.float64)
    if not np.isfinite(vector).all():
        vector = (~np.isfinite(vector)).astype(np.float64)
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


def coordinates(difference: Array, count: int = COORDINATES) -> list[Array]:
    """The axes along which it is largest."""
    size = np.nan_to_num(np.abs(difference), nan=np.inf).ravel()
    axes = []
    for place in np.argsort(size, kind="stable")[::-1][:count]:
        axis = np.zeros(difference.size)
        axis[place] = 1.0
        axes.append(axis.reshape(difference.shape))
    return axes


def _along(
    u: Array,
    ours: Array,
    function: Function,
    at: Array,
    largest: float,
    tolerance: float,
    steps: Sequence[float] = STEPS,
    *,
    early: bool = False,
) -> Verdict:
    """About a gradient along one direction.

    Where only right or not is asked, two central differences that agree are enough (`early`).
    """
    u = np.where(np.isfinite(at), u, 0.0)  # what is infinite cannot be moved
    moving = u != 0
    if not moving.any():
        return Verdict("right")
    claimed = float(np.sum(ours[moving].astype(np.float64) * u[moving]))
    size = max(abs(claimed), float(np.abs(ours).max()) * float(np.abs(u).max()), 1e-30)
    base = at.astype(np.float64)
    scale = max(1.0, float(np.abs(base[moving]).max(initial=0.0)))
    return _on_line(
        lambda step: function(base + step * u), scale, claimed, size, largest, tolerance, steps,
        early=early,
    )  # fmt: skip


def _on_line(
    line: Line,
    scale: float,
    claimed: float,
    size: float,
    largest: float,
    tolerance: float,
    steps: Sequence[float],
    *,
    early: bool,
) -> Verdict:
    """Whether a function of one number has the slope at 0 that is claimed.

    Steps are relative to `scale`, the size of what moves; `size` is what counts as the slope's.
    """
    allowed = tolerance * size + ROUNDING * (largest if np.isfinite(largest) else 0.0)
    if early:
        middle = len(steps) // 2 - 1
        gaps = np.abs(_central(line, scale, steps[middle : middle + 2]) - claimed)
        if np.all(gaps <= allowed):
            return Verdict("right", float(gaps[-1]) / size)
    differences = Differences.of(line, scale, steps)
    if not np.isfinite(claimed) and not differences.settled(tolerance):
        return Verdict("kink", np.inf, "no derivative there")
    gap = abs(claimed - differences.slope)
    error = gap / size
    if gap <= allowed + min(differences.doubt, 10 * allowed):
        return Verdict("right", error, APART if differences.kink(claimed, allowed) else "")
    if steps[-1] <= STEPS[-1] and _agrees_closer(line, scale, claimed, allowed):
        return Verdict("right", error)
    if differences.kink(claimed, allowed):
        return Verdict("kink", error, APART)
    note = f"{claimed:.6g}, by differences {differences.slope:.6g} ± {differences.doubt:.1g}"
    if not np.isfinite(differences.slope) or differences.doubt > 0.3 * gap:
        return Verdict("undecided", error, note)
    return Verdict("wrong", error, note)


def _agrees_closer(line: Line, scale: float, claimed: float, allowed: float) -> bool:
    """Whether two of the closest differences, one after the other, are what is claimed."""
    near = np.abs(_central(line, scale, CLOSER) - claimed) <= allowed
    return bool(np.any(near[1:] & near[:-1]))


def _central(line: Line, scale: float, steps: Sequence[float]) -> Array:
    h = np.array(steps) * scale
    ends = [(line(step), line(-step)) for step in h]
    with np.errstate(all="ignore"):
        return np.array([ahead - behind for ahead, behind in ends]) / (2 * h)


@dataclass(frozen=True)
class Differences:
    """One-sided differences at several steps (relative to the size of x), the largest first."""

    steps: Sequence[float]
    forward: Array
    backward: Array
    resolution: Array
    """What the last digit of the function's value is of a difference."""

    @classmethod
    def of(cls, line: Line, scale: float, steps: Sequence[float] = STEPS) -> Differences:
        """Of a function of one number at 0; steps are relative to `scale`."""
        h = np.array(steps) * scale
        middle = line(0.0)
        ahead = np.array([line(step) for step in h])
        behind = np.array([line(-step) for step in h])
        largest = np.nanmax(np.abs([middle, *ahead, *behind]), initial=0.0)
        with np.errstate(all="ignore"):
            digit = np.finfo(np.float64).eps * largest / h
            return cls(steps, (ahead - middle) / h, (middle - behind) / h, digit)

    @property
    def central(self) -> Array:
        """Central differences."""
        return (self.forward + self.backward) / 2

    def _best(self) -> tuple[float, float]:
        """The central difference that changes least with the step, and by how much.

        Small steps may leave a few digits of the function's value, which change not at all.
        """
        with np.errstate(all="ignore"):
            changes = np.abs(np.diff(self.central)) + self.resolution[1:]
        if not np.isfinite(changes).any():
            return np.nan, np.inf
        best = int(np.nanargmin(np.where(np.isfinite(changes), changes, np.inf)))
        return float(self.central[best + 1]), float(changes[best])

    @property
    def slope(self) -> float:
        """The derivative."""
        return self._best()[0]

    @property
    def doubt(self) -> float:
        """How far it may be off."""
        return self._best()[1]

    def settled(self, tolerance: float) -> bool:
        """Whether both sides have one and the same derivative."""
        slope, doubt = self._best()
        return bool(np.isfinite(slope) and doubt <= tolerance * max(abs(slope), 1.0)) and not any(
            self._apart(k, tolerance * max(abs(slope), 1.0)) for k in range(1, len(self.steps))
        )

    def kink(self, claimed: float, allowed: float) -> bool:
        """Whether a claim lies between one-sided differences that do not approach each other.

        Where they grow as the step shrinks, the function jumps, and has no derivative.
        """
        if self._jumps():
            return True
        for k in range(1, len(self.steps)):
            if not self._apart(k, allowed):
                continue
            sides = (float(self.forward[k]), float(self.backward[k]))
            if not np.isfinite(sides).all():
                return True
            slack = allowed + OUTSIDE * abs(sides[0] - sides[1])
            if min(sides) - slack <= claimed <= max(sides) + slack:
                return True
        return False

    def _jumps(self) -> bool:
        """Whether a tenth of the step makes the difference ten times as large."""
        sizes = np.abs(self.central)
        return bool(np.all(sizes[1:] > 5 * sizes[:-1])) and len(sizes) > 2

    def _apart(self, k: int, allowed: float) -> bool:
        """Whether the sides differ at a small step, and not as a function that bends."""
        if self.steps[k] > KINK_STEP:
            return False
        with np.errstate(all="ignore"):
            gap = np.abs(self.forward - self.backward)
        if not np.isfinite(gap[k]):
            return True
        return bool(gap[k] > allowed and gap[k] > 0.3 * gap[k - 1])


def largest_of(gradients: Mapping[str, Array]) -> float:
    """The largest finite entry of several arrays."""
    sizes = [np.abs(g[np.isfinite(g)]).max(initial=0.0) for g in gradients.values()]
    return float(max(sizes, default=0.0))
