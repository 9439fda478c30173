"""Calls like the one before take a short way; all others, and what lies around them, do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onnxtrain.torch import ORTModule
from onnxtrain.torch import _ortmodule_watch as watch

X = torch.randn(5, 4)


class Scaled(nn.Module):
    """A layer whose result depends on arguments that are no tensors too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self, x: Any, more: torch.Tensor | None = None, twice: bool = False
    ) -> torch.Tensor:
        y: torch.Tensor = self.layer(x[0] if isinstance(x, (tuple, list)) else x)
        y = y if more is None else y * more
        return 2 * y if twice else y


def repeated(module: nn.Module, *args: Any) -> ORTModule:
    """After so many calls that the next one like them is short."""
    ours = ORTModule(module, exporter="torchscript")
    for _ in range(3):
        ours(*args)
    assert ours._graphs.repeat is not None
    assert ours._graphs.repeat(args) is not None
    return ours


def check(ours: ORTModule, *args: Any, **kwargs: Any) -> None:
    twin = copy.deepcopy(ours.module)
    ours.zero_grad()
    twin.zero_grad()
    mine, right = ours(*args, **kwargs), twin(*args, **kwargs)
    assert mine.dtype == right.dtype
    torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)
    mine.square().sum().backward()
    right.square().sum().backward()
    for p, q in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


OTHERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "by name": ((), {"x": X}),
    "an option": ((X,), {"twice": True}),
    "another tensor": ((X, torch.randn(5, 4)), {}),
    "the same tensor again": ((X, X), {}),
    "a list": (([X],), {}),
    "nothing": ((X, None), {}),
    "a number": ((X, None, True), {}),
    "other sizes": ((torch.randn(3, 4),), {}),
    "an axis more": ((torch.randn(2, 5, 4),), {}),
    "turned": ((torch.randn(4, 5).t(),), {}),
    "with a gradient": ((torch.randn(5, 4, requires_grad=True),), {}),
    "part of another": ((torch.randn(10, 8)[::2, ::2],), {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments_are_no_repetition(name: str) -> None:
    ours = repeated(Scaled(), X)
    args, kwargs = OTHERS[name]
    for _ in range(3):
        check(ours, *args, **kwargs)
        check(ours, X)


def test_a_repeated_option_is_not_taken_for_none() -> None:
    ours = ORTModule(Scaled(), exporter="torchscript")
    for _ in range(4):
        ours(X, twice=True)
    check(ours, X)


def test_results_and_gradients_of_repetitions_are_right() -> None:
    ours = repeated(Scaled(), X, torch.randn(5, 4))
    for _ in range(3):
        check(ours, torch.randn(5, 4), torch.randn(5, 4))
    with torch.no_grad():
        for _ in range(4):
            assert not ours(X, X).requires_grad
    check(ours, X, torch.ones(5, 4))


def test_results_that_are_no_tensor_are_put_together() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.layer(x)
            return {"one": y, "two": 2 * y}

    ours = repeated(Both(), X)
    mine, right = ours(X), ours.module(X)
    assert list(mine) == ["one", "two"]
    torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("module", [nn.BatchNorm1d(4), nn.Linear(4, 4).eval()])
def test_buffers_and_results_are_those_of_every_call(module: nn.Module) -> None:
    ours, twin = ORTModule(module, exporter="torchscript"), copy.deepcopy(module)
    for _ in range(5):
        x = torch.randn(5, 4)
        torch.testing.assert_close(ours(x), twin(x))
    for mine, right in zip(ours.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, right)


def test_every_call_draws() -> None:
    ours = repeated(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), X)
    torch.manual_seed(1)
    first, second = ours(X), ours(X)
    torch.manual_seed(1)
    assert torch.equal(ours(X), first)
    assert not torch.equal(first, second)


def test_functions_around_a_call_run() -> None:
    ours = repeated(Scaled(), X)
    seen = list[str]()
    handles = [
        ours.register_forward_pre_hook(lambda *_: seen.append("before")),
        ours.register_forward_hook(lambda *_: seen.append("behind")),
    ]
    check(ours, X)
    assert seen == ["before", "behind"]
    for handle in handles:
        handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global"))
    try:
        ours(X)
    finally:
        handle.remove()
    assert "global" in seen
    assert ours._graphs.repeat is not None


def test_another_forward_is_called() -> None:
    ours = repeated(Scaled(), X)
    ours.forward = lambda _: "mine"
    assert ours(X) == "mine"
    del ours.forward
    check(ours, X)

    class Counted(ORTModule):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Counted.count += 1
            result: torch.Tensor = super().forward(x)
            return result

    counted = Counted(Scaled(), exporter="torchscript")
    for _ in range(5):
        counted(X)
    assert Counted.count == 5


CHANGES: dict[str, Callable[[ORTModule], object]] = {
    "reset": lambda ours: ours.reset(),
    "memory": lambda ours: setattr(ours.layer.weight, "data", torch.randn(4, 4)),
    "turned": lambda ours: setattr(ours.layer.weight, "data", ours.layer.weight.data.t()),
    "double": lambda ours: ours.double(),
    "assigned": lambda ours: ours.load_state_dict(Scaled().state_dict(), assign=True),
    "part": lambda ours: setattr(ours.module, "layer", nn.Linear(4, 4)),
    "mode": lambda ours: ours.eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_module_is_no_repetition(name: str) -> None:
    ours = repeated(Scaled(), X)
    CHANGES[name](ours)
    repeat = ours._graphs.repeat
    assert repeat is None or repeat((X,)) is None
    x = X.to(ours.layer.weight.dtype)
    for _ in range(5):
        check(ours, x)
    repeat = ours._graphs.repeat
    is_short = repeat is not None and repeat((x,)) is not None
    assert is_short == (name != "turned")  # which is copied in each call


def test_nothing_is_short_without_guards_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_find_guards", lambda _: None)
    ours = ORTModule(Scaled(), exporter="torchscript")
    for _ in range(4):
        check(ours, X)
    assert ours._graphs.repeat is None


def test_nor_under_autocast() -> None:
    ours = ORTModule(Scaled(), exporter="torchscript")
    for dtype in (torch.bfloat16, torch.float16) * 2:
        with torch.autocast("cpu", dtype):
            for _ in range(4):
                assert ours(X).dtype == ours.module(X).dtype
    assert ours._graphs.repeat is None
