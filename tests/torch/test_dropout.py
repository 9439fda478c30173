"""Dropout in ORTTrainer and ORTModule: exact resume, torch's seed, repeated forward passes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from onnxtrain.compat.ort.orttrainer import optim as config
from onnxtrain.errors import StateError
from onnxtrain.torch import ORTModule, load_checkpoint, save_checkpoint

from . import test_trainer_v1 as first
from . import test_trainer_v2 as second
from .models import Net, batches

TS = "torchscript"
DATA = list(batches(12))


def weights(made: Any) -> dict[str, Any]:
    return {n: np.array(a) for n, a in made._core.weights().items()}


def assert_same(a: Any, b: Any) -> None:
    for name, value in weights(a).items():
        assert np.array_equal(value, weights(b)[name]), name


# --- ORTTrainer -----------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "one graph": {},
    "accumulation": {"batch": {"gradient_accumulation_steps": 2}},
    "mixed precision": {"mixed_precision": {"enabled": True}},
    "recompute": {"graph_transformer": {"recompute": "cheap"}},
}


def options(case: str, threads: int) -> dict[str, Any]:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    return {**OPTIONS[case], "session_options": made}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", OPTIONS)
def test_a_checkpoint_of_the_second_trainer_goes_on_exactly(tmp_path, case, threads) -> None:
    def make(net: nn.Module) -> Any:
        return second.trainer(net, config.AdamConfig(lr=0.01), options(case, threads))

    torch.manual_seed(3)
    net = Net(dropout=0.5)
    whole, part = make(copy.deepcopy(net)), make(copy.deepcopy(net))
    expected = second.losses(whole, DATA)
    found = second.losses(part, DATA[:4])
    part.save_checkpoint(tmp_path / "c")
    torch.manual_seed(99)  # the checkpoint has the seed
    again = make(copy.deepcopy(net))
    again.load_checkpoint(tmp_path / "c")
    found += second.losses(again, DATA[4:])
    assert found == expected
    assert_same(whole, again)
    assert whole.state_dict()["random"] == again.state_dict()["random"] == [3, 12]


def test_a_checkpoint_of_the_first_trainer_goes_on_exactly(tmp_path) -> None:
    torch.manual_seed(3)
    net = Net(dropout=0.5)
    whole, part, again = (first.trainer(copy.deepcopy(net), "AdamOptimizer") for _ in range(3))
    expected = first.losses(whole, DATA)
    found = first.losses(part, DATA[:4])
    save_checkpoint(part, tmp_path)
    torch.manual_seed(99)
    load_checkpoint(again, tmp_path)
    found += first.losses(again, DATA[4:])
    assert found == expected
    assert_same(whole, again)
    assert whole.state_dict()["onnxtrain.random"].tolist() == [3, 12]
    assert "onnxtrain.random" not in whole.state_dict(include_optimizer_state=False)
    assert "onnxtrain.random" not in _trained(first.trainer(Net())).state_dict()


def _trained(made: Any) -> Any:
    first.losses(made, DATA[:1])
    return made


def test_masks_follow_torchs_seed_and_differ_between_ranks() -> None:
    net = Net(dropout=0.5)

    def run(seed: int, **more: Any) -> list[float]:
        torch.manual_seed(seed)
        return first.losses(first.trainer(copy.deepcopy(net), **more), DATA[:3])

    assert run(1) == run(1) != run(2)
    assert run(1, world_rank=1) == run(1, world_rank=1) != run(1)


@pytest.mark.parametrize("random", [[1], [1, -1], [2**64, 0], "many", None])
def test_a_damaged_random_state_is_refused(random) -> None:
    torch.manual_seed(0)
    made = second.trainer(Net(dropout=0.5))
    second.losses(made, DATA[:1])
    state = {**made.state_dict(), "random": random}
    with pytest.raises(StateError, match="seed and counter"):
        made.load_state_dict(state)


# --- ORTModule ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Something with two masks in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(6, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 6), nn.Dropout(0.2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_torchs_seed_repeats_a_run_whatever_was_run_before() -> None:
    ours, x = ORTModule(Block(), exporter=TS), torch.randn(8, 6)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.stack([ours(x) for _ in range(3)])

    one = run(5)
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one, run(5))
    assert not torch.equal(one, run(6))
    other = ORTModule(copy.deepcopy(ours.module), exporter=TS)
    torch.manual_seed(5)
    assert torch.equal(one, torch.stack([other(x) for _ in range(3)]))


def test_the_state_of_torchs_generator_is_all_that_resume_needs() -> None:
    torch.manual_seed(1)
    ours, x = ORTModule(Block(), exporter=TS), torch.randn(8, 6)
    ours(x)
    kept = torch.get_rng_state()
    expected = [ours(x) for _ in range(2)]
    torch.set_rng_state(kept)
    again = ORTModule(copy.deepcopy(ours.module), exporter=TS)
    assert all(torch.equal(again(x), y) for y in expected)


@pytest.mark.parametrize("recompute", [None, 2])
def test_torchs_checkpointing_repeats_the_masks(recompute) -> None:
    torch.manual_seed(2)
    block = Block()
    ours = ORTModule(block, exporter=TS, recompute=recompute)
    x = torch.randn(8, 6, requires_grad=True)

    def gradients(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(7)
        block.zero_grad()
        x.grad = None
        y = run(run(x))
        y.square().sum().backward()
        found = [x.grad, *(p.grad for p in block.parameters())]
        assert all(g is not None for g in found)
        return [y.detach(), *(g.clone() for g in found if g is not None)]

    plain = gradients(ours)
    again = gradients(lambda t: checkpoint(ours, t, use_reentrant=False))
    for a, b in zip(plain, again):
        assert torch.equal(a, b)


def test_pending_passes_keep_their_masks() -> None:
    """Three forward passes, then their backward passes in another order."""
    ours = ORTModule(nn.Dropout(0.5), exporter=TS)
    inputs = [torch.ones(50, 4, requires_grad=True) for _ in range(3)]
    results = [ours(x) for x in inputs]
    assert not torch.equal(results[0], results[1])
    for i in (1, 2, 0):
        results[i].sum().backward()
        assert torch.equal(inputs[i].grad, results[i].detach())  # type: ignore[arg-type]


class Always(nn.Module):
    """Drops in eval mode too (Monte Carlo dropout)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, training=True) * 3


def test_eval_mode() -> None:
    x = torch.ones(40, 6, requires_grad=True)
    plain = ORTModule(Block(), exporter=TS).eval()
    state = torch.get_rng_state()
    assert torch.equal(plain(x), plain(x))
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    always = ORTModule(Always(), exporter=TS).eval()
    y = always(x)
    assert not torch.equal(y, always(x))
    y.sum().backward()  # the graphs with gradients are made now, and run on the same mask
    assert torch.equal(x.grad, y.detach())  # type: ignore[arg-type]
