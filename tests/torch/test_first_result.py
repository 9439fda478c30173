"""The first result of a graph is compared with what torch gave."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import ExportDifferenceWarning, ORTModule  # noqa: E402
from onnxtrain.torch import first_result as compared  # noqa: E402
from onnxtrain.torch.gradient_marks import ANOTHER_FORM  # noqa: E402
from tests.torch.test_ortmodule import TS  # noqa: E402


class Added(nn.Module):
    """What has the same number is added up."""

    def __init__(self, dropped: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(5, 5), nn.Dropout(dropped)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        rows = self.dropout(self.linear(x))
        return rows.argmax(1), torch.index_add(x, 0, torch.tensor([0, 2, 0, 2]), rows)


@pytest.fixture
def without_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter's own, which is wrong."""
    monkeypatch.delitem(ANOTHER_FORM, torch.index_add)


@pytest.mark.usefixtures("without_form")
def test_an_export_that_is_wrong_is_told_of_once() -> None:
    module, x = ORTModule(Added(), exporter=TS), torch.randn(4, 5)
    with pytest.warns(ExportDifferenceWarning, match=r"Added .*torchscript.* result 1 .* off by"):
        module(x)
    module(x)
    with torch.no_grad():  # another kind of call of the same export
        module(x)


@pytest.mark.usefixtures("without_form")
def test_where_something_is_drawn_nothing_can_be_compared() -> None:
    ORTModule(Added(0.5).train(), exporter=TS)(torch.randn(4, 5))


def test_an_export_that_is_right_is_not_told_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ExportDifferenceWarning)
        ORTModule(Added(), exporter=TS)(torch.randn(4, 5))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "is_told"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.001], False),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.1], True),
        ([1.0, NAN, INF], [1.0, 0.0, 0.0], False),  # torch has no numbers there
        ([1.0, 2.0, 3.0], [1.0, NAN, 3.0], True),
        ([0.0, 0.0], [0.0, 1e-6], False),
        ([0.0, 0.0], [0.0, 1.0], True),
        ([NAN, NAN], [1.0, 1.0], False),
        ([1.0, 2.0], [1.0, 2.0, 3.0], True),
    ],
)
def test_what_counts_as_different(expected: list[float], got: list[float], is_told: bool) -> None:
    sampled = compared.sample([torch.tensor(expected)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compared.warn_if_different("M", "dynamo", sampled, [torch.tensor(got)])
    assert bool(told) == is_told


def test_half_precision_may_be_further_apart() -> None:
    sampled = compared.sample([torch.tensor([1.0, 2.0])])
    compared.warn_if_different("M", "dynamo", sampled, [torch.tensor([1.1, 2.0]).bfloat16()])
    with pytest.warns(ExportDifferenceWarning):
        compared.warn_if_different("M", "dynamo", sampled, [torch.tensor([1.1, 2.0])])


def test_integers_and_results_of_nothing_are_left_out() -> None:
    assert compared.sample([torch.tensor([1, 2]), torch.ones(0)]) == [None, None]
    assert len(compared.sample([torch.ones(3 * compared.SAMPLED)])[0]) <= compared.SAMPLED
