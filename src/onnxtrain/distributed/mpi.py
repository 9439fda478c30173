"""MPI through mpi4py: the mpich wheel, or whatever MPI the system has."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingPackageError, RankLostError
from .backend import TIMEOUT, Backend, Bounds
from .peers import Neighbours, Peer

Array = npt.NDArray[Any]
YIELDS = 2000
"""Polls that only offer the core to others; afterwards the waiting rank naps between polls."""

NAP = 5e-5
LOOK = 0.25
"""Seconds between two looks at the processes of the same machine."""

FAREWELL = 0.5
"""Seconds between the last words of a rank and the end: the launcher forwards them only if it lives
to read them."""


class MPIBackend(Backend):
    """The ranks of an MPI communicator.

    Collective calls are non-blocking ones that are polled, which costs nothing (measured) and
    lets a waiting rank notice that another is dead: at once if it ran on the same machine, else
    after `timeout` seconds. The rank that notices raises `RankLostError`; when a rank
    ends with an error, MPI is told to end the others too.

    Args:
        timeout: seconds after which a silent rank counts as lost. Must be longer than the longest
            pause between two steps (writing a checkpoint, say).
        comm: a communicator of mpi4py, by default a copy of ``COMM_WORLD``.
    """

    name = "mpi"

    def __init__(self, timeout: float = TIMEOUT, comm: Any = None) -> None:
        self._mpi = _import()
        self._comm = self._mpi.COMM_WORLD.Dup() if comm is None else comm
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.timeout = timeout
        self.other_threads = self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE
        self._last_comm = self._comm.Dup()
        own = Peer.own(self.rank)
        peers = [Peer(*p) for p in self._comm.allgather(own.as_tuple())]
        self._neighbours = Neighbours(own, peers)
        self.local_size = self._neighbours.count
        self.warned = False
        if self.size > 1:
            _stop_all_on_error(self)
            _hear_launcher(self)

    def all_reduce(self, array: Array) -> None:
        """Sum, in place."""
        self._wait("all_reduce", self._comm.Iallreduce, self._mpi.IN_PLACE, array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Send from `root`."""
        self._wait("broadcast", self._comm.Ibcast, array, root)

    def barrier(self) -> None:
        """Wait for all."""
        self._wait("barrier", self._comm.Ibarrier)

    def reduce_slices(self, vector: Array, bounds: Bounds) -> None:
        """Half the traffic of an all-reduce: MPI's reduce-scatter."""
        if self.size == 1:
            return
        start, stop = bounds[self.rank]
        counts = [b - a for a, b in bounds]
        received = np.empty(stop - start, vector.dtype)
        whole = vector[: bounds[-1][1]]
        self._wait("reduce_slices", self._comm.Ireduce_scatter, whole, received, counts)
        vector[start:stop] = received

    def gather_slices(self, vector: Array, bounds: Bounds) -> None:
        """MPI's all-gather, in place."""
        counts, starts = [b - a for a, b in bounds], [a for a, _ in bounds]
        kind = self._mpi._typedict[vector.dtype.char]
        target = [vector, counts, starts, kind]
        self._wait("gather_slices", self._comm.Iallgatherv, self._mpi.IN_PLACE, target)

    def _wait(self, what: str, call: Any, *arguments: Any) -> None:
        if self.size == 1:
            return
        try:
            request = call(*arguments)
            if not request.Test():
                self._poll(request, what)
            self.failed = False  # all ranks came here: whatever happened, they know of it
        except self._mpi.Exception as error:
            self.failed = True
            raise RankLostError(
                what, self.rank, self.size, f"MPI reports: {error.Get_error_string()}"
            ) from error

    def _poll(self, request: Any, what: str) -> None:
        began = looked = time.monotonic()
        polls = 0
        while not request.Test():
            polls += 1
            time.sleep(0 if polls < YIELDS else NAP)
            if polls % 256:
                continue
            now = time.monotonic()
            if now - looked > LOOK:
                looked = now
                self._look(what)
            if now - began > self.timeout:
                self._lost(what, f"no answer from the other ranks for {self.timeout:g} s")

    def _look(self, what: str) -> None:
        gone = self._neighbours.gone()
        if gone is not None:
            self._lost(what, f"rank {gone.rank} (process {gone.pid}) has ended")
        if self.warned:
            self._lost(what, "the launcher reports that a rank has ended")

    def all_leave(self) -> bool:
        """Whether the other ranks are leaving too, within two seconds."""
        self.timeout = min(self.timeout, 2.0)
        try:
            self._wait("barrier", self._last_comm.Ibarrier)
        except RankLostError:
            return False
        return True

    def abort(self) -> None:
        """End all ranks."""
        self._comm.Abort(1)

    def _lost(self, what: str, reason: str) -> None:
        self.failed = True
        raise RankLostError(what, self.rank, self.size, reason)


def _import() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingPackageError("mpi4py", "distributed='mpi'", "mpi") from error
    except RuntimeError as error:  # mpi4py is there, the MPI library is not
        raise MissingPackageError("an MPI library", "distributed='mpi'", "mpi") from error
    return MPI


def _stop_all_on_error(backend: MPIBackend) -> None:
    """Without this a rank that ends with an error leaves the others waiting, and waits itself."""
    before = sys.excepthook

    def noted(*details: Any) -> None:
        backend.failed = True
        before(*details)

    def leave() -> None:
        sys.stdout.flush()
        if backend.failed and not backend.all_leave():
            sys.stderr.write(f"onnxtrain: rank {backend.rank} ends the whole run.\n")
            sys.stderr.flush()
            time.sleep(FAREWELL)
            backend.abort()

    sys.excepthook = noted
    atexit.register(leave)


def _hear_launcher(backend: MPIBackend) -> None:
    """mpich's launcher tells of a dead rank by SIGUSR1, which would end Python without a word."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(number) is not signal.SIG_DFL:  # the program's own business
        return

    def warned(*_: Any) -> None:
        backend.warned = True

    signal.signal(number, warned)
