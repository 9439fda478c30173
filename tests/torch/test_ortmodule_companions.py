"""What comes with ORTModule: optimizers, the gradient graph, samplers."""

from __future__ import annotations

import copy
import doctest
import importlib
import math
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onnxtrain.compat.ort import torch_parts
from onnxtrain.compat.ort.orttrainer.experimental import export_gradient_graph
from onnxtrain.compat.ort.orttrainer.fused_adam import AdamWMode, FP16_Optimizer, FusedAdam
from onnxtrain.compat.ort.orttrainer.utils.data import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)


def hugging_face_step(
    weights: list[torch.Tensor], grads: list[torch.Tensor], state: dict[int, Any], step: int
) -> None:
    """AdamW as transformers has it: lr 0.1, decay 0.01 after the step, eps 1e-3."""
    for i, (w, g) in enumerate(zip(weights, grads)):
        m, v = state.setdefault(i, [torch.zeros_like(w), torch.zeros_like(w)])
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        rate = 0.1 * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        w.addcdiv_(m, v.sqrt().add_(1e-3), value=-rate)
        w.add_(w, alpha=-0.1 * 0.01)


@pytest.mark.parametrize("mode", list(AdamWMode))
def test_fused_adam_is_adam(mode: AdamWMode) -> None:
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    options: dict[str, Any] = {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.01}
    ours = FusedAdam(model.parameters(), adam_w_mode=mode, **options)
    theirs: Any = None
    if mode is AdamWMode.ADAM_L2_REGULARIZATION:
        theirs = torch.optim.Adam(twin.parameters(), **options)
    elif mode is AdamWMode.ADAMW_TORCH:
        theirs = torch.optim.AdamW(twin.parameters(), **options)
    state: dict[int, Any] = {}
    for step in range(1, 6):
        x = torch.randn(4, 3)
        for module in (model, twin):
            module.zero_grad()
            module(x).square().sum().backward()
        ours.step()
        if theirs is not None:
            theirs.step()
        else:
            weights = [p.data for p in twin.parameters()]
            hugging_face_step(weights, [p.grad for p in twin.parameters()], state, step)  # type: ignore[misc]
        for mine, other in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(mine, other)


def test_fused_adam_state_bias_and_errors() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = FusedAdam([w], lr=1.0, bias_correction=False, set_grad_none=False)
    (w * 2).sum().backward()
    optimizer.step()
    # m = 0.1·2, v = 0.001·4, step m/√v
    torch.testing.assert_close(w.detach(), torch.full((2,), 1 - 0.2 / (math.sqrt(0.004) + 1e-6)))
    optimizer.zero_grad()
    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 0.0]
    again = FusedAdam([w], lr=1.0)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["step"] == 1
    assert torch.equal(again.state[w]["exp_avg"], optimizer.state[w]["exp_avg"])
    with pytest.raises(ValueError, match="0 or a positive"):
        FusedAdam([w], lr=-1.0)
    with pytest.raises(ValueError, match="betas"):
        FusedAdam([w], betas=(1.0, 0.5))


class HalfPrecision(torch.optim.SGD):
    """Checks its gradients one by one, as such optimizers do."""

    def has_overflow_serial(self, params: Any, is_grad_list: bool = False) -> bool:
        raise AssertionError("the slow check ran")

    def _check_overflow(self) -> bool:
        raise AssertionError("the slow check ran")


def test_overflow_checks(caplog: pytest.LogCaptureFixture) -> None:
    weights = [
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(1)),
    ]
    optimizer = HalfPrecision(weights, lr=0.1)
    assert FP16_Optimizer(optimizer, get_tensor_model_parallel_rank=None) is optimizer
    weights[0].grad, weights[1].grad = torch.ones(2), torch.tensor([1.0, 2.0, 3.0])
    assert not optimizer.has_overflow_serial(weights)
    assert not optimizer._check_overflow()
    weights[1].grad[1] = math.inf
    assert optimizer.has_overflow_serial(weights)
    assert optimizer.has_overflow_serial([torch.tensor([math.nan])], is_grad_list=True)
    assert optimizer._check_overflow()
    plain = torch.optim.SGD(weights, lr=0.1)
    assert FP16_Optimizer(plain) is plain
    assert "SGD has none" in caplog.text


