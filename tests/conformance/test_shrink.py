"""Networks of the lists: shorter, and with gradients that can be compared."""

from __future__ import annotations

import torch
from torch import nn

from conformance.lists.shrink import keep_layers, narrow, spread


class Faint(nn.Module):
    """A branch that begins at nothing, a norm without statistics, and a head of 0.001."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)))
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.full((3, 1, 1), 1e-6))
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            self.head.weight.mul_(1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.norm(self.rows(x)) * self.scale
        answer: torch.Tensor = self.head(y.mean((2, 3)))
        return answer


def smallest_share(module: nn.Module, x: torch.Tensor) -> float:
    """The smallest of the largest entries of gradients, relative to the largest of all."""
    module.zero_grad()
    (module(x) * torch.tensor([1.0, -0.3])).sum().backward()
    sizes = [float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None]
    return min(sizes) / max(sizes)


def test_no_gradient_vanishes() -> None:
    torch.manual_seed(0)
    module, x = Faint().eval(), torch.randn(2, 3, 8, 8)
    assert smallest_share(module, x) < 1e-6
    spread(module, x)
    assert smallest_share(module, x) > 1e-4
    assert not module.training
    assert not module.norm.training
    assert module.norm.momentum == 0.1


def test_rows_of_layers_become_shorter_and_narrower() -> None:
    module = nn.ModuleDict({"a": Faint(), "b": nn.Sequential(nn.Sequential(nn.ReLU(), nn.Tanh()))})
    keep_layers(module, {"a.rows": (0, 3, 9), "b.0": (1,)})
    assert len(module["a"].rows) == 2
    assert isinstance(module["b"][0][0], nn.Tanh)
    layers = nn.Sequential(nn.Linear(7, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    narrow(layers, 4096, 5)
    assert [layer.weight.shape for layer in layers if isinstance(layer, nn.Linear)] == [
        (5, 7), (5, 5),
    ]  # fmt: skip
