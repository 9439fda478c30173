"""Attention over three or five axes, where the dynamo exporter asserts that there are four."""

from __future__ import annotations

from typing import Any

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
    """`functional.scaled_dot_product_attention` of any rank, computed over four axes.

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
