"""Distances between all rows, which exporters write without absolute values, or not at all.

TorchScript's form of `torch.cdist` is (Σ(x − y)ᵖ)^(1/(p + 10⁻⁶)): no number for odd p, and another
one for p = 0 and p = ∞. The dynamo exporter knows p = 2 by a matrix product only, with a square
root that has no gradient at a distance of 0, as every row has from itself.
"""

from __future__ import annotations

import math

import torch

BY_PRODUCT = "use_mm_for_euclid_dist"
MANY_ROWS = 25
"""From more rows than this on torch takes the matrix product, unless it is told otherwise."""


def distances(
    x: torch.Tensor,
    y: torch.Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> torch.Tensor:
    """`torch.cdist`, with its gradient of 0 where a distance is 0."""
    if p == 2 and _is_by_product(x, y, compute_mode):
        return _root(_squares_by_product(x, y))
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return apart.abs().sum(-1)
    if p == 2:
        return _root((apart * apart).sum(-1))
    if math.isinf(p):
        return apart.abs().amax(-1)
    return _power(_power(apart.abs(), p).sum(-1), 1 / p)


def _is_by_product(x: torch.Tensor, y: torch.Tensor, mode: str) -> bool:
    if mode == f"{BY_PRODUCT}_if_necessary":
        return x.shape[-2] > MANY_ROWS or y.shape[-2] > MANY_ROWS
    return mode == BY_PRODUCT


def _squares_by_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """|x|² − 2xy + |y|², which may be a little below 0."""
    of_x, of_y = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    return of_x - 2 * (x @ y.transpose(-1, -2)) + of_y.transpose(-1, -2)


def _root(squares: torch.Tensor) -> torch.Tensor:
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


def _power(bases: torch.Tensor, exponent: float) -> torch.Tensor:
    """A power of numbers that are not negative, with a gradient of 0 at 0."""
    if exponent >= 1:
        return bases**exponent
    positive = bases > 0
    return torch.where(positive, torch.where(positive, bases, 1.0) ** exponent, 0.0)
