"""torch.distributed (gloo on CPUs, nccl on GPUs) as the message-passing library."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingPackageError, RankLostError
from .backend import TIMEOUT, Backend

Array = npt.NDArray[Any]


class TorchBackend(Backend):
    """A process group of torch.distributed.

    Uses the default group if the script has made one; otherwise makes it from the environment that
    ``torchrun`` sets (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``).

    Args:
        timeout: seconds after which a silent rank counts as lost. gloo notices a dead
            process at once.
        engine: ``"gloo"`` or ``"nccl"``; by default gloo. nccl moves each buffer to the GPU
            ``LOCAL_RANK`` and back; it has not been run on such hardware.
    """

    name = "torch"

    def __init__(self, timeout: float = TIMEOUT, engine: str = "gloo") -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise MissingPackageError("torch", "distributed='torch'", "torch") from error
        self._torch: Any = torch
        self._dist: Any = dist  # some of its names it does not export for type checkers
        self.timeout = timeout
        self._own = not dist.is_initialized()
        if self._own:
            self._join(engine, timedelta(seconds=timeout))
            atexit.register(self._leave)
        self.rank, self.size = int(dist.get_rank()), int(dist.get_world_size())
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._device = "cpu"
        if dist.get_backend() == "nccl":
            self._device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"

    def _join(self, engine: str, timeout: timedelta) -> None:
        """Make the group; one that torchrun has started again must not find the old addresses.

        torchrun's store outlives its workers, and gloo's addresses stand in it under the same names
        at every start (seen with torch 2.13: the new workers called the dead ones).
        """
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT")
        if start is None:
            self._dist.init_process_group(engine, timeout=timeout)
            return
        store, rank, size = next(self._dist.rendezvous("env://", timeout=timeout))
        store = self._dist.PrefixStore(f"onnxtrain/start_{start}", store)
        self._dist.init_process_group(
            engine, store=store, rank=rank, world_size=size, timeout=timeout
        )

    def all_reduce(self, array: Array) -> None:
        """Sum, in place."""
        with self._tensor("all_reduce", array) as tensor:
            self._dist.all_reduce(tensor)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Send from `root`."""
        with self._tensor("broadcast", array) as tensor:
            self._dist.broadcast(tensor, root)

    def barrier(self) -> None:
        """Wait for all: an all-reduce of one number, which keeps the time limit."""
        with self._tensor("barrier", np.zeros(1)) as tensor:
            self._dist.all_reduce(tensor)

    def close(self) -> None:
        """End the group, if it was made here."""
        if self._own and self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _leave(self) -> None:
        """End the group while its threads can still be joined; without, the process may abort."""
        if not self.failed:
            self.close()

    @contextlib.contextmanager
    def _tensor(self, what: str, array: Array) -> Iterator[Any]:
        host = self._torch.from_numpy(array)
        tensor = host.to(self._device)  # the array's own memory on a CPU
        try:
            yield tensor
        except RuntimeError as error:
            self.failed = True
            reason = f"torch.distributed reports: {str(error).splitlines()[0]}"
            raise RankLostError(what, self.rank, self.size, reason) from error
        if tensor is not host:
            host.copy_(tensor)
