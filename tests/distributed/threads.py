"""Ranks that are threads of one process: what needs a group, but no message-passing library."""

from __future__ import annotations

import threading

import numpy as np

from onnxtrain.distributed import Backend
from onnxtrain.errors import RankLostError


class Threads(Backend):
    """One of several threads that add their arrays up in common memory."""

    name = "threads"

    def __init__(self, rank, size, common):
        self.rank, self.size = rank, size
        self._common = common
        self.calls = []

    def all_reduce(self, array):
        self.calls.append(("all_reduce", array.shape))
        rows = self._exchange(array.copy())
        array[...] = sum(rows[1:], start=rows[0])

    def broadcast(self, array, root=0):
        array[...] = self._exchange(array.copy())[root]

    def barrier(self):
        self._exchange(None)

    def _exchange(self, value):
        table, barrier = self._common
        try:
            table[self.rank] = value
            barrier.wait(300)
            rows = list(table)
            barrier.wait(300)
        except threading.BrokenBarrierError:
            raise RankLostError("all_reduce", self.rank, self.size, "a rank has ended") from None
        return rows

    def leave(self):
        """Die: the others notice."""
        self._common[1].abort()


def together(size, work):
    """What `work(backend)` gives in each of `size` threads; an error of one ends all."""
    common = ([None] * size, threading.Barrier(size))
    found, errors = [None] * size, []

    def run(rank):
        backend = Threads(rank, size, common)
        try:
            found[rank] = work(backend)
        except BaseException as error:
            errors.append((rank, error))
            backend.leave()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return found


def parameters(trainer):
    """A copy of all parameters by name."""
    return {n: np.array(p.data) for n, p in trainer.state.parameters}
