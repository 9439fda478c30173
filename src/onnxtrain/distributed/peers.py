"""Which of the other ranks run on this machine, and whether they still live."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A rank, its process number, and the machine (or container) in which that number counts."""

    rank: int
    pid: int
    home: str

    @classmethod
    def own(cls, rank: int) -> Peer:
        """This process."""
        return cls(rank, os.getpid(), _home())

    def as_tuple(self) -> tuple[Any, ...]:
        """Plain values, to be sent."""
        return (self.rank, self.pid, self.home)

    def alive(self) -> bool:
        """Whether the process runs; a killed one that nobody has buried yet does not."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _home() -> str:
    """Containers on one machine may number their processes apart: the name space tells."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}"


class Neighbours:
    """The ranks of this machine: their number, and who of them is gone.

    Without ``/proc`` (not Linux) nobody is ever reported gone; the time limit remains.
    """

    def __init__(self, own: Peer, peers: list[Peer]) -> None:
        here = [p for p in peers if p.home == own.home]
        self.count = max(len(here), 1)
        self._watched = [p for p in here if p.rank != own.rank] if own.alive() else []

    def gone(self) -> Peer | None:
        """A rank of this machine that has ended, if there is one."""
        return next((p for p in self._watched if not p.alive()), None)
