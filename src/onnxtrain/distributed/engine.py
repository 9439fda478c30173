"""A training step on several ranks: local gradients, one all-reduce, the same update everywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import NonFiniteError
from ..runtime.state.buffers import TensorStore, aligned_zeros
from ..runtime.step.finite import refused
from ..runtime.step.module import Module
from ..runtime.step.optimizer import Optimizer
from ..runtime.step.step import Engine
from .backend import Backend
from .overlap import BUCKET_MB, Overlap, Way
from .sampler import Part
from .shard import ShardedOptimizer

Array = npt.NDArray[Any]
HEAD = 2
"""Numbers that ride behind the gradients, before the running statistics: losses and weights."""


def widened(gradients: TensorStore, extra: int) -> Array:
    """Give the gradient buffer room at its end, and return the vector with that room.

    So the loss and the running statistics travel in the same message as the gradients. To be called
    before anything is bound to the buffer.
    """
    buffer = gradients.buffers["F32"]
    wide = aligned_zeros(buffer.data.size + extra, np.dtype(np.float32))
    buffer.data = wide[: buffer.data.size]
    return wide


class ParallelEngine(Engine):
    """Runs the steps of a `Trainer` together with the other ranks.

    A rank's gradient is the mean over its own rows, or over the labels in them that count. With n_r
    of n on rank r the gradient of the whole batch is Σ n_r/n · g_r, and that of several
    micro-batches is the same sum over all of them. Weights are relative to an equal share of the
    first micro-batch, so mostly 1, and the division by their sum is left to the update.

    Args:
        backend: the ranks.
        module: made on a state whose gradients were widened.
        optimizer: plain or sharded.
        wide: what `widened` gave.
        accumulate: micro-batches per update.
        overlap: whether gradients travel while others are computed, see `Overlap`.
        bucket_mb: megabytes of gradients per message then.
    """

    def __init__(
        self,
        backend: Backend,
        module: Module,
        optimizer: Optimizer | ShardedOptimizer,
        wide: Array,
        accumulate: int,
        overlap: Way = False,
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        self.backend, self.module, self.optimizer = backend, module, optimizer
        self.accumulate, self._step = accumulate, module.gradient_step
        self.training_state = self._step.state
        self.input_names = module.input_names()
        self._gradients = self._step.gradients
        self._data = self._gradients.buffers["F32"].data
        self._wide, self._tail = wide, wide[self._data.size :]
        self._averaged = list(averaged_states(module))
        self.overlap = Overlap(backend, module, self._reduce, overlap, bucket_mb)
        self.forget()

    def nothing_counts(self, part: Part) -> bool:
        """False: `run` leaves the loss of such a part out itself."""
        del part
        return False

    @property
    def step_count(self) -> int:
        """Number of updates so far."""
        return self.optimizer.step_count

    def forget(self) -> None:
        """Drop micro-batches that an interrupted training left behind."""
        self._pending, self._rows, self._total, self._loss = 0, 0, 0, 0.0
        self._weights, self._share = 0.0, 0.0
        self._factor, self._seconds = 1.0, 0.0
        self.overlap.forget()

    def run(self, part: Part) -> tuple[float, int]:
        """One (micro-)batch; loss and rows of all ranks once they are known, else zeros."""
        if self._pending == 0:
            self.module.lazy_reset_grad()
            self.overlap.begin()
        began = time.perf_counter()
        if not self._share:
            self._share = part.total * self._step.user.weight_per_row(part) / self.backend.size
        if part.rows:
            weight = self._step.user.weight(part) / self._share if self._share else 1.0
            self._weigh(weight)
            self.overlap.prepare(self._pending + 1 == self.accumulate, self._factor)
            loss = self._run_module(part)
            self._weights += weight
            if math.isfinite(loss) or not self._step.user.nothing_counts(part):
                self._loss += loss * weight
        else:
            self._step.skip()
        self._rows += part.rows
        self._total += part.total
        self._pending += 1
        self._seconds += time.perf_counter() - began
        return self.finish() if self._pending == self.accumulate else (0.0, 0)

    def _run_module(self, part: Part) -> float:
        """The mean loss of this rank's rows; what is wrong with it all ranks find out together."""
        try:
            result = self.module(*part)
        except NonFiniteError:
            return math.nan
        return float(np.mean(result[0] if isinstance(result, tuple) else result))

    def _weigh(self, factor: float) -> None:
        """The buffer holds gradients that `_factor` has still to be multiplied with.

        Where no label counts the gradient is 0, and any factor does.
        """
        if not factor:
            return
        if self._rows and factor != self._factor:
            self._gradients.pull()
            self._data *= np.float32(self._factor / factor)
            self._gradients.push()
        self._factor = factor

    def finish(self) -> tuple[float, int]:
        """Sum over the ranks and update; gives mean loss and rows of all micro-batches."""
        if not self._pending:
            return 0.0, 0
        began = time.perf_counter()
        self._gradients.pull()
        if not self._rows:
            self._data[:] = 0.0
        elif self._factor != 1.0 and not self.overlap.sent:
            self._data *= np.float32(self._factor)
        self._fill_tail()
        sent = time.perf_counter()
        square = self._exchange()
        sent = time.perf_counter() - sent
        try:
            self._update(square)
        except NonFiniteError:
            self.module.discard_step()
            self.forget()
            raise
        rows, batches, loss = self._total, self._pending, self._mean_loss()
        self._empty_tail()
        seconds = self._seconds + time.perf_counter() - began
        self.forget()
        self.overlap.end(batches, rows, seconds, sent)
        return loss, rows

    def _update(self, square: float) -> None:
        """The same on every rank, or, if loss or gradients are not finite, the same error."""
        loss = self._mean_loss()
        if self.module.check_finite and not math.isfinite(loss):
            of = "batch" if self._pending == 1 else f"{self._pending} batches"
            what = f"The loss of the {of} is {loss} on one of the ranks or several"
            raise refused(f"{what}, in update {self.step_count + 1}")
        scale = 1.0 / (float(self._tail[1]) or 1.0)
        if isinstance(self.optimizer, ShardedOptimizer):
            self.optimizer.apply(scale, square)
        else:
            self._gradients.push()
            self.optimizer.apply(scale)

    def _mean_loss(self) -> float:
        """Over all ranks and micro-batches; 0 if no label of them counts."""
        return float(self._tail[0]) / (float(self._tail[1]) or 1.0)

    def _exchange(self) -> float:
        """Sum over the ranks; gives the squared norm if the optimizer is sharded."""
        # with fewer micro-batches than planned nobody knew that the last one was the last
        overlapped = self.overlap.on and self._pending == self.accumulate
        if overlapped:
            self.overlap.complete()
        if isinstance(self.optimizer, ShardedOptimizer):
            if not overlapped:
                self._reduce(0, self._data.size)
            return self.optimizer.square(self._tail)
        self.backend.all_reduce(self._tail if overlapped else self._wide)
        return 0.0

    def _reduce(self, start: int, stop: int) -> None:
        if isinstance(self.optimizer, ShardedOptimizer):
            self.optimizer.reduce(self._data, start, stop)
        else:
            self.backend.all_reduce(self._data[start:stop])

    # --- loss and running statistics -------------------------------------------------------------

    def _fill_tail(self) -> None:
        tail = self._tail
        tail[0], tail[1] = self._loss, self._weights
        if not self._averaged:
            return
        share, frozen = np.float32(self._rows / self._total), self.training_state.frozen
        frozen.pull()
        at = HEAD
        for name in self._averaged:
            values = frozen.view(name).reshape(-1)
            np.multiply(values, share, out=tail[at : at + values.size])
            at += values.size

    def _empty_tail(self) -> None:
        if not self._averaged:
            return
        at, frozen = HEAD, self.training_state.frozen
        for name in self._averaged:
            values = frozen.view(name).reshape(-1)
            values[:] = self._tail[at : at + values.size]
            at += values.size
        frozen.push()


def averaged_states(module: Module) -> Iterator[str]:
    """States that the forward pass changes and that are averaged: running statistics.

    Others, counters say, are the same on every rank that had rows.
    """
    step = module.gradient_step
    for name in step.artifact.states:
        if step.state.frozen.specs[name].type.code == "F32":
            yield name
