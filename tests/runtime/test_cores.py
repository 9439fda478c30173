"""Workers of a session are kept off the caller's core."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from onnxtrain.runtime.session import cores
from onnxtrain.runtime.session.cores import OtherCores, threads_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@pytest.fixture
def worker():
    """A thread as `threads_of` finds it."""
    done = threading.Event()

    def make():
        thread = threading.Thread(target=done.wait)
        thread.start()
        return thread

    thread, found = threads_of(make)
    yield thread.native_id, found
    done.set()
    thread.join()


def test_started_threads_are_found(worker):
    number, found = worker
    assert found == {number}


def test_a_worker_may_run_everywhere_but_on_the_callers_core(worker, monkeypatch):
    number, found = worker
    everywhere = os.sched_getaffinity(number)
    if len(everywhere) < 2:
        pytest.skip("one core")
    others = OtherCores(found)
    for core in sorted(everywhere)[:2]:
        monkeypatch.setattr(cores, "_core", lambda core=core: core)
        others.use()
        assert os.sched_getaffinity(number) == everywhere - {core}


def test_nothing_is_asked_of_the_system_while_the_caller_stays(worker, monkeypatch):
    _, found = worker
    others = OtherCores(found)
    monkeypatch.setattr(cores, "_core", lambda: 0)
    others.use()
    monkeypatch.setattr(cores, "_allow", lambda *_: pytest.fail("asked again"))
    others.use()


def test_a_worker_bound_to_one_core_stays_there(worker, monkeypatch):
    number, found = worker
    core = min(os.sched_getaffinity(number))
    os.sched_setaffinity(number, {core})
    monkeypatch.setattr(cores, "_core", lambda: core)
    OtherCores(found).use()
    assert os.sched_getaffinity(number) == {core}


def test_a_thread_that_has_ended_is_no_error(monkeypatch):
    thread, found = threads_of(lambda: threading.Thread(target=lambda: None))
    thread.start()
    thread.join()
    others = OtherCores({thread.native_id, *found})
    others.use()


def test_without_the_systems_help_nothing_is_done(worker, monkeypatch):
    number, found = worker
    before = os.sched_getaffinity(number)
    monkeypatch.setattr(cores, "_core", None)
    OtherCores(found).use()
    assert os.sched_getaffinity(number) == before
