"""DataParallel: what a `Trainer` does differently when it trains together with others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..runtime.files.onnxfile import Source
from ..runtime.loop.batches import Batches
from ..runtime.loop.metrics import Metric
from ..runtime.session.devices import session_options
from ..runtime.state.checkpoint_state import CheckpointState
from ..runtime.step.artifact import load_artifact
from ..runtime.step.module import Module
from ..runtime.step.optimizer import Optimizer
from ..runtime.step.process_group import Group
from .backend import Backend, Single
from .connect import connect
from .engine import HEAD, ParallelEngine, widened
from .overlap import BUCKET_MB, Way
from .sampler import Part, ShardedBatches
from .shard import ShardedOptimizer
from .start import check_same_models, shared_state


def make(
    distributed: Backend | str,
    shard_optimizer: bool = False,
    overlap: Way = "auto",
    bucket_mb: float = BUCKET_MB,
) -> Group:
    """The group for `Trainer(distributed=…)`."""
    backend = connect(distributed)
    if backend is None:  # "auto", and no launcher
        if not shard_optimizer and overlap is not True:
            return Group()
        backend = Single()
    return DataParallel(backend, shard_optimizer, overlap, bucket_mb)


class DataParallel(Group):
    """Several processes that train one model, each on its part of every batch.

    Args:
        backend: the processes.
        shard_optimizer: each keeps only its part of the optimizer's moments.
        overlap: exchange gradients while others are computed: True, False, or ``"auto"`` for
            whichever the first updates show to be faster.
        bucket_mb: megabytes of gradients per message then.
    """

    def __init__(
        self,
        backend: Backend,
        shard_optimizer: bool = False,
        overlap: Way = "auto",
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        if overlap not in {"auto", True, False}:
            raise ValueError(f"overlap is 'auto', True or False, not {overlap!r}.")
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb must be a positive number, not {bucket_mb!r}.")
        self.overlap, self.bucket_mb = overlap, bucket_mb
        self.backend, self.shard_optimizer = backend, shard_optimizer
        self.rank, self.size, self.is_main = backend.rank, backend.size, backend.is_main
        self._engine: ParallelEngine | None = None

    def load(self, state: CheckpointState | str | os.PathLike[str]) -> CheckpointState:
        """The state of rank 0, everywhere."""
        return shared_state(self.backend, state)

    def session_options(self, given: Any) -> Any:
        """Processes of one machine share its cores instead of each taking all."""
        if self.backend.local_size == 1:
            return given
        threads = max(1, (os.cpu_count() or 1) // self.backend.local_size)
        return session_options(given, weights_change=True, pattern=False, threads=threads)

    def engine(self, *arguments: Any) -> ParallelEngine:
        """Module, optimizer and the exchange between the processes."""
        self._engine = self._make(*arguments)
        return self._engine

    def _make(
        self,
        train_model: Source,
        optimizer_model: Source,
        state: CheckpointState,
        options: dict[str, Any],
        clip_norm: float | None,
        accumulate: int,
    ) -> ParallelEngine:
        check_same_models(self.backend, training_model=train_model, optimizer_model=optimizer_model)
        values = state.training_state
        states = load_artifact(train_model, "training", values).states
        statistics = sum(values.frozen.specs[s].size for s in states if s in values.frozen)
        kinds = sorted(values.trainable.buffers)
        if kinds != ["F32"]:
            raise InputError(
                "Distributed training exchanges float32 gradients; this model trains parameters "
                f"of type {', '.join(kinds) or 'none'}. Freeze the others, or cast them to float32."
            )
        values.gradients = values.trainable.like()
        wide = widened(values.gradients, HEAD + statistics)
        module = self._module(train_model, state, options)
        optimizer: Optimizer | ShardedOptimizer
        if self.shard_optimizer:
            optimizer = ShardedOptimizer(optimizer_model, module, self.backend, clip_norm)
        else:
            optimizer = Optimizer(optimizer_model, module)
            optimizer.clip_norm = clip_norm
        return ParallelEngine(
            self.backend, module, optimizer, wide, accumulate, self.overlap, self.bucket_mb
        )

    def _module(
        self, train_model: Source, state: CheckpointState, options: dict[str, Any]
    ) -> Module:
        """Each rank draws other Dropout masks; the checkpoint keeps the common seed."""
        state.training_state.random.rank = self.rank
        return Module(train_model, state, **options)

    def split(self, source: Batches) -> Batches:
        """This rank's part of each batch, read by it alone where the source can do that."""
        return self._part(source, ordered=True)

    def _part(self, source: Batches, *, ordered: bool) -> Batches:
        own = source.part(self.rank, self.size, ordered=ordered)
        return own if own is not None else ShardedBatches(source, self.rank, self.size)

    def stopping(self, stop: bool, *, vote: bool = True) -> bool:
        """Whether any rank wants to stop."""
        return bool(self.backend.sums([stop])[0]) if vote else stop

    def evaluated(self, source: Batches, metrics: Sequence[Metric]) -> Iterator[list[Any]]:
        """This rank's rows; all rows if a metric cannot be merged."""
        if not _mergeable(metrics):
            yield from source.epoch(0)
            return
        for part in self._part(source, ordered=False).epoch(0):
            if not isinstance(part, Part) or part.rows:
                yield part

    def merge(self, total: float, rows: int, metrics: Sequence[Metric]) -> tuple[float, int]:
        """Sum over the ranks."""
        if not _mergeable(metrics):
            return total, rows
        for metric in metrics:
            state = metric.state()
            assert state is not None
            metric.merge(self.backend.gather(np.asarray(state, np.float64)))
        sums = self.backend.sums([total, rows])
        return float(sums[0]), int(sums[1])

    def save(self, state: CheckpointState, path: str | os.PathLike[str]) -> None:
        """Rank 0 writes; a sharded optimizer's moments come together there first."""
        optimizer = self._engine.optimizer if self._engine is not None else None
        if not isinstance(optimizer, ShardedOptimizer):
            if self.is_main:
                super().save(state, path)
            return
        moments = optimizer.collected()
        if self.is_main:
            memory = state.training_state.need_optimizer()
            memory.states = moments
            try:
                super().save(state, path)
            finally:
                memory.states = {}

    def failed(self, error: BaseException) -> None:
        """Remember it: when this process ends, the others must not wait for it."""
        self.backend.failed = True


def _mergeable(metrics: Sequence[Metric]) -> bool:
    return all(m.state() is not None for m in metrics)
