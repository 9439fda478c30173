"""What can be hung into a training loop."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from .metrics import UPWARD
from .resume import best_in, whole_in

if TYPE_CHECKING:
    from .trainer import Trainer

Logs = Mapping[str, float]


class Callback:
    """Base class: override what you need. `trainer.stop = True` ends the training."""

    may_stop = True
    """Whether `on_step_end` might set `trainer.stop`. Processes that train together ask each other
    after every step if so; a callback that never stops may say False and save that."""

    def on_train_begin(self, trainer: Trainer) -> None:
        """Before the first step."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Before an epoch; epochs count from 0."""

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """After each update; `logs` has "loss" and "lr"."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """After an epoch and its validation; `logs` has "loss", "lr", "val_…"."""

    def on_train_end(self, trainer: Trainer) -> None:
        """After the last step."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to remember of this callback: JSON-ready."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class EveryEpoch(Callback):
    """A plain function ``f(trainer, logs)``, called after every epoch."""

    def __init__(self, function: Callable[[Trainer, Logs], object]) -> None:
        self.function = function

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Call the function."""
        self.function(trainer, logs)


class EarlyStopping(Callback):
    """Stop when a value has not got better for `patience` epochs.

    Args:
        monitor: what to watch, by default "val_loss", or "loss" without validation.
        patience: epochs without getting better that are tolerated.
        min_delta: how much better counts.
        mode: ``"min"`` or ``"max"``; by default "max" for accuracy, top-k, r2, f1, precision,
            recall and auc.
        restore_best: put the best parameters back at the end.
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str | None = None,
        restore_best: bool = True,
    ) -> None:
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.mode, self.restore_best = mode, restore_best
        self.best: float | None = None
        self.waited = 0
        self.stopped_epoch: int | None = None
        self._snapshot: Any = None

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Compare with the best."""
        name = self.monitor or ("val_loss" if "val_loss" in logs else "loss")
        value = watched(logs, name)
        if is_better(value, self.best, name, self.mode, self.min_delta):
            self.best, self.waited = value, 0
            if self.restore_best:
                self._snapshot = trainer.snapshot()
            return
        self.waited += 1
        if self.waited > self.patience:
            trainer.stop, self.stopped_epoch = True, epoch

    def on_train_end(self, trainer: Trainer) -> None:
        """Put the best parameters back."""
        if self.restore_best and self._snapshot is not None:
            trainer.restore(self._snapshot)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far. The best parameters are not kept: see `SaveCheckpoint`."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.best, self.waited = best_in(state), whole_in(state, "waited")


class SaveCheckpoint(Callback):
    """Write a checkpoint, complete for an exact resume, every so often.

    Args:
        path: the file; ``{epoch}`` and ``{step}`` in it are filled in.
        every_steps: after every so many updates.
        every_epochs: after every so many epochs (by default 1 if `every_steps` is not given).
        best: only when this value got better, e.g. "val_loss".
    """

    may_stop = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_steps: int | None = None,
        every_epochs: int | None = None,
        best: str | None = None,
    ) -> None:
        if every_steps is None and every_epochs is None:
            every_epochs = 1
        for number in (every_steps, every_epochs):
            if number is not None and number < 1:
                raise ValueError(f"every_steps and every_epochs must be positive, not {number}.")
        self.path, self.every_steps = os.fspath(path), every_steps
        self.every_epochs, self.monitor = every_epochs, best
        self.best: float | None = None

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """Write every `every_steps` updates."""
        if self.every_steps and trainer.step % self.every_steps == 0:
            self._write(trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Write every `every_epochs` epochs."""
        if not self.every_epochs or (epoch + 1) % self.every_epochs:
            return
        if self.monitor is not None:
            value = watched(logs, self.monitor)
            if not is_better(value, self.best, self.monitor, None, 0.0):
                return
            self.best = value
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        path = self.path.replace("{epoch}", str(trainer.epoch)).replace("{step}", str(trainer.step))
        trainer.save(path)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.best = best_in(state)


class Progress(Callback):
    """One line of text per epoch; on a terminal it also moves during the epoch."""

    may_stop = False

    def __init__(self, file: TextIO | None = None, interval: float = 0.2) -> None:
        self.file, self.interval = file, interval
        self._began = self._shown = 0.0

    @property
    def _out(self) -> TextIO:
        return self.file if self.file is not None else sys.stderr

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Start the clock."""
        self._began = self._shown = time.monotonic()

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """Show how far the epoch is, not too often."""
        now = time.monotonic()
        if now - self._shown < self.interval or not self._out.isatty():
            return
        self._shown = now
        done = f"{trainer.batch}/{trainer.batches or '?'}"
        self._out.write(f"\repoch {trainer.epoch + 1}  {done}  {_shown(logs)}\x1b[K")
        self._out.flush()

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Show the epoch's line."""
        start = "\r" if self._out.isatty() else ""
        end = "\x1b[K" if start else ""
        seconds = time.monotonic() - self._began
        self._out.write(f"{start}epoch {epoch + 1}  {seconds:.1f} s  {_shown(logs)}{end}\n")
        self._out.flush()


def _shown(logs: Logs) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in logs.items())


def watched(logs: Logs, name: str) -> float:
    """A value of the logs; an error lists what there is."""
    if name not in logs:
        raise ValueError(
            f"There is no {name!r} to watch; there are {', '.join(logs)}. Values with 'val_' need "
            "validation_data."
        )
    return float(logs[name])


def is_better(
    value: float, best: float | None, name: str, mode: str | None, min_delta: float
) -> bool:
    """Whether a value is better than the best so far; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    bare = name.removeprefix("val_").removeprefix("train_")
    upward = mode == "max" or (mode is None and (bare in UPWARD or bare.startswith("top")))
    return value > best + min_delta if upward else value < best - min_delta
