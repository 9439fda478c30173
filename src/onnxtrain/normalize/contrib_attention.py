"""The attention operators of onnxruntime (domain com.microsoft), written with standard ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .attention import (
    attend,
    default_scale,
    merge_heads,
    positions,
    rotate,
    untrained,
    window,
)
from .newer import rms

FOUR = ir.Shape([None, None, None, None])


def _heads(op: OpBuilder, x: Tensor, count: int) -> Tensor:
    """[batch, length, heads·size] as [batch, heads, length, size], with what is known of them."""
    return _before_lengths(op, _in_rows(op, x, count))


def _in_rows(op: OpBuilder, x: Tensor, count: int) -> Tensor:
    """[batch, length, heads·size] as [batch, length, heads, size], with what is known of them."""
    heads = op.Reshape(x, [0, 0, count, -1])
    heads.value.shape = FOUR.copy()
    if x.shape is not None and x.rank == 3:
        batch, length, width = x.shape
        size = width // count if isinstance(width, int) else None
        heads.value.shape = ir.Shape([batch, length, count, size])
    return heads


def _before_lengths(op: OpBuilder, heads: Tensor) -> Tensor:
    """[batch, length, heads, size] as [batch, heads, length, size]."""
    turned = op.Transpose(heads, perm=[0, 2, 1, 3])
    turned.value.shape = ir.Shape([heads.dim(i) for i in (0, 2, 1, 3)])
    return turned


def _unpacked(op: OpBuilder, packed: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """Queries, keys and values that lie side by side along the last axis."""
    width = packed.dim(2)
    if not isinstance(width, int):
        head = op.Div(op.Slice(op.Shape(packed), [2], [3]), op.const(np.array([sum(counts)])))
        sizes = op.Mul(head, op.const(np.array(counts)))
        return op.many("Split", packed, sizes, axis=2, outputs=len(counts))
    widths = [width // sum(counts) * count for count in counts]
    parts = op.many("Split", packed, widths, axis=2, outputs=len(counts))
    for part, part_width in zip(parts, widths):
        part.value.shape = ir.Shape([packed.dim(0), packed.dim(1), part_width])
    return parts


def _key_mask(op: OpBuilder, mask: Tensor, keys: Tensor, fill: float, like: Tensor) -> Tensor:
    """The additive form of a padding mask: lengths [batch], or 1/0 per key, or per pair."""
    if mask.rank == 1:  # right padding: the number of keys that count
        lengths = op.Reshape(op.Cast(mask, to=ir.DataType.INT64), [-1, 1, 1, 1])
        seen = positions(op, keys, 2) < lengths
    elif mask.rank == 2:
        seen = op.Unsqueeze(op.Cast(mask, to=ir.DataType.BOOL), [1, 2])
    elif mask.rank == 3:
        seen = op.Unsqueeze(op.Cast(mask, to=ir.DataType.BOOL), [1])
    else:
        raise ModelError(f"An attention mask with {mask.rank} dimensions is not supported.")
    return op.Where(seen, op.like(0.0, like), op.like(fill, like))


def _scale(op: OpBuilder, scale: float, q: Tensor) -> Tensor:
    if scale:
        return op.like(scale, q)
    return default_scale(op, None, q, op.Squeeze(op.Slice(op.Shape(q), [3], [4]), [0]))


def attention(
    op: OpBuilder, x: Tensor, weights: Tensor, bias: Tensor | None, mask: Tensor | None,
    past: Tensor | None, attention_bias: Tensor | None, past_length: Tensor | None,
    *, num_heads: int, unidirectional: int = 0, qkv_hidden_sizes: Sequence[int] | None = None,
    mask_filter_value: float = -10000.0, scale: float = 0.0, do_rotary: int = 0,
    past_present_share_buffer: int = 0, rotary_embedding_dim: int = 0,
) -> Any:  # fmt: skip
    """Self-attention with the three projections inside."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise ModelError("Attention with rotary embedding or a shared cache is not supported.")
    projected = x @ weights if bias is None else x @ weights + bias
    if qkv_hidden_sizes:
        parts = op.many("Split", projected, list(qkv_hidden_sizes), axis=-1, outputs=3)
    else:
        parts = op.many("Split", projected, axis=-1, num_outputs=3, outputs=3)
    q, k, v = (_heads(op, p, num_heads) for p in parts)
    offset = None
    if past is not None:
        past_k, past_v = (
            op.Squeeze(t, [0]) for t in op.many("Split", past, [1, 1], axis=0, outputs=2)
        )
        offset = op.Squeeze(op.Slice(op.Shape(past), [3], [4]), [0])
        k, v = op.Concat(past_k, k, axis=2), op.Concat(past_v, v, axis=2)
        k.value.shape = FOUR.copy()
    total = attention_bias
    if mask is not None:
        padding = _key_mask(op, mask, k, mask_filter_value, q)
        total = padding if total is None else total + padding
    allowed = [window(op, q, k, offset, right=0)] if unidirectional else []
    y = attend(op, q, k, v, scale=_scale(op, scale, q), bias=total, allowed=allowed).y
    present = op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)
    return merge_heads(op, y), present


