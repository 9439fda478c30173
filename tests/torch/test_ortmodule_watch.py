"""Whatever changes in a module between two calls is seen by the next one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from onnxtrain.torch import ORTModule
from onnxtrain.torch import _ortmodule_watch as watch
from onnxtrain.torch._ortmodule_run import SECOND

X = torch.randn(5, 4)


class Network(nn.Module):
    """Square weights, parts without anything in them, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.between = nn.Sequential(nn.Tanh(), nn.Sequential())
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.between(self.first(x))) * self.scale
        return y


def data(module: Network) -> None:
    module.first.weight.data = torch.randn(4, 4)


def transposed(module: Network) -> None:
    module.first.weight.data = module.first.weight.data.t()  # same address, same sizes


def in_place(module: Network) -> None:
    with torch.no_grad():
        module.last.weight.mul_(2)


def parameter(module: Network) -> None:
    module.last.weight = nn.Parameter(torch.randn(4, 4))


def without_bias(module: Network) -> None:
    module.first.bias = None


def with_bias(module: Network) -> None:
    module.last.bias = nn.Parameter(torch.randn(4))  # there was None


def part_in_an_empty_one(module: Network) -> None:
    module.between[1].append(nn.Linear(4, 4))


def frozen(module: Network) -> None:
    module.first.weight.requires_grad_(False)


def buffer(module: Network) -> None:
    module.scale = torch.full((4,), 3.0)


def other_part(module: Network) -> None:
    module.between[0] = nn.Sigmoid()


def mode_of_a_part(module: Network) -> None:
    module.between[0] = nn.Dropout(0.999999)
    module.between[0].eval()


CHANGES: list[Callable[[Network], None]] = [
    data, transposed, in_place, parameter, without_bias, with_bias, part_in_an_empty_one, frozen,
    buffer, other_part, mode_of_a_part,
]  # fmt: skip


def check(ours: ORTModule, x: torch.Tensor = X) -> None:
    twin = copy.deepcopy(ours.module)
    for module in (ours, twin):
        module.zero_grad()
    mine, right = ours(x), twin(x)
    torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)
    mine.square().sum().backward()
    right.square().sum().backward()
    for p, q in zip(ours.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hold", [watch.holding, watch.holding_in_python])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(
    change: Callable[[Network], None],
    hold: Callable[..., Callable[..., bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "holding", hold)
    ours = ORTModule(Network(), exporter="torchscript")
    for _ in range(2):
        check(ours)
    change(ours.module)
    for _ in range(2):
        check(ours)


@pytest.mark.parametrize("hold", [watch.holding, watch.holding_in_python])
def test_types_sizes_and_strides_hold_until_they_change(
    hold: Callable[..., Callable[..., bool]],
) -> None:
    tensors = [torch.zeros(3, 3), torch.zeros(2), torch.zeros(()), torch.zeros(0, 2)]
    holds = hold(tensors)
    assert holds(*tensors)
    tensors[1].add_(1)
    assert holds(*tensors)
    tensors[0].requires_grad_()
    assert not holds(*tensors)
    tensors[0].requires_grad_(False)
    tensors[0].data = tensors[0].data.t()
    assert not holds(*tensors)
    tensors[0].data = torch.zeros(3, 3)
    assert holds(*tensors)
    tensors[3].data = torch.zeros(2, 0)
    assert not holds(*tensors)
    assert hold([])()


def test_modes_of_torch_come_and_go() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    for _ in range(2):
        check(ours)
        with torch.inference_mode():
            torch.testing.assert_close(ours(X), ours.module(X))
        with torch.no_grad():
            assert not ours(X).requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            assert ours(X).shape == (5, 4)


# --- what belongs to the caller ------------------------------------------------------------------


def test_results_and_gradients_that_are_kept_stay_as_they_are() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    inputs = [torch.randn(5, 4) for _ in range(4)]
    results = [ours(x) for x in inputs]  # all pending
    copies = [r.detach().clone() for r in results]
    gradients, values = [], []
    for r in reversed(results):
        ours.zero_grad(set_to_none=True)
        r.square().sum().backward()
        gradients += [p.grad for p in ours.parameters()]
        values += [p.grad.clone() for p in ours.parameters() if p.grad is not None]
    for kept, value in zip([*results, *gradients], [*copies, *values], strict=True):
        torch.testing.assert_close(kept, value, rtol=0, atol=0)


def test_gradients_are_the_graphs_own_memory_and_are_added_up() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    ours(X).sum().backward()
    once = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
    addresses = [p.grad.data_ptr() for p in ours.parameters() if p.grad is not None]
    ours(X).sum().backward()
    for p, gradient, address in zip(ours.parameters(), once, addresses, strict=True):
        assert p.grad is not None
        assert p.grad.data_ptr() == address
        torch.testing.assert_close(p.grad, 2 * gradient)


def test_hooks_of_parameters_and_results_run() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    seen = list[str]()
    ours.first.weight.register_hook(lambda g: (seen.append("parameter"), 2 * g)[1])
    ours.last.weight.register_post_accumulate_grad_hook(lambda _: seen.append("behind"))
    twin = copy.deepcopy(ours.module)
    result = ours(X)
    result.register_hook(lambda _: seen.append("result"))
    result.sum().backward()
    twin(X).sum().backward()
    assert seen[0] == "result"
    assert sorted(seen[1:]) == ["behind", "parameter"]
    torch.testing.assert_close(ours.first.weight.grad, 2 * twin.first.weight.grad)


def test_a_graph_is_passed_once_unless_it_is_retained() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    loss = ours(X).square().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in ours.parameters() if p.grad is not None]
    loss.backward()
    for p, gradient in zip(ours.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * gradient)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_backward_reads_must_not_have_changed() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    loss = ours(X).square().sum()
    in_place(ours.module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_are_refused() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    (gradient,) = torch.autograd.grad(ours(X).sum(), [ours.first.weight], create_graph=True)
    with pytest.raises(RuntimeError, match=SECOND.decode()):
        gradient.sum().backward()


def test_threads_may_call_at_the_same_time() -> None:
    ours = ORTModule(Network(), exporter="torchscript")
    check(ours)
    twin = copy.deepcopy(ours.module)
    wrong = list[int]()

    def work(seed: int) -> None:
        for k in range(30):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * seed + k))
            x.requires_grad_()
            (mine,) = torch.autograd.grad(ours(x).square().sum(), [x])
            (right,) = torch.autograd.grad(twin(x).square().sum(), [x])
            if not torch.allclose(mine, right, rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
