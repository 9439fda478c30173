"""Gradients travel while others are still being computed, where that is faster."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..runtime.step.module import Module
from ..runtime.step.pieces import Pieces
from .backend import Backend

Array = npt.NDArray[Any]
Way: TypeAlias = "Literal['auto'] | bool"
Call: TypeAlias = Callable[[], None]

BUCKET_MB = 25.0
"""Megabytes of gradients per message: enough to make the latency of a network negligible."""

ROUNDS = 4
"""Updates in each way that are timed, after a first one that is not."""

PATIENCE = 60
"""Updates after which nothing more is tried, if batches differ too much to be compared."""

SHARE = 0.05
"""Part of an update that the exchange must take for overlapping to be tried."""

GAIN = 0.97
"""Part of the plain update's time that an overlapped one may take to be chosen."""


class Sender:
    """A thread that makes calls one after the other, in the order in which they are given."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._open = 0
        # a daemon: an interpreter that ends because of an error must not wait for lost ranks
        threading.Thread(
            target=_work, args=(self._calls, self._outcomes), name="onnxtrain-exchange", daemon=True
        ).start()
        weakref.finalize(self, self._calls.put, None)

    def put(self, call: Call) -> None:
        """Give a call; it is made when those before it are done."""
        self._open += 1
        self._calls.put(call)

    def wait(self) -> None:
        """Wait for all calls; raises what the first one that failed has raised."""
        while self._open:
            error = self._outcomes.get()
            self._open -= 1
            if error is not None:
                raise error


def _work(calls: SimpleQueue[Call | None], outcomes: SimpleQueue[BaseException | None]) -> None:
    error: BaseException | None = None
    while (call := calls.get()) is not None:
        if error is None:  # after an error the ranks no longer agree: nothing more is sent
            try:
                call()
            except BaseException as problem:  # raised where the results are waited for
                error = problem
        outcomes.put(error)
        del call


class Choice:
    """Finds out in the first updates whether overlapping pays; all ranks find the same.

    Plain updates come first. If the exchange takes a small part of their time that is the answer.
    Otherwise overlapped updates are tried, until both ways have seen equally many batches: then
    Dropout's masks, which count batches, do not depend on the answer.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.overlaps: bool | None = None
        self._tries = False
        self._updates = 0
        self._batches = [0, 0]
        self._kind: tuple[int, int] | None = None
        self._times: tuple[list[float], list[float]] = ([], [])
        self._shares: list[float] = []

    def next(self) -> bool:
        """Whether the next update is an overlapped one."""
        return self._tries and self._batches[1] < self._batches[0]

    def note(self, overlapped: bool, batches: int, rows: int, seconds: float, sent: float) -> None:
        """Take notice of an update.

        Args:
            overlapped: in which way it was done.
            batches: its micro-batches.
            rows: of all ranks.
            seconds: that it took.
            sent: seconds of it in which nothing but the exchange was done.
        """
        self._updates += 1
        self._batches[overlapped] += batches
        self._kind = self._kind or (batches, rows)
        if self._kind == (batches, rows):
            self._times[overlapped].append(seconds)
            if not overlapped:
                self._shares.append(sent / seconds)
        enough = [len(times) > ROUNDS for times in self._times]
        if self._updates >= PATIENCE:
            self.overlaps = False
        elif not self._tries and enough[0]:
            # of the rank that waits least for the others
            self._tries = float(self._ranks(self._shares).min()) >= SHARE
            self.overlaps = None if self._tries else False
        elif all(enough) and self._batches[0] == self._batches[1]:
            plain, other = (float(self._ranks(times).max()) for times in self._times)
            self.overlaps = other < GAIN * plain

    def _ranks(self, values: list[float]) -> Array:
        """The middle value of every rank, without its first, which made buffers."""
        middle = np.array([np.median(values[1:])])
        return np.concatenate(self.backend.gather(middle))


