"""The two margin losses over classes, in operations that are few passes over memory.

Exporters compare integers with all classes, in the forward and the backward pass. Of
`multilabel_margin_loss` they write torch's own decomposition (torch 2.13), which adds up pairs with
class 0 for all that stands behind the first −1. Here masks are of single precision, so they are
part of elementwise groups, and what does not count is a number so low that nothing is left of it.
65,535 rows of ten classes, both directions, one thread: 3.2 → 2.2 ms, and 59 → 20 ms for labels.
"""

from __future__ import annotations

from typing import Any

import torch

MOST_CLASSES = 2**24
"""Up to here single precision has all whole numbers."""

FEW_CLASSES = 16
"""Up to so many, all pairs of classes are compared; otherwise each label with all classes. 1,024
rows of 80 with four labels take 1.1 ms instead of 10, 8,192 of 20 with three 3.4 instead of 5.1,
but 65,535 of ten with up to ten 57 instead of 17 (both directions, one thread)."""


def takes(scores: Any, labels: Any) -> bool:
    """Whether the forms are of these operands: single precision, a few million classes at most."""
    return (
        isinstance(scores, torch.Tensor)
        and isinstance(labels, torch.Tensor)
        and scores.dtype == torch.float32
        and labels.dtype == torch.int64
        and scores.dim() in (1, 2)
        and 0 < int(scores.shape[-1]) < MOST_CLASSES
    )


def multi_margin(
    scores: torch.Tensor,
    target: torch.Tensor,
    p: int,
    margin: float,
    weight: torch.Tensor | None,
    reduction: str,
) -> torch.Tensor:
    """Σ max(0, margin − x[y] + x[j])ᵖ·w[y] / C over all j ≠ y."""
    if scores.dim() == 1:
        rows, labels = scores.unsqueeze(0), target.reshape(1)
    else:
        rows, labels = scores, target
    column = labels.unsqueeze(1)
    numbers = torch.arange(rows.shape[1], dtype=rows.dtype)
    excess = torch.relu(margin - rows.gather(1, column) + rows)
    if p == 2:
        excess = excess * excess
    if weight is not None:
        excess = excess * weight[labels].unsqueeze(1)
    counted = torch.where(numbers == column.to(rows.dtype), 0.0, excess)
    return _reduced(counted.mean(1), reduction, scores.dim() == 1)


def multilabel_margin(scores: torch.Tensor, target: torch.Tensor, reduction: str) -> torch.Tensor:
    """Σ max(0, 1 − x[y] + x[j]) / C over all labels y before the first −1, and all j that are none.

    Both sums are of one tensor, in which the lowest number stands for what does not count. Its last
    axis is the rows: with classes there, ten of them, the backward pass took 52 ms instead of 18.
    """
    if scores.dim() == 1:
        rows, labels = scores.unsqueeze(0), target.unsqueeze(0)
    else:
        rows, labels = scores, target
    lowest, classes = torch.finfo(rows.dtype).min, rows.shape[1]
    numbers = labels.to(rows.dtype)
    is_label = torch.cumsum((numbers < 0).to(rows.dtype), 1) < 0.5
    places = torch.where(is_label, numbers, float(classes)).to(torch.int64)
    none = torch.zeros(rows.shape[0], classes + 1, dtype=rows.dtype)
    is_target = none.scatter(1, places, torch.ones_like(numbers))[:, :classes] > 0.5
    if classes > FEW_CLASSES:
        losses = _of_labels(rows, labels, is_label, torch.where(is_target, lowest, rows)) / classes
        return _reduced(losses, reduction, scores.dim() == 1)
    picked = rows.gather(1, torch.relu(numbers).to(torch.int64))
    left = torch.where(is_label, 1.0 - picked, lowest).t().unsqueeze(1)
    right = torch.where(is_target, lowest, rows).t().unsqueeze(0)
    losses = torch.relu(left + right).sum((0, 1)) / classes
    return _reduced(losses, reduction, scores.dim() == 1)


def _of_labels(
    rows: torch.Tensor, labels: torch.Tensor, is_label: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """The sums of each row, from one line of all classes for each label that there is."""
    number, place = is_label.nonzero(as_tuple=True)
    picked = rows.reshape(-1)[number * rows.shape[1] + labels[number, place]]
    excess = torch.relu((1.0 - picked).unsqueeze(1) + others.index_select(0, number)).sum(1)
    return torch.zeros(rows.shape[0], dtype=rows.dtype).scatter_add(0, number, excess)


def _reduced(losses: torch.Tensor, reduction: str, is_single: bool) -> torch.Tensor:
    if reduction == "none":
        return losses.reshape(()) if is_single else losses
    return losses.mean() if reduction == "mean" else losses.sum()
