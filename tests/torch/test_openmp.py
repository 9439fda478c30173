"""torch's threads sleep while onnxruntime computes, and are back after it."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
import torch

from onnxtrain.torch import ORTModule, _openmp

SIZE = 1_000_000
"""Numbers of a tensor whose sum is computed by several threads."""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gnu():
    openmp = _openmp.gnu_openmp()
    if openmp is None:
        pytest.skip("this torch does not use GNU's OpenMP")
    return openmp


def used_by_others(seconds: float) -> float:
    """Processor time that all threads but this one use while it sleeps."""
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


def test_they_sleep_in_a_region_of_their_own_size(two_threads, gnu):
    threads = _openmp.TorchThreads()
    x = torch.randn(SIZE)
    expected = torch.relu(x)
    for _ in range(3):
        threads.sleep()
        assert gnu.size() == 2
        assert used_by_others(0.05) < 0.01  # without, one spins for milliseconds
        threads.wake()
        assert gnu.size() == 1  # no region is open
        assert torch.equal(torch.relu(x), expected)


def test_to_sleep_twice_is_to_sleep_once_and_waking_needs_no_sleep(two_threads, gnu):
    threads = _openmp.TorchThreads()
    threads.wake()
    threads.sleep()
    threads.sleep()
    threads.wake()
    assert gnu.size() == 1
    threads.wake()
    assert gnu.size() == 1


def test_every_thread_has_its_own(two_threads, gnu):
    threads = _openmp.TorchThreads()
    sizes = []

    def work() -> None:
        for _ in range(20):
            threads.sleep()
            sizes.append(gnu.size())
            threads.wake()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sizes == [2] * 60


def test_one_thread_of_torch_holds_no_other_core(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(_openmp, "gnu_openmp", lambda: pytest.fail("called"))
    _openmp.TorchThreads().sleep()


def test_without_gnu_openmp_nothing_is_done(monkeypatch, two_threads):
    monkeypatch.setattr(_openmp, "gnu_openmp", lambda: None)
    threads = _openmp.TorchThreads()
    threads.sleep()
    threads.wake()


def test_a_run_that_fails_gives_them_back(two_threads, gnu):
    module = ORTModule(torch.nn.Embedding(1000, 1024), exporter="torchscript")
    good = torch.zeros(64, 64, dtype=torch.int64)
    module(good)
    with pytest.raises(Exception, match=r"1000|range|bound"):
        module(good + 1000)
    assert gnu.size() == 1
    assert module(good).shape == (64, 64, 1024)


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs a fork")
def test_a_forked_process_does_not_wait_for_threads_that_stayed_behind(two_threads, gnu):
    threads = _openmp.TorchThreads()
    threads.sleep()
    threads.wake()
    process = os.fork()
    if not process:
        threads.sleep()
        threads.wake()
        os._exit(7)
    deadline = time.monotonic() + 30
    done, status = os.waitpid(process, os.WNOHANG)
    while not done and time.monotonic() < deadline:
        time.sleep(0.01)
        done, status = os.waitpid(process, os.WNOHANG)
    assert done, "it waits"
    assert os.waitstatus_to_exitcode(status) == 7
