"""Schedules against their PyTorch twins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxtrain.errors import StateError
from onnxtrain.runtime.loop import schedulers as S

torch = pytest.importorskip("torch")
L = torch.optim.lr_scheduler


class Rate:
    def __init__(self, lr=0.1):
        self.lr = lr

    def get_learning_rate(self):
        return self.lr

    def set_learning_rate(self, lr):
        self.lr = lr


def torch_optimizer(lr=0.1):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


CASES = [
    ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
    ("StepLR", {"step_size": 3, "gamma": 0.3}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4, "T_mult": 1, "eta_min": 0.001}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    ("PolynomialLR", {"total_iters": 11, "power": 1.7}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 20}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 20, "three_phase": True, "pct_start": 0.4}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 20, "anneal_strategy": "linear"}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_equals_torch(name, options):
    ours, theirs = Rate(), torch_optimizer()
    scheduler = getattr(S, name)(ours, **options)
    twin = getattr(L, name)(
        theirs, **options, **({"cycle_momentum": False} if name == "OneCycleLR" else {})
    )
    for _ in range(20):
        assert math.isclose(ours.lr, theirs.param_groups[0]["lr"], rel_tol=1e-9, abs_tol=1e-12)
        assert scheduler.get_last_lr() == [ours.lr]
        if scheduler.count == 19:
            break
        theirs.step()
        scheduler.step()
        twin.step()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateau_equals_torch(mode, threshold_mode):
    options = {
        "mode": mode, "factor": 0.5, "patience": 2, "threshold": 0.01,
        "threshold_mode": threshold_mode, "cooldown": 1, "min_lr": 0.01,
    }  # fmt: skip
    ours, theirs = Rate(), torch_optimizer()
    scheduler, twin = S.ReduceLROnPlateau(ours, **options), L.ReduceLROnPlateau(theirs, **options)
    rng = np.random.default_rng(0)
    for metric in 1.0 + 0.05 * rng.normal(size=60):
        scheduler.step(metric)
        twin.step(metric)
        assert math.isclose(ours.lr, theirs.param_groups[0]["lr"])
    assert ours.lr < 0.1


@pytest.mark.filterwarnings("ignore")
def test_warm_up_equals_torch():
    ours, theirs = Rate(), torch_optimizer()
    scheduler = S.WarmUp(S.CosineAnnealingLR(ours, 10), 5, start_factor=0.2)
    twin = L.SequentialLR(
        theirs,
        [L.LinearLR(theirs, 0.2, 1.0, 5), L.CosineAnnealingLR(theirs, 10)],
        milestones=[5],
    )
    for _ in range(15):
        assert math.isclose(ours.lr, theirs.param_groups[0]["lr"], rel_tol=1e-9, abs_tol=1e-12)
        theirs.step()
        scheduler.step()
        twin.step()


def test_linear_has_warm_up_and_total_in_the_documented_order():
    rate = Rate()
    scheduler = S.LinearLRScheduler(rate, 2, 10, 0.2)
    seen = [rate.lr]
    for _ in range(10):
        scheduler.step()
        seen.append(rate.lr)
    assert np.allclose(seen, [0, 0.1, *(0.2 * (10 - t) / 8 for t in range(2, 11))])


@pytest.mark.parametrize(
    "make",
    [
        lambda r: S.StepLR(r, 3),
        lambda r: S.WarmUp(S.ReduceLROnPlateau(r, patience=1), 3),
        lambda r: S.OneCycleLR(r, 1.0, 50),
        lambda r: S.LinearLRScheduler(r, 3, 30, 0.5),
    ],
)
def test_state_continues_exactly(make):
    metrics = np.random.default_rng(1).normal(size=30)
    whole, straight = Rate(), []
    scheduler = make(whole)
    for metric in metrics:
        scheduler.step(metric)
        straight.append(whole.lr)
    first = Rate()
    scheduler = make(first)
    for metric in metrics[:11]:
        scheduler.step(metric)
    second = Rate()
    resumed = make(second)
    resumed.load_state_dict(scheduler.state_dict())
    rest = []
    for metric in metrics[11:]:
        resumed.step(metric)
        rest.append(second.lr)
    assert rest == straight[11:]


def test_wrong_arguments():
    with pytest.raises(StateError, match="StepLR"):
        S.ExponentialLR(Rate(), 0.5).load_state_dict(S.StepLR(Rate(), 2).state_dict())
    with pytest.raises(ValueError, match="step_size"):
        S.StepLR(Rate(), 0)
    with pytest.raises(ValueError, match="metric"):
        S.ReduceLROnPlateau(Rate()).step()
    cycle = S.OneCycleLR(Rate(), 1.0, 2)
    cycle.step()
    cycle.step()
    with pytest.raises(StateError, match="2 steps"):
        cycle.step()
