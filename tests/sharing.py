"""Run functions in several threads at once, or in a forked process."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
import warnings

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
LIMIT = 60


def together(*functions, switch=1e-5):
    """Call all functions at once, each in a thread of its own; raises the first error."""
    barrier, errors = threading.Barrier(len(functions)), []

    def work(function):
        try:
            barrier.wait(LIMIT)
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f,), daemon=True) for f in functions]
    before = sys.getswitchinterval()
    sys.setswitchinterval(switch)  # threads take turns often: what can go wrong goes wrong
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), f"a thread has not ended in {LIMIT} s"
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


def repeat(times, function):
    """A function that calls another so many times."""

    def work():
        for _ in range(times):
            function()

    return work


class ChildError(Exception):
    """What a child has raised: its class and its text."""


def in_child(function):
    """What the function gives in a forked process; a `ChildError` if it raises there."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads
        child = os.fork()
    if child == 0:
        _answer(function, writing)
    os.close(writing)
    try:
        parts = []
        while select.select([reading], [], [], LIMIT)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                break
            parts.append(part)
        else:
            os.kill(child, signal.SIGKILL)
            raise AssertionError(f"the child has not answered in {LIMIT} s")
    finally:
        os.close(reading)
        status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child ended with status {status}"
    good, value = pickle.loads(b"".join(parts))
    if not good:
        raise ChildError(*value)
    return value


def _answer(function, writing):
    """Never returns: a forked process that ends as usual hangs in onnxruntime."""
    try:
        try:
            answer = (True, function())
        except BaseException as error:
            answer = (False, (type(error).__name__, str(error)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
