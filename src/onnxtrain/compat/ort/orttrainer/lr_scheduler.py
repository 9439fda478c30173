"""Learning-rate schedules of the trainer: the warm-up schedules of onnxruntime-training.

With w = warmup·total steps and t the number of updates so far, all of them rise as t/w until t = w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import InputError
from ....runtime.loop.schedulers import cosine, falling, polynomial, rising

if TYPE_CHECKING:
    from .trainer_v2 import TrainStepInfo


class _LRScheduler:
    """Base of schedules: subclass it and write `get_lr`."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    def get_lr(self, train_step_info: TrainStepInfo) -> list[float]:
        """The learning rate of the coming update, as a list of one number."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The learning rate that was computed last; a list, empty before the first update."""
        return self._last_lr

    def _step(self, train_step_info: TrainStepInfo) -> list[float]:
        from .trainer_v2 import TrainStepInfo as Info

        if not isinstance(train_step_info, Info):
            raise InputError("'train_step_info' must be a TrainStepInfo.")
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr


class _Warmup(_LRScheduler):
    """Rise to the optimizer's learning rate, then follow `_after`."""

    def __init__(self, total_steps: int, warmup: float) -> None:
        super().__init__()
        if not isinstance(total_steps, int) or isinstance(total_steps, bool) or total_steps <= 0:
            raise InputError(f"total_steps must be a positive integer, not {total_steps!r}.")
        if not isinstance(warmup, (int, float)) or not 0 <= warmup < 1:
            raise InputError(f"warmup must be at least 0 and below 1, not {warmup!r}.")
        self.total_steps, self.warmup = total_steps, float(warmup)
        self._warmup_steps = self.warmup * total_steps

    def get_lr(self, train_step_info: TrainStepInfo) -> list[float]:
        """The learning rate of the coming update, as a list of one number."""
        base, step = train_step_info.optimizer_config.lr, train_step_info.optimization_step
        if step < self._warmup_steps:
            return [rising(base, step, self._warmup_steps)]
        return [self._after(step, base)]

    def _progress(self, step: int) -> float:
        """0 at the end of the warm-up, 1 after all steps."""
        return (step - self._warmup_steps) / max(1.0, self.total_steps - self._warmup_steps)

    def _after(self, step: int, base: float) -> float:
        raise NotImplementedError


class ConstantWarmupLRScheduler(_Warmup):
    """Warm up, then stay.

    Args:
        total_steps: number of updates of the whole training.
        warmup: fraction of it that is warm-up.
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _after(self, step: int, base: float) -> float:
        return base


class CosineWarmupLRScheduler(_Warmup):
    """Warm up, then follow ½(1 + cos(2π·cycles·progress)); half a cycle ends at 0."""

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        if not isinstance(cycles, (int, float)) or cycles <= 0:
            raise InputError(f"cycles must be a positive number, not {cycles!r}.")
        self.cycles = float(cycles)

    def _after(self, step: int, base: float) -> float:
        return cosine(base, 0.0, self._progress(step), self.cycles)


class LinearWarmupLRScheduler(_Warmup):
    """Warm up, then fall in a straight line to 0."""

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _after(self, step: int, base: float) -> float:
        return falling(base, step, self._warmup_steps, self.total_steps)


class PolyWarmupLRScheduler(_Warmup):
    """Warm up, then fall as (1 − progress)^power to `lr_end`."""

    def __init__(
        self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002
    ) -> None:
        super().__init__(total_steps, warmup)
        if not isinstance(lr_end, (int, float)) or lr_end < 0:
            raise InputError(f"lr_end must not be negative, but it is {lr_end!r}.")
        if not isinstance(power, (int, float)) or power < 0:
            raise InputError(f"power must not be negative, but it is {power!r}.")
        self.lr_end, self.power = float(lr_end), float(power)

    def _after(self, step: int, base: float) -> float:
        if self.lr_end >= base:
            raise InputError(f"lr_end ({self.lr_end}) must be below the learning rate ({base}).")
        if step > self.total_steps:
            return self.lr_end
        return polynomial(base, self.lr_end, self._progress(step), self.power)


ConstantWarmup = ConstantWarmupLRScheduler
CosineWarmup = CosineWarmupLRScheduler
LinearWarmup = LinearWarmupLRScheduler
PolyWarmup = PolyWarmupLRScheduler
