"""Cross entropy where exporters write another function than torch's, in operations they know.

The dynamo exporter forgets `label_smoothing`, without a word, and both write an operator for class
labels where the target is probabilities.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def needs_another_form(target: torch.Tensor, label_smoothing: float) -> bool:
    """Whether an exporter would write something else."""
    return bool(label_smoothing) or target.is_floating_point()


def cross_entropy(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor:
    """`functional.cross_entropy` of class labels or probabilities, spread over all classes.

    With a share s of the target spread evenly over C classes, and weights w,

        −Σ_c ((1 − s)·t_c + s/C)·w_c·log softmax(x)_c.
    """
    if scores.dim() == 1:  # of one sample, which ONNX does not know without an axis for it
        one, its = scores.unsqueeze(0), target.unsqueeze(0)
        return cross_entropy(one, its, weight, ignore_index, reduction, label_smoothing).reshape(())
    classes = scores.shape[1]
    logs = functional.log_softmax(scores, 1)
    weighted = logs if weight is None else logs * weight.view(-1, *[1] * (scores.dim() - 2))
    if target.is_floating_point():
        spread = target * (1 - label_smoothing) + label_smoothing / classes
        return _reduced(-(weighted * spread).sum(1), reduction)
    counted = target != ignore_index
    uniform = torch.where(counted, -weighted.sum(1), 0.0)
    if reduction == "mean":
        shares = counted.to(logs.dtype)
        if weight is not None:
            shares = shares * weight[torch.where(counted, target, 0)]
        uniform = uniform.sum() / shares.sum()
    else:
        uniform = _reduced(uniform, reduction)
    plain = functional.nll_loss(
        logs, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    return plain * (1 - label_smoothing) + uniform * (label_smoothing / classes)


def _reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def reduction_of(size_average: Any, reduce: Any, reduction: str) -> str:
    """What the two old arguments say, which torch still takes."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"
