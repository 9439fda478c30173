"""The best epoch of a run: watched, saved, and put back before the model is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.loop.callbacks import Callback, EarlyStopping, SaveCheckpoint, is_better
from ..runtime.state.checkpoint_state import CheckpointState
from .output import Output, UserError, count, one_of
from .recipes import KEEP

if TYPE_CHECKING:
    from ..runtime.loop.trainer import History, Trainer
    from .settings import Settings

FILE = "best"
"""Name of the checkpoint of the best epoch, in the folder of a run."""


class BestCheckpoint(SaveCheckpoint):
    """The checkpoint of the best epoch; a class of its own, since callbacks resume by class."""


@dataclass(frozen=True)
class Best:
    """What is watched in a run, and what follows from it.

    Attributes:
        monitor: the value, as the history names it.
        patience: epochs without progress after which training stops; None never to stop.
    """

    monitor: str
    patience: int | None

    @classmethod
    def of(cls, settings: Settings, metrics: list[str], *, validates: bool) -> Best | None:
        """What the settings ask for; None if nothing is to be watched.

        Args:
            settings: of the run.
            metrics: names of what is computed on validation data.
            validates: whether there are validation data.
        """
        one_of(settings.keep, KEEP, "--keep")
        if settings.early_stopping is None and settings.keep == "last":
            if settings.monitor is not None:
                raise UserError("--monitor goes with --keep best or --early-stopping: add one.")
            return None
        known = [*(f"val_{name}" for name in ("loss", *metrics)), "loss"] if validates else ["loss"]
        monitor = settings.monitor or known[0]
        if monitor.startswith("val_") and not validates:
            raise UserError(f"--monitor {monitor} needs validation data: give --val.")
        return cls(one_of(monitor, known, "--monitor"), settings.early_stopping)

    def callbacks(self, folder: Path) -> list[Callback]:
        """What hangs in the training loop."""
        hooks: list[Callback] = [BestCheckpoint(folder / FILE, best=self.monitor)]
        if self.patience is not None:
            hooks.append(EarlyStopping(self.monitor, self.patience - 1, restore_best=False))
        return hooks

    def epoch(self, history: History) -> int:
        """The best epoch, counted from 0."""
        values, best = history[self.monitor], 0
        for i, value in enumerate(values):
            if is_better(value, values[best], self.monitor, None, 0.0):
                best = i
        return best

    def put_back(self, trainer: Trainer, folder: Path, epochs: int, output: Output) -> None:
        """Give the trainer the parameters of the best epoch; say which that is."""
        values, best = trainer.history[self.monitor], self.epoch(trainer.history)
        if self.patience is not None and len(values) < epochs:
            stopped = f"{self.monitor} brought no progress for {count(self.patience, 'epoch')}"
            output.say(f"Stopped after epoch {len(values)}: {stopped}.")
        output.say(
            f"The best model is that of epoch {best + 1}: {self.monitor} {values[best]:.4g}."
        )
        state = CheckpointState.load_checkpoint(folder / FILE)
        for name, parameter in state.parameters:
            trainer.state.parameters[name] = parameter.data
