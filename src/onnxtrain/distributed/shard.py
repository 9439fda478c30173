"""Optimizer state in slices: each rank keeps, and updates, only its part of the flat buffers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..runtime.files.dtypes import F32
from ..runtime.files.onnxfile import Source
from ..runtime.state.buffers import ALIGNMENT, FlatBuffer, Slot, TensorSpec, TensorStore
from ..runtime.state.training_state import OptimizerState, TrainingState
from ..runtime.step.finite import HUGE, Snapshot, clip_factor, is_finite, refused, square_sum
from ..runtime.step.loss_scale import LossScale
from ..runtime.step.module import Module
from ..runtime.step.optimizer import attach
from ..runtime.step.update import Update, load_optimizer
from .backend import Backend

Array = npt.NDArray[Any]


def slices(size: int, count: int) -> list[tuple[int, int]]:
    """`count` slices of a vector that begin on a cache line; the last may be shorter or empty.

    Example:
        >>> slices(100, 3)
        [(0, 48), (48, 96), (96, 100)]
    """
    line = ALIGNMENT // 4
    step = -(-size // (count * line)) * line
    edges = [min(step * i, size) for i in range(count + 1)]
    return list(pairwise(edges))


def window(store: TensorStore, start: int, stop: int, data: Array | None = None) -> TensorStore:
    """The part of a store between two elements: a view of it, or the same layout over `data`.

    Every tensor keeps its name; what lies outside has no elements.
    """
    whole = store.buffers["F32"]
    part, buffer = TensorStore([]), FlatBuffer(F32, [])
    buffer.data = whole.data[start:stop] if data is None else data
    for name, slot in whole.slots.items():
        first = min(max(slot.start, start), stop)
        last = min(max(slot.stop, first), stop)
        spec = TensorSpec(name, F32, (last - first,))
        buffer.slots[name] = Slot(spec, first - start)
        part.specs[name] = spec
    part.buffers["F32"] = buffer
    return part


class ShardedOptimizer:
    """Updates this rank's slice, then the ranks exchange the parameters.

    Args:
        source: path or bytes of the optimizer model; its update must be element by element.
        module: whose parameters are updated.
        backend: the ranks.
        clip_norm: limit of the global gradient norm, instead of the optimizer model's own.
    """

    def __init__(
        self,
        source: Source,
        module: Module,
        backend: Backend,
        clip_norm: float | None = None,
    ) -> None:
        self._backend, self._step = backend, module.gradient_step
        self._state, device = self._step.state, self._step.device
        self._file = file = load_optimizer(source)
        self._limit = file.clip_norm if clip_norm is None else clip_norm
        if file.layout != "elementwise" or not device.is_host:
            reason = (
                f"{file.name or 'this optimizer'} works on whole tensors"
                if device.is_host
                else f"the state lives on device {device.name!r}"
            )
            raise InputError(f"shard_optimizer=True is not possible here: {reason}.")
        if LossScale.of(self._state.frozen) is not None:
            raise InputError("shard_optimizer=True is not possible here: the loss is scaled.")
        memory = attach(self._state, file)
        params = self._state.trainable
        self.bounds = slices(params.buffers["F32"].data.size, backend.size)
        start, stop = self.bounds[backend.rank]
        self.moments = {
            kind: window(params, start, stop, store.buffers["F32"].data[start:stop].copy())
            for kind, store in memory.states.items()
        }
        memory.states = {}  # the whole moments are let go; `collected` brings them together again
        self._memory: OptimizerState = memory
        self._gradients = window(self._step.gradients, start, stop)
        self._params = window(params, start, stop)
        part = TrainingState(
            self._params,
            gradients=self._gradients,
            optimizer=OptimizerState(memory.name, states=self.moments),
        )
        options = self._step.user_options
        self._update = Update(file, part, device, options) if stop > start else None

    @property
    def step_count(self) -> int:
        """Number of updates so far."""
        return self._memory.step

    @property
    def nbytes(self) -> int:
        """Bytes of optimizer state on this rank."""
        return sum(m.buffers["F32"].data.nbytes for m in self.moments.values())

    def reduce(self, gradients: Array, start: int, stop: int) -> None:
        """Sum the gradients between two elements over all ranks, each for its slice."""
        edges = [(min(max(a, start), stop), min(max(b, start), stop)) for a, b in self.bounds]
        shifted = [(a - start, b - start) for a, b in edges]
        self._backend.reduce_slices(gradients[start:stop], shifted)

    def square(self, tail: Array) -> float:
        """Sum the tail over all ranks; gives the squared norm of the gradients."""
        part = self._gradients.buffers["F32"].data
        small = np.empty(tail.size + 1, np.float64)
        small[0], small[1:] = square_sum(part), tail
        self._backend.all_reduce(small)
        tail[:] = small[1:]
        return float(small[0])

    def apply(self, scale: float, square: float) -> None:
        """Update with all gradients times `scale`; `square` is their squared norm before."""
        norm = scale * math.sqrt(square)
        if self._limit is not None:
            factor = clip_factor(norm, self._limit)
            scale, norm = scale * factor, norm * factor
        memory = self._memory
        if not self._step.check_finite or max(norm, memory.learning_rate) <= HUGE:
            self._run(scale)
        else:
            self._try(scale, norm)
        self._step.updated()
        memory.step += 1
        self._backend.gather_slices(self._state.trainable.buffers["F32"].data, self.bounds)

    def _run(self, scale: float) -> None:
        if self._update is not None:
            self._update.run(self._memory.step + 1, self._memory.learning_rate, scale)

    def _try(self, scale: float, norm: float) -> None:
        """Update, and take it back on all ranks if the result of one is not finite."""
        stores = [self._params, *self.moments.values()]
        before = Snapshot(stores)
        if math.isfinite(norm):
            with np.errstate(over="ignore", invalid="ignore"):  # that is what is looked for
                self._run(scale)
        bad = not (math.isfinite(norm) and all(map(is_finite, stores)))
        if self._backend.sums([bad])[0]:
            before.restore()
            what = "A gradient, or what the update makes of it, is NaN or infinite"
            raise refused(f"{what}, in update {self.step_count + 1}")

    def collected(self) -> dict[str, TensorStore]:
        """The whole moments on rank 0, for a checkpoint; nothing elsewhere. All ranks call it."""
        backend, moments = self._backend, {}
        own = self.bounds[backend.rank]
        longest = max(b - a for a, b in self.bounds)
        scratch = np.empty(0 if backend.is_main else longest, np.float32)
        for kind, moment in self.moments.items():
            whole = TensorStore(self._state.trainable.specs.values()) if backend.is_main else None
            for root, (start, stop) in enumerate(self.bounds):
                if whole is not None:
                    part = whole.buffers["F32"].data[start:stop]
                    if root == backend.rank:
                        part[:] = moment.buffers["F32"].data
                elif (start, stop) == own:
                    part = moment.buffers["F32"].data
                else:
                    part = scratch[: stop - start]
                if stop > start:
                    backend.broadcast(part, root)
            if whole is not None:
                moments[kind] = whole
        return moments
