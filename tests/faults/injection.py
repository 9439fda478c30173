"""Faults at the places where a file is written: the disk is full, breaks, or the process dies."""

from __future__ import annotations

import contextlib
import errno
import os

from onnxtrain.runtime.files import atomic

STEPS = ["open", "write", "fsync", "replace", "directory fsync"]
"""In the order in which one save takes them."""
ERRORS = {"no space": errno.ENOSPC, "I/O error": errno.EIO, "short": None}


class Injected(OSError):
    """The fault that a test asked for."""


class Fault:
    """Lets `after` calls of a step pass, then fails once in the chosen way."""

    def __init__(self, kind: str, after: int = 0) -> None:
        self.kind, self.after, self.calls, self.fired = kind, after, 0, False

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.after + 1:
            self.fired = True
            if self.kind == "kill":
                os._exit(9)
            code = ERRORS[self.kind] or errno.ENOSPC
            raise Injected(code, os.strerror(code))


class _File:
    """A file whose writes may fail, half of the data written or none."""

    def __init__(self, file, fault: Fault) -> None:
        self._file, self._fault = file, fault

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        if self._fault.kind in {"short", "kill"} and self._fault.calls == self._fault.after:
            self._file.write(bytes(data)[: len(data) // 2])
            self._file.flush()
        self._fault()
        return self._file.write(data)


class _System:
    """`os`, with one step that fails."""

    def __init__(self, step: str, fault: Fault) -> None:
        self._step, self._fault, self._files = step, fault, 0

    def __getattr__(self, name):
        return getattr(os, name)

    def _at(self, step: str) -> None:
        if step == self._step:
            self._fault()

    def open(self, path, flags, *mode):
        if flags & os.O_CREAT:
            self._at("open")
        return os.open(path, flags, *mode)

    def fdopen(self, descriptor, mode):
        file = os.fdopen(descriptor, mode)
        return _File(file, self._fault) if self._step == "write" else file

    def fsync(self, descriptor):
        import stat

        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        self._at("directory fsync" if folder else "fsync")
        os.fsync(descriptor)

    def replace(self, source, target):
        self._at("replace")
        os.replace(source, target)


@contextlib.contextmanager
def failing(monkeypatch, step: str, kind: str, after: int = 0):
    """Inside, the step fails once, after `after` times that it goes well; gives the fault."""
    fault = Fault(kind, after)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", _System(step, fault))
        yield fault
