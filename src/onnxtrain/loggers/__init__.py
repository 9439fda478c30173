"""Where the numbers of a training go: TensorBoard, CSV, MLflow, Weights & Biases, or your own.

A logger is any object with the three methods of `Logger`; `LogTo` hangs it into a `Trainer`:

    trainer.fit(data, callbacks=[LogTo(CSVLogger("log.csv"))])

On the command line ``--log NAME`` takes those of `LOGGERS` and those that other packages add as
entry points of the group ``onnxtrain.loggers``.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

from .. import plugins
from ..errors import InputError, MissingPackageError
from ..runtime.files.readfile import file_name
from ..runtime.loop.callbacks import Callback

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer


@runtime_checkable
class Logger(Protocol):
    """What takes the numbers of one run."""

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Before the first number.

        Args:
            run: what the run is called.
            settings: what it was started with; values are numbers, text, or None.
        """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Some values, by name, after so many updates of the weights."""

    def finish(self) -> None:
        """After the last number, also when training ended with an error; may come twice."""


NUMBER = "epoch/number"
"""Name of the value that says how many epochs are done. Not "epoch": in MLflow's folders that would
be a file where "epoch/loss" needs a folder."""


class LogTo(Callback):
    """Gives a logger loss and learning rate after every update, and everything after every epoch.

    Args:
        logger: takes the numbers.
        run: what the run is called.
        settings: what it was started with.
        every: updates between two values by step.
    """

    may_stop = False

    def __init__(
        self,
        logger: Logger,
        run: str = "onnxtrain",
        settings: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        self.logger, self.run, self.settings, self.every = logger, run, settings or {}, every

    def on_train_begin(self, trainer: Trainer) -> None:
        """Start the logger."""
        self.logger.start(self.run, self.settings)

    def on_step_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Loss and learning rate by step."""
        if trainer.step % self.every == 0:
            self.logger.log({f"step/{k}": float(v) for k, v in logs.items()}, trainer.step)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Mapping[str, float]) -> None:
        """Everything by epoch."""
        last = {f"epoch/{k}": float(v[-1]) for k, v in trainer.history.items() if v}
        self.logger.log({NUMBER: float(epoch + 1), **last}, trainer.step)

    def on_train_end(self, trainer: Trainer) -> None:
        """Close the logger."""
        self.logger.finish()


class CSVLogger:
    """One line per value: step, name, value.

    Args:
        path: the file; a resumed run adds to it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(file_name(path))
        self._file: IO[str] | None = None

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Open the file."""
        is_new = not self.path.exists()
        self._file = self.path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if is_new:
            self._writer.writerow(("step", "name", "value"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add lines."""
        self._writer.writerows((step, name, value) for name, value in values.items())
        if NUMBER in values and self._file is not None:
            self._file.flush()

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLogger:
    """Event files for TensorBoard, by tensorboardX.

    Args:
        folder: where they go.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingPackageError(
                "tensorboardX", "Logging to TensorBoard", "tensorboard"
            ) from None
        self._open: Callable[[str], Any] = SummaryWriter
        self.folder = file_name(folder)
        self._writer: Any = None

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Open the event file, with the settings as text."""
        self._writer = self._open(self.folder)
        shown = "\n".join(f"    {name} = {value}" for name, value in settings.items())
        if shown:
            self._writer.add_text("settings", shown)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if NUMBER in values:
            self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


LONGEST, AT_ONCE = 500, 100
"""Letters of a parameter, and parameters of a call, that every release of MLflow takes."""


class MLflowLogger:
    """A run of MLflow.

    Args:
        experiment: its name; by default MLflow's own default.
        tracking_uri: server or folder; by default ``MLFLOW_TRACKING_URI``, else MLflow's default.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise MissingPackageError("mlflow", "Logging to MLflow", "mlflow") from None
        self._mlflow, self.experiment, self.tracking_uri = mlflow, experiment, tracking_uri
        self._runs = False

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Start a run, with the settings as its parameters; one of the user's own is used."""
        if self.tracking_uri is not None:
            self._mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            self._mlflow.set_experiment(self.experiment)
        if self._mlflow.active_run() is None:
            self._mlflow.start_run(run_name=run)
            self._runs = True
        texts = {k: str(v)[:LONGEST] for k, v in settings.items() if v is not None}
        for first in range(0, len(texts), AT_ONCE):
            self._mlflow.log_params(dict(list(texts.items())[first : first + AT_ONCE]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add metrics."""
        self._mlflow.log_metrics(dict(values), step=step)

    def finish(self) -> None:
        """End the run, if it was started here."""
        if self._runs:
            self._mlflow.end_run()
            self._runs = False


class WandbLogger:
    """A run of Weights & Biases.

    Args:
        project: its name there.
        folder: for its own files; by default the current one.
        options: more arguments of ``wandb.init``, such as ``mode="offline"``.
    """

    def __init__(
        self,
        project: str = "onnxtrain",
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingPackageError("wandb", "Logging to Weights & Biases", "wandb") from None
        self._wandb = wandb
        self._run: Any = None
        self._options = {"project": project, "dir": folder and os.fspath(folder), **options}

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Start a run, with the settings as its configuration."""
        self._run = self._wandb.init(name=run, config=dict(settings), **self._options)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add values."""
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda folder: CSVLogger(folder / "log.csv"),
    "tensorboard": lambda folder: TensorBoardLogger(folder / "tensorboard"),
    "mlflow": lambda folder: MLflowLogger(),
    "wandb": lambda folder: WandbLogger(folder=folder),
}
"""Name → what makes the logger of a run from its folder."""


def make_logger(name: str, folder: Path) -> Logger:
    """A logger by name: one of `LOGGERS`, or one that another package adds.

    Args:
        name: of the logger.
        folder: of the run.
    """
    if name in LOGGERS:
        return LOGGERS[name](folder)
    logger = plugins.load("loggers", name)(folder)
    if not isinstance(logger, Logger):
        raise InputError(
            f"The logger {name!r} lacks a method of onnxtrain.loggers.Logger: start, log, finish."
        )
    return logger
