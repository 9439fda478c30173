"""Diagonals as every (n + 1)th number of a matrix, where exporters multiply with a whole one.

The dynamo exporter takes a diagonal as the sum of a product with zeros and ones, which makes no
number of it where there is an infinity anywhere in its column, and puts one into a matrix by a
choice between columns and zeros. Cut out of the matrix as it lies in memory, it is a Slice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def of_matrices(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """`torch.diagonal`, of the axes that `dim1` and `dim2` name."""
    first, second = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[first], x.shape[second]
    if is_traced() and offset >= 0:  # right there, and for any size: a trace keeps steps
        return torch.diagonal(x, offset, dim1, dim2)
    is_view = x.is_contiguous() and second == first + 1  # else it would be of a copy
    if not is_view or (offset and not -rows < offset < columns):
        return torch.diagonal(x, offset, dim1, dim2)
    begin = offset if offset >= 0 else -offset * columns
    end = (columns - offset) * columns  # what follows is of the row behind that of the last column
    places = (*[slice(None)] * first, slice(begin, end, columns + 1))
    taken = x.flatten(first, second)[places]
    return taken.movedim(first, -1)


def embedded(x: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    """`torch.diag_embed`: matrices of zeros with rows of `x` on a diagonal."""
    rank, length = x.dim() + 1, x.shape[-1]
    first, second = dim1 % rank, dim2 % rank
    if first > second:  # the transposed matrix
        return embedded(x, -offset, second, first)
    if first == second:
        return torch.diag_embed(x, offset, dim1, dim2)  # says what is wrong
    size = length + abs(offset)
    behind = (0, 0) * (rank - 2 - first)  # axes behind those of the matrix
    apart = x.movedim(-1, first).unsqueeze(first + 1)
    long = functional.pad(apart, (*behind, 0, size)).flatten(first, first + 1)
    begin = offset if offset >= 0 else -offset * size
    rest = size * size - begin - length * (size + 1)  # negative if there is no offset
    flat = functional.pad(long, (*behind, begin, rest))
    return torch.unflatten(flat, first, (size, size)).movedim(first + 1, second)


def diag(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    """`torch.diag`: a matrix of a vector, and a vector of a matrix."""
    return embedded(x, diagonal) if x.dim() == 1 else of_matrices(x, diagonal)


def trace(x: torch.Tensor) -> torch.Tensor:
    """`torch.trace`: the sum of a matrix's diagonal."""
    return of_matrices(x).sum() if x.dim() == 2 else torch.trace(x)  # which says what is wrong


def takes(x: Any) -> bool:
    """Whether there are numbers on the diagonal that a gradient may come from."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return False
    return is_traced() or x.numel() > 0


def is_traced() -> bool:
    """Whether the TorchScript exporter looks on, to which a decision by size is one for good."""
    return torch._C._get_tracing_state() is not None  # noqa: SLF001 - `is_tracing` has no type
