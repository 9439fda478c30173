"""Hyper-parameter search with Optuna: a callback that reports epochs and prunes bad trials.

    def objective(trial):
        rate = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        trainer = Trainer.from_directory("artifacts", learning_rate=rate)
        prune = PruneTrial(trial)
        history = trainer.fit(data, epochs=20, validation_data=held_out, callbacks=[prune])
        return prune.best

    optuna.create_study(pruner=optuna.pruners.MedianPruner()).optimize(objective, n_trials=50)

``onnxtrain tune`` does the same from a shell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import MissingPackageError
from .runtime.loop.callbacks import Callback, is_better, watched

if TYPE_CHECKING:
    from .runtime.loop.trainer import Trainer


def import_optuna() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise MissingPackageError("optuna", "Hyper-parameter search", "tune") from None
    return optuna


class PruneTrial(Callback):
    """Reports a value after every epoch, and ends a trial that the study's pruner gives up.

    Args:
        trial: of Optuna.
        monitor: what is reported; by default "val_loss", or "loss" without validation.

    Attributes:
        best: the best value of all epochs; NaN before the first.
        pruned: the exception that ends a trial, Optuna's own.
    """

    may_stop = False

    def __init__(self, trial: Any, monitor: str | None = None) -> None:
        self.trial, self.monitor, self.best = trial, monitor, math.nan
        self.pruned: type[Exception] = import_optuna().TrialPruned

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Mapping[str, float]) -> None:
        """Report, and raise `optuna.TrialPruned` if the trial is not worth going on."""
        name = self.monitor or ("val_loss" if "val_loss" in logs else "loss")
        value = watched(logs, name)
        if is_better(value, None if math.isnan(self.best) else self.best, name, None, 0.0):
            self.best = value
        self.trial.report(value, epoch)
        if self.trial.should_prune():
            raise self.pruned(f"{name} is {value:.4g} after epoch {epoch + 1}.")
