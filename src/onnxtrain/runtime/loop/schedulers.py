"""Learning-rate schedules. Each sets the optimizer's learning rate as a function of a step count.

All numbers are those of the PyTorch scheduler of the same name. ``step()`` is called after
``optimizer.step()``, once per batch or once per epoch, as you count.

The formulas are functions, and the schedules of the predecessors' APIs use the same ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...errors import CheckpointError, StateError
from ...hyper import check_rate
from ..state.training_state import TrainingState
from .resume import best_in, number_in, whole_in

# --- formulas -------------------------------------------------------------------------------------


def rising(rate: float, count: float, steps: float) -> float:
    """A straight line from 0 to `rate` in so many steps."""
    return rate * count / max(1, steps)


def falling(rate: float, count: float, start: float, end: float) -> float:
    """A straight line from `rate` at the step `start` to 0 at `end`, and 0 from there on."""
    return rate * max(0.0, (end - count) / max(1, end - start))


def cosine(top: float, low: float, share: float, cycles: float = 0.5) -> float:
    """A cosine between `top` and `low`; half a cycle ends at `low` when `share` is 1."""
    return low + (top - low) * (1.0 + math.cos(2.0 * math.pi * cycles * share)) / 2.0


def polynomial(top: float, low: float, share: float, power: float) -> float:
    """From `top` to `low` as (1 − share)^power."""
    return float(low + (top - low) * (1.0 - share) ** power)


def straight(start: float, end: float, share: float) -> float:
    """A straight line between two rates."""
    return (end - start) * share + start


def inverse_scaling(rate: float, count: int, power: float) -> float:
    """``rate / (count + 1)^power``, as scikit-learn's schedule of that name."""
    return float(rate / (count + 1) ** power)


def bottou(rate: float, count: int, alpha: float) -> float:
    """scikit-learn's "optimal" schedule 1/(alpha·(t₀ + t)), scaled so that it begins with `rate`.

    t₀ makes the first step as long as a typical weight.
    """
    typical = math.sqrt(1.0 / math.sqrt(alpha))
    initial = typical / (1.0 + typical)  # by the slope of the squared loss that far off
    start = 1.0 / (initial * alpha)
    return rate * start / (start + count)


# --- schedules ------------------------------------------------------------------------------------


class HasLearningRate(Protocol):
    """What a schedule needs of an optimizer."""

    def get_learning_rate(self) -> float:
        """The current learning rate."""
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from now on."""
        ...


_READERS: dict[str, Callable[[Mapping[str, Any], str], float | None]] = {
    "count": whole_in, "bad": whole_in, "cooling": whole_in, "best": best_in,
}  # fmt: skip
"""How what a schedule saved is read again; all else are numbers."""


class LRScheduler:
    """Base class: counts steps and sets ``lr_at(count)``.

    Args:
        optimizer: whose learning rate is set.
        initial_lr: the learning rate at the start; by default the optimizer's current one.

    A subclass gives `lr_at`. What it counts is saved with the checkpoint when the optimizer
    belongs to a `Module`; `resume` takes it back.
    """

    _saved: tuple[str, ...] = ("initial_lr", "count")

    def __init__(self, optimizer: HasLearningRate, initial_lr: float | None = None) -> None:
        self.optimizer = optimizer
        self.initial_lr = check_rate(
            optimizer.get_learning_rate() if initial_lr is None else initial_lr, "initial_lr"
        )
        self.count = 0
        self._last = self.initial_lr
        self._apply()

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        raise NotImplementedError

    def step(self, metric: float | None = None) -> None:
        """Go one step further. Only `ReduceLROnPlateau` looks at `metric`."""
        del metric
        self.count += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The learning rate that is in force, in a list as in PyTorch."""
        return [self._last]

    def state_dict(self) -> dict[str, Any]:
        """What has to be remembered to go on: JSON-ready."""
        return {"scheduler": type(self).__name__, **{k: getattr(self, k) for k in self._saved}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, and set the learning rate accordingly."""
        name = state.get("scheduler")
        missing = [k for k in self._saved if k not in state]
        if name != type(self).__name__ or missing:
            raise StateError(
                f"This is the state of {name}, not of {type(self).__name__}"
                + (f"; it lacks {', '.join(missing)}." if missing else ".")
            )
        for key in self._saved:
            read = _READERS.get(key, number_in)
            setattr(self, key, read(state, key))
        try:
            self._apply()
        except (ArithmeticError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint is damaged: {type(self).__name__} has no learning rate at step "
                f"{self.count} ({error}). Take the checkpoint before it, or fit without resume."
            ) from error

    def resume(self) -> bool:
        """Take over the schedule's position from the checkpoint; False if it has none."""
        state = _training_state(self.optimizer)
        saved = state.resumable_scheduler if state is not None else None
        if not saved:
            return False
        self.load_state_dict(saved)
        return True

    def _apply(self) -> None:
        what = f"The learning rate that {type(self).__name__} gives after {self.count} steps"
        self._last = check_rate(self.lr_at(self.count), what)
        self.optimizer.set_learning_rate(self._last)
        state = _training_state(self.optimizer)
        if state is not None:
            if state.resumable_scheduler is None:
                # making a schedule must not lose the position that a loaded checkpoint holds
                state.resumable_scheduler = state.scheduler
            state.scheduler = self.state_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count}, lr={self._last})"


