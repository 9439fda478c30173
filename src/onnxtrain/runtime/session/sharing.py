"""What threads and processes may share: one lock per state, and no session across a fork.

All that works on a `CheckpointState` holds its lock for a whole call, until the results are copied
out: calls from several threads follow one another. onnxruntime's sessions have threads that a fork
does not copy, so in a forked process whatever has sessions of its parent refuses to work.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar

from ...errors import SharingError

Lock: TypeAlias = "AbstractContextManager[Any]"
P = ParamSpec("P")
R = TypeVar("R")


class _Forkable(Protocol):
    def after_fork(self) -> None: ...


class _Locked(Protocol):
    @property
    def _lock(self) -> Lock: ...


S = TypeVar("S", bound=_Locked)
_alive: weakref.WeakSet[_Forkable] = weakref.WeakSet()
_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[object] = []


class Refusal(AbstractContextManager[NoReturn]):
    """In the place of a lock or a session: whoever uses it is told why that cannot be."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __enter__(self) -> NoReturn:
        raise SharingError(self._reason)

    def __exit__(self, *_: object) -> None:
        """Never reached: nobody gets in."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SharingError(self._reason)


class OneProcess:
    """Something with sessions of onnxruntime: not to be pickled, nor used in a forked process.

    A subclass calls `_share` when it is made, holds `_lock` in all that uses its sessions, and
    names in `_instead` the way to have the same in another process.
    """

    _instead: ClassVar[str]
    _lock: Lock

    def _share(self, lock: Lock | None = None) -> None:
        """Let calls follow one another, by a lock of its own or by that of a state."""
        self._lock = threading.RLock() if lock is None else lock
        note(self)

    @property
    def lock(self) -> Lock:
        """Held by every call; hold it to make several calls one."""
        return self._lock

    def after_fork(self) -> None:
        """Refuse to work in a forked process."""
        keep_from_parent(self)
        self._lock = self._refusal()

    def _refusal(self) -> Refusal:
        return Refusal(
            f"This {type(self).__name__} was made before the process was forked, and the threads "
            f"of its onnxruntime sessions have stayed behind. {self._instead}"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise SharingError(
            f"{type(self).__name__} cannot be pickled or copied: it holds sessions of onnxruntime. "
            f"{self._instead}"
        )


class GlobalLock(AbstractContextManager[None]):
    """A lock of a module, for what there is once in a process; a forked one has it free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        note(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Be free: whoever had it has stayed behind."""
        self._lock = threading.RLock()


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method hold the lock of its object from beginning to end."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


def note(thing: _Forkable) -> None:
    """Tell `thing` in a forked process that it is in one."""
    _alive.add(thing)


def note_session(core: Any) -> None:
    """Let a forked process keep a session of the C level for good, whoever forgets it there."""
    _sessions.add(core)


def keep_from_parent(thing: object) -> None:
    """Never let go of what the parent made.

    A session that ends waits for its threads. In a forked process there are none, and it crashes.
    """
    _inherited.append(thing)


def lock_after_fork(lock: Any, what: str) -> Lock:
    """A lock for data that a forked process has got, unless another thread was changing them."""
    if isinstance(lock, Refusal):  # a process forked by a forked one
        return lock
    if not lock.acquire(blocking=False):
        return Refusal(
            f"Another thread was at work on this {what} when the process was forked: what has come "
            "over may be half old and half new. Fork between two steps, or load a checkpoint here."
        )
    lock.release()
    return threading.RLock()


def _in_child() -> None:
    keep_from_parent(list(_sessions))
    for thing in list(_alive):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_in_child)
