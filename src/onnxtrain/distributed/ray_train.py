"""Ray Train: reports with checkpoints, and the last one after a failure.

A worker of Ray's ``TorchTrainer`` is a rank of torch.distributed: ``Trainer(distributed="torch")``
is all that the training itself needs. What is here lets Ray keep the checkpoints, so that it can
start the group of workers again, on other machines if it must, when one is lost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError
from ..runtime.loop.callbacks import Callback

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer

NAME = "checkpoint"
"""The file in the folder that Ray keeps."""


class ReportToRay(Callback):
    """Gives Ray a checkpoint and the numbers of the training; to be used on every worker.

    Args:
        every_steps: after every so many updates, and after every epoch; by default the latter only.
    """

    may_stop = False

    def __init__(self, every_steps: int | None = None) -> None:
        self._ray, self.every_steps = _ray_train(), every_steps

    def on_step_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Report every `every_steps` updates."""
        if self.every_steps and trainer.step % self.every_steps == 0:
            self._report(trainer, logs)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Mapping[str, float]) -> None:
        """Report every epoch."""
        self._report(trainer, logs)

    def _report(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        numbers = {name: float(value) for name, value in logs.items()}
        numbers |= {"epoch": trainer.epoch, "step": trainer.step}
        with tempfile.TemporaryDirectory() as folder:
            trainer.save(Path(folder) / NAME)  # every rank: a sharded state comes together
            is_main = trainer.group.is_main
            checkpoint = self._ray.Checkpoint.from_directory(folder) if is_main else None
            self._ray.report(numbers, checkpoint=checkpoint)


@contextmanager
def latest_checkpoint() -> Iterator[Path | None]:
    """The checkpoint from which a worker goes on: None at the first start.

    Example:
        >>> with latest_checkpoint() as latest:  # doctest: +SKIP
        ...     trainer = Trainer.from_directory(
        ...         "artifacts", latest=latest, distributed="torch"
        ...     )
        >>> trainer.fit(data, callbacks=[ReportToRay()], resume="auto")  # doctest: +SKIP
    """
    checkpoint = _ray_train().get_checkpoint()
    if checkpoint is None:
        yield None
        return
    with checkpoint.as_directory() as folder:
        yield Path(folder) / NAME


def _ray_train() -> Any:
    try:
        import ray.train
    except ImportError:
        raise MissingPackageError("ray", "Training with Ray Train", "ray") from None
    return ray.train