def multi_head_attention(
    op: OpBuilder, query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None,
    padding_mask: Tensor | None, attention_bias: Tensor | None, past_key: Tensor | None,
    past_value: Tensor | None, past_length: Tensor | None, cache_indirection: Tensor | None,
    *, num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:  # fmt: skip
    """Attention over projected, packed 3-D (or separated 4-D) queries, keys and values."""
    if past_length is not None or cache_indirection is not None:
        raise ModelError("MultiHeadAttention with a shared cache is not supported.")
    q, k, v = _projected(op, query, key, value, bias, num_heads)
    offset = None
    if past_key is not None and past_value is not None:
        offset = op.Squeeze(op.Slice(op.Shape(past_key), [2], [3]), [0])
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
        k.value.shape = FOUR.copy()
    total = attention_bias
    if padding_mask is not None:
        padding = _key_mask(op, padding_mask, k, mask_filter_value, q)
        total = padding if total is None else total + padding
    allowed = [window(op, q, k, offset, right=0)] if unidirectional else []
    result = attend(op, q, k, v, scale=_scale(op, scale, q), bias=total, allowed=allowed)
    return merge_heads(op, result.y), k, v, result.raw


def _projected(
    op: OpBuilder, query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values as [batch, heads, length, size], whatever form they came in."""
    if query.rank == 5:  # [batch, length, heads, 3, size]
        packed = op.many("Split", query, [1, 1, 1], axis=3, outputs=3)
        q, k, v = (op.Transpose(op.Squeeze(t, [3]), perm=[0, 2, 1, 3]) for t in packed)
    elif key is not None and key.rank == 5:
        packed = op.many("Split", key, [1, 1], axis=3, outputs=2)
        k, v = (op.Transpose(op.Squeeze(t, [3]), perm=[0, 2, 1, 3]) for t in packed)
        q = _heads(op, query, heads)
    elif key is None or value is None:
        raise ModelError("MultiHeadAttention needs key and value, or packs of them.")
    else:
        q = _heads(op, query, heads)
        k = key if key.rank == 4 else _heads(op, key, heads)
        v = value if value.rank == 4 else _heads(op, value, heads)
    if bias is not None:
        lengths = [op.Mul(op.Slice(op.Shape(t), [3], [4]), op.const(np.array([heads])))
                   for t in (q, k, v)]  # fmt: skip
        sizes = op.Concat(*lengths, axis=0)
        parts = op.many("Split", bias, sizes, axis=0, outputs=3)
        needs_bias = (True, key is None or key.rank != 4, value is None or value.rank != 4)
        shaped = [op.Reshape(p, [1, heads, 1, -1]) for p in parts]
        q, k, v = (t + p if g else t for t, p, g in zip((q, k, v), shaped, needs_bias))
    for t in (q, k, v):
        if t.value.shape is None:
            t.value.shape = FOUR.copy()
    return q, k, v


def group_query_attention(
    op: OpBuilder, query: Tensor, key: Tensor | None, value: Tensor | None,
    past_key: Tensor | None, past_value: Tensor | None, seqlens_k: Tensor, total: Tensor,
    cos: Tensor | None, sin: Tensor | None, position_ids: Tensor | None,
    attention_bias: Tensor | None, head_sink: Tensor | None, k_scale: Tensor | None,
    v_scale: Tensor | None, q_norm: Tensor | None, k_norm: Tensor | None,
    *, num_heads: int, kv_num_heads: int, scale: float = 0.0, softcap: float = 0.0,
    local_window_size: int = -1, do_rotary: int = 0, rotary_interleaved: int = 0,
    smooth_softmax: int = 0, causal: int = 1, sliding_window_cache: int = 0,
    k_quant_type: str = "NONE", v_quant_type: str = "NONE", kv_cache_bit_width: int = 0,
    qk_norm_epsilon: float = 1e-6,
) -> Any:  # fmt: skip
    """Causal attention with fewer key than query heads, caches and rotary embedding.

    Sequences are padded on the right (as onnxruntime wants them for a prompt), so the causal mask
    already keeps padding away from what counts. In a cache every row has its own length, behind
    which its new keys and values go.
    """
    if k_scale is not None or v_scale is not None or {k_quant_type, v_quant_type} != {"NONE"}:
        raise ModelError("GroupQueryAttention with a quantized cache is not supported.")
    if sliding_window_cache:
        raise ModelError(
            "GroupQueryAttention with a cache of the window's length is not supported. Build the "
            "model with a cache of full length (onnxruntime-genai: windowed_kv_cache=false)."
        )
    counts = [num_heads, kv_num_heads, kv_num_heads]
    parts = [query] if key is None or value is None else [query, key, value]
    if len(parts) == 1:
        if do_rotary and q_norm is None:  # what is turned alike is turned together
            counts = [num_heads + kv_num_heads, kv_num_heads]
        parts = list(_unpacked(op, query, counts))
    *turning, v = (_in_rows(op, part, count) for part, count in zip(parts, counts))
    if q_norm is not None and k_norm is not None:
        turning = [_with_shape_of(t, rms(op, t, w, axis=-1, epsilon=qk_norm_epsilon)[0])
                   for t, w in zip(turning, (q_norm, k_norm))]  # fmt: skip
    offset = None
    if past_key is not None and past_value is not None:
        offset = _past_lengths(op, v, seqlens_k, total)
    untrained(cos, sin)
    if do_rotary:
        if cos is None or sin is None:
            raise ModelError("GroupQueryAttention with do_rotary needs the cos and sin caches.")
        where = _places(op, v, cos, offset) if position_ids is None else position_ids
        turning = _turned(op, turning, (cos, sin), where, interleaved=bool(rotary_interleaved))
    if len(turning) == 1:
        turning = list(_split_heads(op, turning[0], (num_heads, kv_num_heads)))
    q, k, v = (_before_lengths(op, t) for t in (*turning, v))
    if past_key is not None and past_value is not None and offset is not None:
        k, v = _cached(op, (past_key, past_value), (k, v), offset, total)
        offset = op.Unsqueeze(offset, [1, 2])
    left = local_window_size - 1 if local_window_size > 0 else -1
    seen = [window(op, q, k, offset, left=left, right=0)] if causal else []
    y = attend(
        op, q, k, v, scale=_scale(op, scale, q), bias=attention_bias, allowed=seen,
        softcap=softcap, sink=_sink(op, head_sink, smooth_softmax, q),
        heads=(num_heads, kv_num_heads),
    ).y  # fmt: skip
    return merge_heads(op, y), k, v


def _places(op: OpBuilder, new: Tensor, cos: Tensor, offset: Tensor | None) -> Tensor:
    """Positions of new entries [batch, length, …], behind those of a cache."""
    where = op.Unsqueeze(positions(op, new, 1), [0])
    if offset is not None:  # what is padding may lie behind the end of the cache
        last = op.Sub(op.Slice(op.Shape(cos), [0], [1]), op.const(np.array([1])))
        where = op.Min(where + offset, last)
        where.value.shape = ir.Shape([new.dim(0), new.dim(1)])
    return where


def _turned(
    op: OpBuilder, parts: Sequence[Tensor], tables: tuple[Tensor, Tensor], where: Tensor,
    *, interleaved: bool,
) -> list[Tensor]:  # fmt: skip
    """Tensors [batch, length, heads, size], rotated by the angles of their positions."""
    c, s = (op.Unsqueeze(op.Gather(t, where, axis=0), [2]) for t in tables)
    width = tables[0].dim(1)
    dim = 2 * width if isinstance(width, int) else 0
    return [
        _with_shape_of(part, rotate(op, part, c, s, interleaved=interleaved, rotary_dim=dim))
        for part in parts
    ]


def _with_shape_of(before: Tensor, after: Tensor) -> Tensor:
    """`after`, which has the shape that is known of `before`."""
    after.value.shape = before.value.shape
    return after


def _split_heads(op: OpBuilder, heads: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """[batch, length, heads, size] in parts of so many heads."""
    parts = op.many("Split", heads, list(counts), axis=2, outputs=len(counts))
    for part, count in zip(parts, counts):
        part.value.shape = ir.Shape([heads.dim(0), heads.dim(1), count, heads.dim(3)])
    return parts


def _sink(op: OpBuilder, head_sink: Tensor | None, smooth: int, like: Tensor) -> Tensor | None:
    """The score of the key that takes what no other key gets: one per head, or 0."""
    if head_sink is not None:
        return op.Reshape(head_sink, [1, -1, 1, 1])
    return op.like(0.0, like) if smooth else None


def _past_lengths(op: OpBuilder, new: Tensor, seqlens_k: Tensor, total: Tensor) -> Tensor:
    """How many keys each row of a cache has, as [batch, 1]; none for a prompt."""
    length, whole = op.dim_of(new, 1), op.Reshape(op.Cast(total, to=ir.DataType.INT64), [1])
    counted = op.Reshape(op.Cast(seqlens_k, to=ir.DataType.INT64), [-1, 1])
    before = op.Sub(op.Add(counted, op.const(np.array([1]))), length)
    return op.Where(op.Equal(length, whole), op.const(np.array([0])), before)


def _cached(
    op: OpBuilder, pasts: Sequence[Tensor], news: Sequence[Tensor], lengths: Tensor, total: Tensor
) -> list[Tensor]:
    """Caches [batch, heads, length, size] with each row's new entries behind its old ones.

    They are written there, not gathered from both: the gradient of what is written is read back
    with the same indices, while that of a gather would have to add up what may be read twice.
    """
    room, count = op.Slice(op.Shape(pasts[0]), [2], [3]), op.dim_of(news[0], 2)
    size = op.Max(room, op.Reshape(op.Cast(total, to=ir.DataType.INT64), [1]))
    pads = op.Concat(op.const(np.array([0])), size - room, axis=0)
    is_old = op.Unsqueeze(_line(op, size) < lengths, [2, 3])
    behind = lengths + _line(op, count)  # [batch, new positions]
    row = op.Expand(op.Transpose(_line(op, op.dim_of(news[0], 0)), perm=[1, 0]), op.Shape(behind))
    places = op.Concat(op.Unsqueeze(row, [2]), op.Unsqueeze(behind, [2]), axis=2)
    # What is as long has one name: no gradient asks at run time whether something was broadcast.
    longest = f"longer({pasts[0].dim(2)},{total.name})" if pasts[0].dim(2) is not None else None
    is_old.value.shape = ir.Shape([news[0].dim(0), longest, 1, 1])
    caches = []
    for past, new in zip(pasts, news):
        wide = op.Transpose(op.Pad(past, pads, None, op.const(np.array([2]))), perm=[0, 2, 1, 3])
        wide.value.shape = ir.Shape([new.dim(0), longest, new.dim(1), new.dim(3)])
        old = op.Where(is_old, wide, op.like(0.0, new))
        both = op.ScatterND(old, places, op.Transpose(new, perm=[0, 2, 1, 3]))
        cache = op.Transpose(both, perm=[0, 2, 1, 3])
        cache.value.shape = ir.Shape([new.dim(0), new.dim(1), longest, new.dim(3)])
        caches.append(cache)
    return caches


def _line(op: OpBuilder, length: Tensor) -> Tensor:
    """0, 1, 2, … as [1, length]."""
    zero, one = op.const(np.array(0)), op.const(np.array(1))
    return op.Unsqueeze(op.Range(zero, op.Squeeze(length, [0]), one), [0])


def rotary(
    op: OpBuilder, x: Tensor, position_ids: Tensor, cos: Tensor, sin: Tensor,
    *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
    is_packed_batching: int = 0, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Rotary embedding; `position_ids` is [batch, length], or [1]: where the sequence starts."""
    if is_packed_batching:
        raise ModelError("RotaryEmbedding with packed batching is not supported.")
    untrained(cos, sin)
    packed = x.rank == 3
    axis = 1 if packed else 2
    if position_ids.rank == 1:
        where = op.Unsqueeze(positions(op, x, axis) + position_ids, [0])
    else:
        where = position_ids
    c, s = (op.Unsqueeze(op.Gather(t, where, axis=0), [2] if packed else [1]) for t in (cos, sin))
    heads = x
    if packed:
        width = cos.dim(1)
        if num_heads:
            heads = op.Reshape(x, [0, 0, num_heads, -1])
        elif isinstance(width, int):
            heads = op.Reshape(x, [0, 0, -1, rotary_embedding_dim or 2 * width])
        else:
            raise ModelError("RotaryEmbedding needs `num_heads` or the shape of its cache.")
    y = rotate(op, heads, c, s, interleaved=bool(interleaved), rotary_dim=rotary_embedding_dim)
    return op.Reshape(y, [0, 0, -1]) if packed else y
