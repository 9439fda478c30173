"""Functions with a backward of their own.

A factor per element is exported, and what is the derivative of the forward; the rest is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from onnxtrain.torch import ORTModule
from onnxtrain.torch.export import ExportError, export


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].clone()


class Bounded(torch.autograd.Function):
    """A square root whose slope is bounded, in the newer style."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x.abs())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] / torch.sqrt(torch.clip(4.0 * x, min=0.25))


class Scaled(torch.autograd.Function):
    """Two gradients, and an argument that has none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, limit: float) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        ctx.limit = limit
        return torch.floor(x) * y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        dx = grads[0].masked_fill(x > ctx.limit, 0.0) * y - grads[0] * 0.1
        return dx, torch.where(x > 0, -grads[0] * torch.floor(x), 0.0), None


class Turned(torch.autograd.Function):
    """Mixes elements."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].flip(-1)


class Signs(Turned):
    """Not linear."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return torch.sign(grads[0])


class Shifted(Turned):
    """Not linear, though every operation is an addition."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] + torch.ones_like(grads[0])


class Squared(Turned):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * grads[0]


class InPlace(Turned):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dx = grads[0].clone()
        dx[..., 0] = 1.0
        return dx


class NoLongerZero(Turned):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        other = torch.zeros_like(grads[0])
        other[0] = 1.0
        return torch.where(other > 2.0, grads[0], other)


class Summed(torch.autograd.Function):
    """Of another shape than its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


class MaskedSoftmax(torch.autograd.Function):
    """Keeps its result alone, which it changes in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, dim: int) -> torch.Tensor:
        y = torch.softmax(x.masked_fill(mask, torch.finfo(x.dtype).min), dim)
        y.masked_fill_(mask, 0.0)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        dx = grads[0] * y
        return dx - y * dx.sum(ctx.dim, keepdim=True), None, None


class Halves(torch.autograd.Function):
    """Two results, each of which mixes elements."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        ctx.save_for_backward(x, w)
        return (x @ w).chunk(2, -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        dy = torch.cat(grads, -1)
        return dy @ w.t(), x.t() @ dy


class Clipped(Turned):
    """The derivative of its forward as long as gradients are small."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (2 * grads[0]).clamp(-1e3, 1e3)


class ChangesArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].flip(-1).flip(-1) * 2


class Uses(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 4), nn.Linear(4, 2), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 2 * self.first(x)
        if self.function is Scaled:
            return self.last(Scaled.apply(h, torch.exp(h), 0.5))
        if self.function is MaskedSoftmax:
            return self.last(MaskedSoftmax.apply(h, x > 0.5, -1))
        if self.function is Halves:
            one, other = Halves.apply(h, self.first.weight)
            return self.last(torch.cat([other, one.sin()], -1))
        y: torch.Tensor = self.last(self.function.apply(h) * torch.ones_like(h))
        return y


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("function", [Rounded, Bounded, Scaled, MaskedSoftmax, Halves])
def test_a_factor_per_element_or_the_derivative_is_exported(function: Any, exporter: str) -> None:
    torch.manual_seed(0)
    theirs = Uses(function)
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        grads = []
        for module in (ours, theirs):
            module.zero_grad()
            module(x).square().sum().backward()
            grads.append([x.grad, *(p.grad for p in module.parameters())])
            x.grad = None
        for one, other in zip(*grads):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [Turned, Signs, Shifted, Squared, InPlace, NoLongerZero, Summed, Clipped, ChangesArgument],
)
def test_any_other_is_refused(function: Any) -> None:
    with pytest.raises(ExportError, match=f"backward of its own in {function.__name__}"):
        export(Uses(function), (torch.randn(3, 4),))


def test_torch_is_left_as_it_was() -> None:
    before = torch.autograd.Function.__dict__["apply"]
    export(Uses(Rounded), (torch.randn(3, 4),), exporter="torchscript")
    assert torch.autograd.Function.__dict__["apply"] is before
