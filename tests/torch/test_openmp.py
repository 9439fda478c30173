"""torch's idle threads sleep while the runs of an ORTModule follow one another."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from onnxtrain.torch import _openmp

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def wait_for_end(team: _openmp.IdleTeam) -> None:
    deadline = time.monotonic() + 10
    while team.thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert team.thread is None


@linux_only
def test_the_team_comes_with_a_run_and_goes_after_the_last(two_threads):
    if _openmp.team_starter() is None:
        pytest.skip("this torch does not use GNU's OpenMP")
    x = torch.randn(1000, 1000)
    expected = torch.relu(x)
    team = _openmp.IdleTeam()
    for _ in range(2):
        team.need()
        owner = team.thread
        assert owner is not None
        team.need()
        assert team.thread is owner
        assert torch.equal(torch.relu(x), expected)
        wait_for_end(team)


@linux_only
@pytest.mark.parametrize(("seconds", "stays"), [(0.0, True), (2 * _openmp.LONG_SECONDS, False)])
def test_torch_has_its_busy_threads_where_it_does_much(two_threads, seconds, stays):
    if _openmp.team_starter() is None:
        pytest.skip("this torch does not use GNU's OpenMP")
    team = _openmp.IdleTeam()
    team.need()
    team.done()
    time.sleep(seconds)
    team.need()
    owner = team.thread
    team.done()
    assert (team.thread is owner) is stays
    owner.join(10)
    assert not owner.is_alive()


def test_one_thread_of_torch_holds_no_other_core(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(_openmp, "team_starter", lambda: pytest.fail("called"))
    _openmp.IdleTeam().need()


def test_without_gnu_openmp_nothing_is_done(monkeypatch, two_threads):
    monkeypatch.setattr(_openmp, "team_starter", lambda: None)
    team = _openmp.IdleTeam()
    team.need()
    assert team.thread is None


def test_a_forked_process_makes_its_own(monkeypatch):
    team = _openmp.IdleTeam()
    team.thread = object()
    team.after_fork()
    assert team.thread is None
