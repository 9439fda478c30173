"""Margin losses over classes: the forms that exports have, beside torch's own kernels."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from onnxtrain.torch import ORTModule, margin_forms  # noqa: E402 - needs torch

nn = torch.nn
SHAPES = [(7, 5), (1, 1), (3, 1), (5,), (40, 17)]
REDUCTIONS = ("none", "mean", "sum")


def with_gradient(function: Any, x: Any, labels: Any) -> tuple[Any, Any]:
    """Values, and the gradient of a weighted sum of them."""
    x = x.detach().clone().requires_grad_(True)
    y = function(x, labels)
    seed = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    (y * seed).sum().backward()
    return y.detach(), x.grad


def compare(form: Any, module: Any, x: Any, labels: Any) -> None:
    """A form in single precision and torch's kernel in double precision."""
    ours, expected = (
        with_gradient(form, x, labels),
        with_gradient(module.double(), x.double(), labels),
    )
    for a, b in zip(ours, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("p", "margin"), [(1, 1.0), (2, 0.3), (1, 0.0), (2, -0.5)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_multi_margin(
    shape: tuple[int, ...], reduction: str, p: int, margin: float, is_weighted: bool
) -> None:
    generator, classes = torch.Generator().manual_seed(0), shape[-1]
    x = torch.randn(shape, generator=generator)
    labels = torch.randint(0, classes, shape[:-1], generator=generator)
    weight = torch.linspace(0.5, 2, classes) if is_weighted else None
    module = nn.MultiMarginLoss(p, margin, weight, reduction=reduction)
    compare(
        lambda x, t: margin_forms.multi_margin(x, t, p, margin, weight, reduction),
        module,
        x,
        labels,
    )


LABELS = [
    [[3, 0, -1, 1, 2]], [[-1, 3, 0, 1, 2]], [[0, 1, 2, 3, 4]], [[2, 2, 4, -1, -1]],
    [[1, -1, 0, -1, 3], [4, 3, -1, 2, 2], [0, 0, 0, 0, 0]],
]  # fmt: skip


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(labels: list[list[int]], reduction: str) -> None:
    target, module = torch.tensor(labels), nn.MultiLabelMarginLoss(reduction=reduction)
    x = torch.randn(target.shape, generator=torch.Generator().manual_seed(0))

    def form(x: Any, t: Any) -> Any:
        return margin_forms.multilabel_margin(x, t, reduction)

    compare(form, module, x, target)
    compare(form, module, x[0], target[0])
    compare(form, module, torch.round(x), target)  # some margins are just kept


MANY = margin_forms.FEW_CLASSES + 4


def some_labels(rows: int, seed: int) -> Any:
    """Of many classes: none in the first row, all in the second, some twice, and what follows."""
    labels = torch.randint(0, MANY, (rows, MANY), generator=torch.Generator().manual_seed(seed))
    for row in range(rows):
        labels[row, row % 7 :: 5] = -1
    labels[0, 0], labels[1] = -1, torch.arange(MANY)
    return labels


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_of_many_classes(reduction: str) -> None:
    target, module = some_labels(30, 0), nn.MultiLabelMarginLoss(reduction=reduction)
    x = torch.randn(target.shape, generator=torch.Generator().manual_seed(0))

    def form(x: Any, t: Any) -> Any:
        return margin_forms.multilabel_margin(x, t, reduction)

    compare(form, module, x, target)
    compare(form, module, x[2], target[2])
    compare(form, module, x[:1], target[:1])  # no label at all


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ortmodule_with_many_classes(exporter: str, reduction: str) -> None:
    """One graph for any number of labels, none included."""
    module = nn.MultiLabelMarginLoss(reduction=reduction)
    ours = ORTModule(module, exporter=exporter)
    few, others = some_labels(600, 0), some_labels(600, 1)
    few[:, 2] = -1
    for labels in (others, few, torch.full_like(few, -1)):
        x = torch.randn(labels.shape, generator=torch.Generator().manual_seed(2))
        for a, b in zip(with_gradient(ours, x, labels), with_gradient(module, x, labels)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_no_row() -> None:
    """torch's own kernels leave the memory of such a mean as it is."""
    x, target = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.int64)
    for reduction, expected in (("mean", torch.nan), ("sum", 0.0)):
        result = margin_forms.multi_margin(x, target[:, 0], 1, 1.0, None, reduction)
        torch.testing.assert_close(result, torch.tensor(expected), equal_nan=True)
    assert margin_forms.multi_margin(x, target[:, 0], 2, 1.0, None, "none").shape == (0,)
    assert margin_forms.multilabel_margin(x, target, "none").shape == (0,)
    assert margin_forms.multilabel_margin(x, target, "sum") == 0


@pytest.mark.parametrize(
    "module",
    [nn.MultiMarginLoss(), nn.MultiMarginLoss(2, 0.5, torch.linspace(0.5, 2, 6), reduction="none"),
     nn.MultiLabelMarginLoss(), nn.MultiLabelMarginLoss(reduction="none")],
    ids=["classes", "weighted classes", "labels", "labels of each row"],
)  # fmt: skip
def test_ortmodule(module: Any) -> None:
    """With two numbers of rows, one of which makes the nodes large enough for kernels."""
    ours, generator = ORTModule(module), torch.Generator().manual_seed(0)
    for rows in (5, 3000):
        x = torch.randn(rows, 6, generator=generator)
        is_multi = isinstance(module, nn.MultiMarginLoss)
        shape = (rows,) if is_multi else (rows, 6)
        labels = torch.randint(0 if is_multi else -1, 6, shape, generator=generator)
        for a, b in zip(with_gradient(ours, x, labels), with_gradient(module, x, labels)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_other_operands_are_left() -> None:
    x, labels = torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)
    assert margin_forms.takes(x, labels)
    assert not any(
        margin_forms.takes(*pair)
        for pair in ((x.double(), labels), (x, labels.int()), (x[:, :0], labels), (x[0, 0], labels))
    )
