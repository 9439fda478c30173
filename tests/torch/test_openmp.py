"""torch's threads are let go while onnxruntime computes, and come back."""

from __future__ import annotations

import sys

import pytest
import torch

from onnxtrain.torch import _openmp


def os_threads() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_threads_go_and_come_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if _openmp._pause() is _openmp._nothing:
            pytest.skip("this torch does not use GNU's OpenMP")
        x = torch.randn(1000, 1000)
        expected = torch.relu(x)
        busy = os_threads()
        _openmp.pause()
        assert os_threads() < busy
        assert torch.equal(torch.relu(x), expected)
    finally:
        torch.set_num_threads(before)


def test_one_thread_has_nobody_to_let_go(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(_openmp, "_pause", lambda: pytest.fail("called"))
    _openmp.pause()
