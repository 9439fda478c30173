"""Attention as torch computes it, where the dynamo exporter does otherwise.

It asserts that there are four axes, and a position that sees nothing gets the average of all values
(a mask of truth values) or no number at all (a mask of minus infinities); in torch it gets zeros.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch.nn import functional

RANK = 4
"""Rows, heads, positions, features."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """`functional.scaled_dot_product_attention` in a form that is exported as it is."""
    if not may_hide_all(attn_mask):
        return _over_four_axes(query, key, value, attn_mask, *args, **kwargs)
    if attn_mask.dtype == torch.bool:
        sees_any = attn_mask.any(-1, keepdim=True)
    else:
        sees_any = (attn_mask > -torch.inf).any(-1, keepdim=True)
        attn_mask = torch.where(sees_any, attn_mask, 0.0)  # no NaN that a gradient could meet
    result = _over_four_axes(query, key, value, attn_mask, *args, **kwargs)
    return torch.where(sees_any, result, 0.0)


def may_hide_all(mask: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a position may see nothing; what is learned is a bias, and finite."""
    return mask is not None and not mask.requires_grad


def _over_four_axes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention of any rank.

    Missing axes are put in front. Where there are more, those before the heads are broadcast
    against each other and become one.
    """
    compute = functional.scaled_dot_product_attention
    operands = [query, key, value]
    if all(operand.dim() == RANK for operand in operands):
        return compute(query, key, value, attn_mask, *args, **kwargs)
    if attn_mask is not None and attn_mask.dim() >= RANK:
        operands.append(attn_mask)  # a smaller one is broadcast over four axes as over more
    asked = max(operand.dim() for operand in operands)
    rank = max(RANK, asked)
    operands = [operand[(None,) * (rank - operand.dim())] for operand in operands]
    broadcast: Any = torch.broadcast_shapes  # untyped in torch
    rows = broadcast(*(operand.shape[:-3] for operand in operands))
    query, key, value, *masks = (_folded(operand, rows) for operand in operands)
    mask = masks[0] if masks else attn_mask
    result = compute(query, key, value, mask, *args, **kwargs)
    return result.reshape(*rows, *result.shape[1:])[(0,) * (rank - asked)]


def _folded(operand: torch.Tensor, rows: torch.Size) -> torch.Tensor:
    """With one axis for all before the heads."""
    return operand.expand(*rows, *operand.shape[-3:]).flatten(0, -RANK)
