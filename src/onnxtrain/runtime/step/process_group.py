"""What a `Trainer` asks of the processes that train together; here: one process alone.

`onnxtrain.distributed.DataParallel` answers the same questions for several. The runtime knows it
by name only, so that a device needs no message-passing library.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..loop.batches import Batches
from ..loop.metrics import Metric
from ..state.checkpoint_state import CheckpointState
from .step import Engine


class Group:
    """One process alone."""

    rank, size = 0, 1
    is_main = True
    """Whether this process prints and writes files."""

    def load(self, state: CheckpointState | str | os.PathLike[str]) -> CheckpointState:
        """The state to start from."""
        if isinstance(state, CheckpointState):
            return state
        return CheckpointState.load_checkpoint(state)

    def session_options(self, given: Any) -> Any:
        """onnxruntime's options; None for the usual ones."""
        return given

    def engine(self, *arguments: Any) -> Engine | None:
        """What runs the steps, if not one of the trainer's own ways."""
        del arguments
        return None

    def split(self, source: Batches) -> Batches:
        """This process's part of each batch."""
        return source

    def stopping(self, stop: bool, *, vote: bool = True) -> bool:
        """Whether any process wants to stop; without `vote` all are known to agree."""
        del vote
        return stop

    def evaluated(self, source: Batches, metrics: Sequence[Metric]) -> Iterator[list[Any]]:
        """This process's part of the batches of an evaluation."""
        del metrics
        return source.epoch(0)

    def merge(self, total: float, rows: int, metrics: Sequence[Metric]) -> tuple[float, int]:
        """Sum of losses and number of rows over all processes; metrics are merged in place."""
        del metrics
        return total, rows

    def save(self, state: CheckpointState, path: str | os.PathLike[str]) -> None:
        """Write a complete checkpoint."""
        CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)

    def failed(self, error: BaseException) -> None:
        """Training ended with an error in this process."""


def make_group(
    distributed: Any, shard_optimizer: bool, overlap: Any = "auto", bucket_mb: float = 25.0
) -> Group:
    """The group that is meant by a trainer's arguments."""
    if distributed is None:
        if shard_optimizer or overlap is True:
            what = "shard_optimizer" if shard_optimizer else "overlap"
            raise ValueError(f"{what}=True needs several processes: give distributed too.")
        return Group()
    package = importlib.import_module("onnxtrain.distributed.parallel")
    group: Group = package.make(distributed, shard_optimizer, overlap, bucket_mb)
    return group