def test_gradient_graph(tmp_path: Path) -> None:
    assert torch_parts.export_gradient_graph is export_gradient_graph
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    loss_fn = nn.CrossEntropyLoss()
    x, labels = torch.randn(5, 3), torch.randint(0, 2, (5,))
    path = tmp_path / "gradients.onnx"
    export_gradient_graph(model, loss_fn, x, labels, path, exporter="torchscript")
    names, trained = [n for n, _ in model.named_parameters()], ["0.weight", "2.weight", "2.bias"]
    graph = onnx.load(path).graph
    assert [i.name for i in graph.input] == ["input", "labels", *names]
    assert [o.name for o in graph.output] == ["output", "loss", *(f"{n}_grad" for n in trained)]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x, labels = torch.randn(7, 3), torch.randint(0, 2, (7,))
    feeds = {"input": x.numpy(), "labels": labels.numpy()}
    feeds.update({n: model.get_parameter(n).detach().numpy() for n in names})
    output, loss, *gradients = session.run(None, feeds)
    expected = loss_fn(model(x), labels)
    expected.backward()
    torch.testing.assert_close(torch.tensor(loss), expected.detach())
    torch.testing.assert_close(torch.tensor(output), model(x).detach())
    for name, gradient in zip(trained, gradients):
        torch.testing.assert_close(torch.tensor(gradient), model.get_parameter(name).grad)


def samplers(count: int, world: int, **options: Any) -> list[LoadBalancingDistributedSampler]:
    sizes = [(7 * i) % count for i in range(count)]
    return [
        LoadBalancingDistributedSampler(sizes, float, world, rank, **options)
        for rank in range(world)
    ]


@pytest.mark.parametrize("options", [{}, {"group_size": 6}, {"random_level": 0.05}])
def test_every_round_is_balanced_and_every_sample_seen(options: dict[str, Any]) -> None:
    all_ranks = samplers(30, 3, **options)
    orders = [list(s) for s in all_ranks]
    assert [len(o) for o in orders] == [len(s) for s in all_ranks] == [10, 10, 10]
    assert sorted(i for o in orders for i in o) == list(range(30))
    sizes = all_ranks[0].dataset
    limit = 12 if "group_size" in options else 5
    spread = [
        max(sizes[o[k]] for o in orders) - min(sizes[o[k]] for o in orders) for k in range(10)
    ]
    assert sum(spread) / 10 <= limit
    if not options:
        assert max(spread) == 2


def test_epochs_uneven_counts_and_batches() -> None:
    first = samplers(60, 4)
    before = list(first[0])
    assert list(first[0]) == before
    first[0].set_epoch(1)
    assert list(first[0]) != before
    assert len(samplers(10, 4)[0]) == 3
    assert {i for s in samplers(10, 4) for i in s} == set(range(10))
    assert sum(len(s) for s in samplers(10, 4, drop_last=True)) == 8

    def up_to(limit: int) -> Any:
        def batches(indices: Any) -> list[list[int]]:
            found: list[list[int]] = [[]]
            for i in indices:
                if sum(found[-1]) + i > limit and found[-1]:
                    found.append([])
                found[-1].append(i)
            return found

        return batches

    lengths = {
        len(LoadBalancingDistributedBatchSampler(s, up_to(12))) for s in samplers(30, 3, seed=4)
    }
    assert len(lengths) == 1
    shorter = {
        len(list(LoadBalancingDistributedBatchSampler(s, up_to(12), drop_last=True)))
        for s in samplers(30, 3, seed=4)
    }
    assert len(shorter) == 1
    with pytest.raises(ValueError, match="world_size"):
        LoadBalancingDistributedSampler([1, 2], float)
    with pytest.raises(ValueError, match="rank"):
        LoadBalancingDistributedSampler([1, 2], float, 2, 2)


@pytest.mark.parametrize("name", ["ortmodule", "debug_options", "fused_adam", "utils.data"])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"onnxtrain.torch.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
