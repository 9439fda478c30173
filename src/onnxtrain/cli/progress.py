"""What hangs in the training loop: the bar, the history, and a clean end on Ctrl-C or SIGTERM."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..drawing.inert import inert
from ..runtime.loop.callbacks import Callback
from .app import Terminated
from .history import Step, write_history
from .output import Output

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer

Logs = Mapping[str, float]


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers, containers and `kill` send before they end a process by force."""


class InterruptedRunError(Exception):
    """The run was stopped by a signal, after its state was saved.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Interrupt(Callback):
    """Saves and stops after the step during which a signal came; a second one stops at once.

    A step is never cut in two, so the checkpoint is one that training goes on from exactly.
    """

    may_stop = False  # by setting `trainer.stop`, that is

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self._number = checkpoint, 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals over for a while (they reach the main thread only)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        self._number = number

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """Leave if asked to."""
        asked = trainer.group.stopping(bool(self._number))
        if asked:  # here or in another process: those that train together leave together
            trainer.save(self.checkpoint)
            raise InterruptedRunError(self._number or signal.SIGINT)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Leave if asked to during validation."""
        self.on_step_end(trainer, logs)


class Recorder(Callback):
    """Keeps every step and writes the history after every epoch."""

    may_stop = False

    def __init__(self, folder: Path, steps: list[Step]) -> None:
        self.folder, self.steps = folder, steps

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """Keep the step."""
        self.steps.append((trainer.step, float(logs["loss"]), float(logs["lr"])))

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Write the files."""
        write_history(self.folder, trainer.history, self.steps)


class TrainMetric(Callback):
    """The metric on (a part of) the training data, for runs without validation data."""

    def __init__(self, data: Any, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """Evaluate."""
        scores = trainer.evaluate(self.data, self.batch_size)
        trainer.history.add({f"train_{m.name}": scores[m.name] for m in trainer.metrics})


class Bar(Callback):
    """A moving bar on a terminal, one line per epoch elsewhere, nothing when quiet."""

    may_stop = False

    def __init__(self, output: Output, epochs: int, rows_per_step: int) -> None:
        self.output, self.epochs, self.rows = output, epochs, rows_per_step
        self._bar: Any = None
        self._task: Any = None
        self._began, self._first, self._smooth = 0.0, 0, math.nan
        self._epoch_began = 0.0
        self._names: set[str] = set()

    def on_train_begin(self, trainer: Trainer) -> None:
        """Start the clock, and the bar on a terminal."""
        names = [m.name for m in trainer.metrics]
        self._names = {f"{side}_{name}" for side in ("val", "train") for name in names}
        self._began, self._first = time.monotonic(), trainer.step
        console = self.output.err
        if self.output.quiet or not console.is_terminal:
            return
        from rich import progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            progress.TextColumn("{task.fields[values]}"),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        total = None if trainer.batches is None else trainer.batches * self.epochs
        done = 0 if trainer.batches is None else trainer.batches * trainer.epoch + trainer.batch
        self._task = self._bar.add_task("training", total=total, completed=done, values="")
        self._bar.start()
        self.output.live = console

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Start the epoch's clock."""
        self._epoch_began = time.monotonic()

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:
        """Move."""
        loss = float(logs["loss"])
        self._smooth = loss if math.isnan(self._smooth) else 0.95 * self._smooth + 0.05 * loss
        if self._bar is None:
            return
        measured = [
            f"{k} {v[-1]:.4g}" for k, v in trainer.history.items() if v and k in self._names
        ]
        speed = f"{self.speed(trainer):,.0f} samples/s"
        values = "  ".join([f"loss {self._smooth:.4f}", *measured, speed])
        name = f"epoch {trainer.epoch + 1}/{self.epochs}"
        self._bar.update(self._task, advance=1, description=name, values=values)

    def speed(self, trainer: Trainer) -> float:
        """Samples per second since the start."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        return (trainer.step - self._first) * self.rows / seconds

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Logs) -> None:
        """One line that stays."""
        last = {k: v[-1] for k, v in trainer.history.items() if v}
        shown = "  ".join(f"{k} {v:.4g}" for k, v in last.items())
        seconds = time.monotonic() - self._epoch_began
        line = f"epoch {epoch + 1}/{self.epochs}  {shown}  {seconds:.1f} s"
        if self._bar is not None:
            self._bar.console.print(inert(line), markup=False, highlight=False)
        else:
            self.output.say(line)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self.output.live = None