class Overlap:
    """Runs updates in pieces and exchanges the gradients of one while the next computes.

    Args:
        backend: the ranks.
        module: whose gradients they are.
        reduce: sums the gradients between two elements of the flat buffer over the ranks.
        way: True and False as they say; ``"auto"`` for what `Choice` finds.
        bucket_mb: megabytes of gradients per piece.
    """

    def __init__(
        self,
        backend: Backend,
        module: Module,
        reduce: Callable[[int, int], None],
        way: Way,
        bucket_mb: float,
    ) -> None:
        self._step, self._reduce, self._limit = module.gradient_step, reduce, bucket_mb * 1e6
        self._data = self._step.gradients.buffers["F32"].data
        self.on = False
        """Whether this update is in pieces."""
        self.sent = 0
        """Pieces of this update whose gradients are on their way."""
        self._pieces: Pieces | None = None
        self._sender: Sender | None = None
        self._leaving, self._factor = False, 1.0
        self._choice: Choice | None = None
        reason = _obstacle(backend, module)
        if way is True and reason:
            raise InputError(f"overlap=True is not possible here: {reason}.")
        several = self._data.nbytes > self._limit
        if way is True and several:
            self._switch(True)
        elif way == "auto" and several and not reason and backend.size > 1:
            self._choice = Choice(backend)
            self._step.share_arena()

    @property
    def decided(self) -> bool:
        """Whether it is known how all further updates are done."""
        return self._choice is None

    def _switch(self, on: bool) -> None:
        if on and self._pieces is None:
            self._pieces = Pieces(self._step, self._limit)
            self._pieces.after = self._after
        if self._pieces is not None and len(self._pieces.pieces) < 2:
            on, self._choice = False, None
        if on and self._sender is None:
            self._sender = Sender()
        self.on = on
        self._step.use(self._pieces if on else None, keep=self._choice is not None)
        if not on and self._choice is None:
            self._pieces = self._sender = None

    def begin(self) -> None:
        """Before an update: choose its way."""
        if self._choice is not None and self._choice.next() != self.on:
            self._switch(not self.on)

    def end(self, batches: int, rows: int, seconds: float, sent: float) -> None:
        """After an update; see `Choice.note`."""
        choice = self._choice
        if choice is not None:
            choice.note(self.on, batches, rows, seconds, sent)
            if choice.overlaps is not None:
                self._choice = None
                self._switch(choice.overlaps)

    def prepare(self, last: bool, factor: float) -> None:
        """Before a micro-batch: is it the update's last, and how much do its gradients weigh?"""
        self._leaving, self._factor = last and self.on, factor

    def _after(self, index: int) -> None:
        if not self._leaving or self._pieces is None:
            return
        if self._factor != 1.0:
            for start, stop in self._pieces.ranges[index]:
                self._data[start:stop] *= np.float32(self._factor)
        self._send(index)

    def _send(self, index: int) -> None:
        assert self._pieces is not None
        assert self._sender is not None
        for start, stop in self._pieces.ranges[index]:
            self._sender.put(partial(self._reduce, start, stop))
        self.sent += 1

    def complete(self) -> None:
        """Wait until all gradients are summed; a rank without rows sends its own only now."""
        assert self._pieces is not None
        assert self._sender is not None
        for index in range(self.sent, len(self._pieces.pieces)):
            self._send(index)
        self.sent = 0
        self._sender.wait()

    def forget(self) -> None:
        """Leave an interrupted update behind."""
        if self.sent:
            self.sent, self._sender = 0, Sender()


def _obstacle(backend: Backend, module: Module) -> str:
    """Why gradients cannot travel early, if so."""
    step = module.gradient_step
    if not step.device.is_host:
        return f"the state lives on device {step.device.name!r}"
    if set(step.gradients.buffers) != {"F32"}:
        return "not all trained parameters are float32"
    if not backend.other_threads:
        return f"{backend.name} was started without support for threads (MPI_THREAD_MULTIPLE)"
    return ""
