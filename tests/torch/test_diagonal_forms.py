"""Diagonals as torch takes them and puts them in, without an export for every size."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import ORTModule  # noqa: E402
from tests.torch.test_ortmodule import TS  # noqa: E402


class Of(nn.Module):
    """A function of three times its argument, so that it is not a view of that."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * 3)


def changed(x: torch.Tensor) -> torch.Tensor:
    x.diagonal(1).mul_(3.0)
    return x


FORMS: dict[str, Any] = {
    "plain": lambda x: x[0].diagonal(),
    "above": lambda x: torch.diagonal(x, 1, 1, 2),
    "far above": lambda x: torch.diagonal(x, offset=3, dim1=-2, dim2=-1),
    "below": lambda x: torch.diagonal_copy(x, -2, 1, 2),
    "first axes": lambda x: x.diagonal(1, 0, 1),
    "axes apart": lambda x: x.diagonal(-1, 0, 2),
    "axes turned": lambda x: x.diagonal(1, 2, 1),
    "of a transposition": lambda x: x.transpose(1, 2).diagonal(1, 1, 2),
    "vector of a matrix": lambda x: torch.diag(x[0], -1),
    "matrix of a vector": lambda x: x[0, 0].diag(diagonal=2),
    "matrices": lambda x: torch.diag_embed(x),
    "matrices, above": lambda x: torch.diag_embed(x, 2, 1, 2),
    "matrices, below": lambda x: torch.diag_embed(input=x, offset=-3),
    "matrices, first": lambda x: torch.diag_embed(x, -1, 0, 1),
    "matrices, apart": lambda x: torch.diag_embed(x, 1, 0, 3),
    "matrices, turned": lambda x: torch.diag_embed(x, 1, -1, 1),
    "trace": lambda x: torch.trace(x[0]),
    "trace of a transposition": lambda x: x[1].t().trace() * x,
    "integers": lambda x: x.round().long()[0].diagonal() * x[0].diagonal(),
}


@pytest.mark.parametrize("exporter", [TS, "dynamo"])
@pytest.mark.parametrize("name", FORMS)
def test_diagonals(name: str, exporter: str) -> None:
    function = FORMS[name]
    ours = ORTModule(Of(function), exporter=exporter)
    for shape in ((4, 5, 5), (5, 4, 7), (3, 8, 6)):
        mine = torch.randn(shape, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        result, expected = ours(mine), function(theirs * 3)
        torch.testing.assert_close(result, expected)
        seed = torch.randn_like(expected)
        result.backward(seed)
        expected.backward(seed)
        torch.testing.assert_close(mine.grad, theirs.grad)
    if exporter == "dynamo":
        assert sum(map(len, ours._graphs._traced.values())) == 1


def test_an_infinity_beside_the_diagonal_is_not_on_it() -> None:
    """A product with zeros made no number of it."""
    ours = ORTModule(Of(lambda x: x.diagonal()))
    x = torch.eye(3).masked_fill(torch.eye(3) == 0, torch.inf).requires_grad_()
    result = ours(x)
    torch.testing.assert_close(result, torch.full((3,), 3.0))
    result.sum().backward()
    torch.testing.assert_close(x.grad, 3 * torch.eye(3))


def test_a_diagonal_that_is_changed_in_place() -> None:
    """The dynamo exporter refused it, since its form is no view."""
    ours, x = ORTModule(Of(changed), exporter="dynamo"), torch.randn(3, 3)
    torch.testing.assert_close(ours(x), changed(x * 3))


@pytest.mark.parametrize("offset", [3, -3, 5])
def test_a_diagonal_outside_of_the_matrix_is_empty(offset: int) -> None:
    ours, x = ORTModule(Of(lambda x: (x.diagonal(offset).sum(), x))), torch.randn(3, 3)
    empty, same = ours(x)
    torch.testing.assert_close(same, x * 3)
    assert empty.item() == 0
