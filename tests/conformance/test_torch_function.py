"""A module as a function in float64, whatever it says about types itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conformance.cases import TorchCase
from conformance.torch_function import TorchFunction


class Narrow(nn.Module):
    """Computes in float32 on its way, in the ways in which networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.table = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(3).float() + torch.zeros(3, dtype=torch.float32) + self.table
        torch.full((2,), torch.finfo(x.dtype).min)  # of the default type
        y = (x * self.weight).to(torch.float32).softmax(-1, dtype=torch.float32)
        return (y @ steps).exp()


def test_it_is_float64_throughout() -> None:
    case = TorchCase(Narrow(), (torch.tensor([[0.1, 0.2, 0.3]]),))
    (wide,) = TorchFunction(case, torch.float64).outputs({})
    (narrow,) = TorchFunction(case).outputs({})
    x = torch.tensor([[0.1, 0.2, 0.3]]).double()
    exact = (
        (x * torch.tensor([1.0, 2.0, 3.0])).softmax(-1) @ torch.arange(0.0, 6.0, 2).double()
    ).exp()
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert wide.item() == pytest.approx(exact.item(), rel=1e-14)
    assert narrow.item() == pytest.approx(exact.item(), rel=1e-5)