def _training_state(optimizer: HasLearningRate) -> TrainingState | None:
    """The state behind an `Optimizer`, None for anything else."""
    state = getattr(optimizer, "training_state", None)
    return state if isinstance(state, TrainingState) else None


class LinearLRScheduler(LRScheduler):
    """Linear warm-up from 0, then linear decay to 0.

        factor = t/warmup                          while t < warmup
        factor = (total − t)/(total − warmup)      after, at least 0

    Args:
        optimizer: whose learning rate is set.
        warmup_step_count: steps of warm-up.
        total_step_count: steps in all.
        initial_lr: the learning rate at the top.
    """

    def __init__(
        self,
        optimizer: HasLearningRate,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        self.warmup, self.total = int(warmup_step_count), int(total_step_count)
        if self.warmup < 0 or self.total < 0:
            raise ValueError("Numbers of steps must not be negative.")
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        if count < self.warmup:
            return rising(self.initial_lr, count, self.warmup)
        return falling(self.initial_lr, count, self.warmup, self.total)


class ConstantLR(LRScheduler):
    """The learning rate times `factor` for the first `total_iters` steps, then whole."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        initial_lr: float | None = None,
    ) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        return self.initial_lr * (self.factor if count < self.total_iters else 1.0)


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        step_size: int,
        gamma: float = 0.1,
        initial_lr: float | None = None,
    ) -> None:
        if step_size < 1:
            raise ValueError(f"step_size must be at least 1, not {step_size}.")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        return float(self.initial_lr * self.gamma ** (count // self.step_size))


class MultiStepLR(LRScheduler):
    """Times `gamma` at each of the given step numbers."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        milestones: Sequence[int],
        gamma: float = 0.1,
        initial_lr: float | None = None,
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        return float(self.initial_lr * self.gamma ** bisect_right(self.milestones, count))


class ExponentialLR(LRScheduler):
    """Times `gamma` at every step."""

    def __init__(
        self, optimizer: HasLearningRate, gamma: float, initial_lr: float | None = None
    ) -> None:
        self.gamma = gamma
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        return float(self.initial_lr * self.gamma**count)


class CosineAnnealingLR(LRScheduler):
    """η_min + (η − η_min)·(1 + cos(π·t/T_max))/2."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        T_max: int,
        eta_min: float = 0.0,
        initial_lr: float | None = None,
    ) -> None:
        if T_max < 1:
            raise ValueError(f"T_max must be at least 1, not {T_max}.")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        return cosine(self.initial_lr, self.eta_min, count / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that starts again after T_0 steps, then after T_0·T_mult, and so on."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        initial_lr: float | None = None,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ValueError("T_0 and T_mult must be at least 1.")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        period, at = self.T_0, count
        while at >= period:
            at -= period
            period *= self.T_mult
            if self.T_mult == 1:
                at %= period
        return cosine(self.initial_lr, self.eta_min, at / period)


class PolynomialLR(LRScheduler):
    """η·(1 − t/total)^power until `total_iters`, then 0."""

    def __init__(
        self,
        optimizer: HasLearningRate,
        total_iters: int = 5,
        power: float = 1.0,
        initial_lr: float | None = None,
    ) -> None:
        if total_iters < 1:
            raise ValueError(f"total_iters must be at least 1, not {total_iters}.")
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, initial_lr)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        share = min(count, self.total_iters) / self.total_iters
        return polynomial(self.initial_lr, 0.0, share, self.power)


class OneCycleLR(LRScheduler):
    """Up from max_lr/div_factor to `max_lr`, down to (max_lr/div_factor)/final_div_factor.

    Args:
        optimizer: whose learning rate is set.
        max_lr: the top.
        total_steps: steps in all; a step beyond is an error.
        pct_start: share of the steps that go up.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        div_factor: top over start.
        final_div_factor: start over end.
        three_phase: first back down to the start, symmetrically, then to the end.

    Momentum is not cycled: it is a constant of the optimizer model.
    """

    def __init__(
        self,
        optimizer: HasLearningRate,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        if total_steps < 1 or not 0 <= pct_start <= 1:
            raise ValueError("total_steps must be positive and pct_start between 0 and 1.")
        if anneal_strategy not in {"cos", "linear"}:
            raise ValueError(f"anneal_strategy is 'cos' or 'linear', not {anneal_strategy!r}.")
        self.total_steps, self.max_lr = total_steps, float(max_lr)
        self._mix: Callable[[float, float, float], float] = (
            cosine if anneal_strategy == "cos" else straight
        )
        low = self.max_lr / div_factor
        end, top = low / final_div_factor, float(pct_start * total_steps) - 1
        last = total_steps - 1
        if three_phase:
            middle = float(2 * pct_start * total_steps) - 2
            self._phases = [(top, low, self.max_lr), (middle, self.max_lr, low), (last, low, end)]
        else:
            self._phases = [(top, low, self.max_lr), (last, self.max_lr, end)]
        super().__init__(optimizer, low)

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        if count > self.total_steps:
            raise StateError(
                f"OneCycleLR was made for {self.total_steps} steps; this is step {count}."
            )
        start = 0.0
        for index, (end, low, high) in enumerate(self._phases):
            if count <= end or index == len(self._phases) - 1:
                # a line goes on below zero at the count after the last step; nobody trains there
                return max(0.0, self._mix(low, high, (count - start) / (end - start)))
            start = end
        raise AssertionError("unreachable")


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when a metric has not got better for `patience` steps.

    Args:
        optimizer: whose learning rate is set.
        mode: ``"min"`` or ``"max"``: which way is better.
        factor: below 1.
        patience: steps without getting better that are tolerated.
        threshold: how much better counts.
        threshold_mode: ``"rel"`` (a share of the best) or ``"abs"``.
        cooldown: steps to wait after a reduction.
        min_lr: never below.
        eps: changes smaller than this are not made.
    """

    _saved = ("initial_lr", "count", "best", "bad", "cooling", "_last")

    def __init__(
        self,
        optimizer: HasLearningRate,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError(f"factor must be below 1, not {factor}.")
        if mode not in {"min", "max"} or threshold_mode not in {"rel", "abs"}:
            raise ValueError("mode is 'min' or 'max', threshold_mode 'rel' or 'abs'.")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best: float | None = None
        self.bad = self.cooling = 0
        self._last = float(optimizer.get_learning_rate())
        super().__init__(optimizer)

    def lr_at(self, count: int) -> float:
        """The learning rate in force: it depends on the metric, not on the count."""
        del count
        return self._last

    def step(self, metric: float | None = None) -> None:
        """Look at a metric."""
        if metric is None:
            raise ValueError("ReduceLROnPlateau.step needs the metric it watches.")
        value = float(metric)
        if self._better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad > self.patience:
            lower = max(self._last * self.factor, self.min_lr)
            if self._last - lower > self.eps:
                self._last = lower
            self.cooling, self.bad = self.cooldown, 0
        self.count += 1
        self._apply()

    def _better(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        sign = 1.0 if self.mode == "min" else -1.0
        margin = self.threshold * (self.best if self.threshold_mode == "rel" else 1.0)
        return value < self.best - margin if sign > 0 else value > self.best + margin


class WarmUp(LRScheduler):
    """Warm-up around any schedule: linear from a small factor, then the schedule from its start.

    Args:
        scheduler: what follows.
        steps: length of the warm-up.
        start_factor: the first factor on the schedule's first learning rate.

    Example:
        >>> from types import SimpleNamespace
        >>> rate = [1.0]
        >>> fake = SimpleNamespace(
        ...     get_learning_rate=lambda: rate[0],
        ...     set_learning_rate=lambda r: rate.__setitem__(0, r))
        >>> warm = WarmUp(ExponentialLR(fake, gamma=0.5), steps=2, start_factor=0.0)
        >>> [(warm.step(), rate[0])[1] for _ in range(4)]
        [0.5, 1.0, 0.5, 0.25]
    """

    def __init__(self, scheduler: LRScheduler, steps: int, start_factor: float = 0.0) -> None:
        if steps < 0:
            raise ValueError(f"steps must not be negative, but it is {steps}.")
        self.scheduler, self.steps, self.start_factor = scheduler, steps, start_factor
        super().__init__(scheduler.optimizer, scheduler.get_last_lr()[0])

    def lr_at(self, count: int) -> float:
        """The learning rate after `count` steps."""
        if count < self.steps:
            return self.initial_lr * straight(self.start_factor, 1.0, count / self.steps)
        return self.scheduler.get_last_lr()[0]

    def step(self, metric: float | None = None) -> None:
        """Go one step further; the inner schedule moves after the warm-up only."""
        if self.count >= self.steps:
            self.scheduler.step(metric)
        self.count += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """What has to be remembered, the inner schedule included."""
        return {**super().state_dict(), "inner": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        inner = state.get("inner") or {}
        if not isinstance(inner, dict):
            raise StateError("The state of WarmUp has no state of the schedule after it.")
        self.scheduler.load_state_dict(inner)
        super().load_state_dict(state)
