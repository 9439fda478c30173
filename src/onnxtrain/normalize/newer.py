"""Operators introduced after opset 21, written with those of 18 to 21."""

from __future__ import annotations

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
    split_heads,
    untrained,
    window,
)
from .rewrite import Lowering


def swish(op: OpBuilder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x·σ(αx)."""
    return x * op.Sigmoid(x if alpha == 1.0 else x * alpha)


def swiglu(op: OpBuilder, a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Swish of the gate times the value."""
    return swish(op, a, alpha=alpha) * b


def rms_normalization(
    op: OpBuilder,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """x / √(mean(x²) + ε) · scale, over the axes from `axis` on."""
    return rms(op, x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)[0]


def rms(
    op: OpBuilder, x: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """RMS normalization and the reciprocal root that it multiplied with."""
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis - x.rank, 0))
    stash = ir.DataType(stash_type)
    wide = x if x.dtype in (stash, ir.DataType.DOUBLE) else op.Cast(x, to=stash)
    root = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, axes, keepdims=1) + epsilon))
    y = wide * root
    y = y if wide is x else op.Cast(y, to=x.dtype)
    if scale.dtype != y.dtype:
        y = op.Cast(y, to=scale.dtype)
    return y * scale, root


def rotary_embedding(
    op: OpBuilder,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    ids: Tensor | None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Rotary position embedding of a 4-D [batch, heads, length, size] or packed 3-D tensor."""
    packed = x.rank == 3
    if packed and not num_heads:
        raise ModelError("RotaryEmbedding of a 3-D tensor needs `num_heads`.")
    untrained(cos, sin)
    if ids is not None:
        cos, sin = op.Gather(cos, ids, axis=0), op.Gather(sin, ids, axis=0)
    between = [2] if packed else [1]  # where the heads are
    cos, sin = op.Unsqueeze(cos, between), op.Unsqueeze(sin, between)
    heads = op.Reshape(x, [0, 0, num_heads, -1]) if packed else x
    y = rotate(op, heads, cos, sin, interleaved=bool(interleaved), rotary_dim=rotary_embedding_dim)
    return op.Reshape(y, [0, 0, -1]) if packed else y


def attention(
    op: OpBuilder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    nonpad: Tensor | None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> Any:
    """Attention-23 to 25: multi-head, grouped or multi-query, with masks, caches and windows."""
    packed = q.rank == 3
    head = q.shape[-1] if q.shape is not None else None
    if packed:
        if not (q_num_heads and kv_num_heads):
            raise ModelError("Attention of 3-D tensors needs `q_num_heads` and `kv_num_heads`.")
        head = head // q_num_heads if isinstance(head, int) else None
        q, k, v = (
            _with_shape(split_heads(op, x, n), x, n)
            for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads))
        )
        heads: tuple[int, int] | None = (q_num_heads, kv_num_heads)
    else:
        heads = _head_counts(q, k)
    factor = (
        op.like(scale, q)
        if scale is not None
        else default_scale(op, head, q, op.Squeeze(op.Slice(op.Shape(q), [3], [4]), [0]))
    )
    offset = None
    if past_key is not None and past_value is not None:
        offset = op.Squeeze(op.dim_of(past_key, 2), [0])
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    elif nonpad is not None:
        lengths = op.Cast(nonpad, to=ir.DataType.INT64) - op.dim_of(q, 2)
        offset = op.Reshape(lengths, [-1, 1, 1, 1])
    _ensure_rank(k)
    allowed: list[Tensor] = []
    bias = None
    if mask is not None:
        mask = _padded_mask(op, mask, k)
        if mask.dtype == ir.DataType.BOOL:
            allowed.append(mask)
        else:
            bias = mask if mask.dtype == q.dtype else op.Cast(mask, to=q.dtype)
    right = 0 if is_causal else right_window_size
    if is_causal and right_window_size >= 0:
        right = min(0, right_window_size)
    if right >= 0 or left_window_size >= 0:
        allowed.append(window(op, q, k, offset, left=left_window_size, right=right))
    if nonpad is not None:
        count = op.Reshape(op.Cast(nonpad, to=ir.DataType.INT64), [-1, 1, 1, 1])
        allowed.append(positions(op, k, 2) < count)
    result = attend(
        op, q, k, v, scale=factor, bias=bias, allowed=allowed, softcap=softcap, heads=heads,
        dead_rows=mask is not None or nonpad is not None or left_window_size >= 0,
        precision=ir.DataType(softmax_precision) if softmax_precision else None,
    )  # fmt: skip
    scores = (result.raw, result.capped, result.biased, result.probabilities)
    y = merge_heads(op, result.y) if packed else result.y
    return y, k, v, scores[qk_matmul_output_mode]


def _with_shape(split: Tensor, x: Tensor, heads: int) -> Tensor:
    """What is known of the shape after the heads were split off."""
    batch, length, hidden = x.shape or (None, None, None)
    size = hidden // heads if isinstance(hidden, int) else None
    split.value.shape = ir.Shape([batch, heads, length, size])
    return split


def _ensure_rank(x: Tensor) -> None:
    if x.shape is None:
        x.value.shape = ir.Shape([None, None, None, None])


def _head_counts(q: Tensor, k: Tensor) -> tuple[int, int] | None:
    """How many heads queries and keys have; None where they have equally many."""
    heads = [x.shape[1] if x.shape is not None else None for x in (q, k)]
    if heads[0] == heads[1]:
        return None
    if not all(isinstance(h, int) for h in heads):
        raise ModelError(
            "Attention of 4-D tensors needs the number of heads, axis 1 of Q and K, as numbers."
        )
    many, few = (int(h) for h in heads if isinstance(h, int))
    if many % few:
        raise ModelError(f"Attention: {many} query heads are no multiple of {few} key heads.")
    return many, few


def _padded_mask(op: OpBuilder, mask: Tensor, k: Tensor) -> Tensor:
    """A mask may end before the keys do; what it does not cover is masked."""
    have, need = mask.dim(-1), k.dim(2)
    if have is not None and have == need:
        return mask
    missing = op.dim_of(k, 2) - op.Slice(op.Shape(mask), [-1], [2**62])
    pads = op.Concat(op.const(np.array([0])), missing, axis=0)
    if mask.dtype == ir.DataType.BOOL:
        fill = op.const(np.array(False))
    else:
        fill = op.like(float("-inf"), mask)
    padded = op.Pad(mask, pads, fill, op.const(np.array([-1])))
    if mask.shape is not None:
        padded.value.shape = ir.Shape([*mask.shape[:-1], need])
    return padded


def causal_conv_with_state(
    op: OpBuilder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    past: Tensor | None,
    *,
    activation: str = "none",
) -> Any:
    """Depthwise convolution of what came before and now; the end of it is the next state."""
    channels, kernel = weight.dim(0), weight.dim(2)
    if not isinstance(channels, int) or not isinstance(kernel, int):
        raise ModelError("CausalConvWithState needs a weight whose shape is known.")
    if past is not None:
        line = op.Concat(past, x, axis=2)
    else:
        line = op.Pad(x, [0, 0, kernel - 1, 0, 0, 0], op.like(0.0, x))
    y = op.Conv(line, weight, bias, group=channels, kernel_shape=[kernel])
    if activation in ("silu", "swish"):
        y = swish(op, y)
    elif activation != "none":
        raise ModelError(f"CausalConvWithState: unknown activation {activation!r}.")
    start = op.Slice(op.Shape(x), [2], [3])
    return y, op.Slice(line, start, [2**62], [2])


def tensor_scatter(
    op: OpBuilder,
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Write `update` into the cache at a position per sample."""
    rank = past.rank
    axis %= rank
    where = op.Reshape(positions(op, update, axis), [-1, *[1] * (rank - 1 - axis)])
    if write_indices is not None:
        first = op.Reshape(op.Cast(write_indices, to=ir.DataType.INT64), [-1, *[1] * (rank - 1)])
        where = where + first
    if mode == "circular":
        where = op.Mod(where, op.dim_of(past, axis))
    return op.ScatterElements(past, op.Expand(where, op.shape_of(update)), update, axis=axis)


def _around(op: OpBuilder, x: Tensor, axis: Tensor) -> Tensor:
    """The sizes before, along and after an axis that is known when the model runs."""
    sizes = op.shape_of(x)
    axis = op.Reshape(op.Cast(axis, to=ir.DataType.INT64), [1])
    axis = op.Where(axis < 0, axis + x.rank, axis)
    numbers = op.const(np.arange(x.rank))
    before, after = (
        op.ReduceProd(op.Where(chosen, sizes, 1), [0])
        for chosen in (numbers < axis, numbers > axis)
    )
    return op.Concat(before, op.Gather(sizes, axis, axis=0), after, axis=0)


def cum_prod(
    op: OpBuilder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Tensor:
    """Products along an axis: by doubling when its length is known, else row by row of a triangle.

    Doubling multiplies with itself shifted by 1, 2, 4, … — log₂(n) steps.
    """
    if axis.const is None:
        three = op.Reshape(x, _around(op, x, axis))
        three.value.shape = ir.Shape([None, None, None])
        middle = op.const(np.array(1))
        product = cum_prod(op, three, middle, exclusive=exclusive, reverse=reverse)
        return op.Reshape(product, op.shape_of(x))
    along = int(axis.const.reshape(-1)[0]) % x.rank
    one = op.like(1.0 if x.is_float else 1, x)
    size = x.dim(along)

    def shift(t: Tensor, by: int) -> Tensor:
        low, high = (0, -by) if not reverse else (by, 2**62)
        pads = [by, 0] if not reverse else [0, by]
        return op.Pad(op.Slice(t, [low], [high], [along]), pads, one, [along])

    if isinstance(size, int):
        y = shift(x, 1) if exclusive else x
        step = 1
        while step < size:
            y = y * shift(y, step)
            step *= 2
        return y
    row, column = positions(op, x, along), positions(op, x, along)
    row, column = op.Unsqueeze(row, [1]), op.Unsqueeze(column, [0])
    before, after = (column, row) if not reverse else (row, column)
    inside = before < after if exclusive else before <= after
    last = op.Transpose(x, perm=[*(a for a in range(x.rank) if a != along), along])
    table = op.Where(inside, op.Unsqueeze(last, [-2]), one)
    product = op.ReduceProd(table, [-1], keepdims=0)
    order = list(range(x.rank - 1))
    return op.Transpose(product, perm=[*order[:along], x.rank - 1, *order[along:]])


def bit_cast(op: OpBuilder, x: Tensor, *, to: int) -> Tensor:
    """Only the trivial case exists in standard operators."""
    if ir.DataType(to) == x.dtype:
        return op.Identity(x)
    raise ModelError(
        f"BitCast from {x.dtype.name} to {ir.DataType(to).name} has no equivalent before opset 26."
    )


def space_to_depth(op: OpBuilder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """The old operator is the DCR order; CRD is a reshape and a transposition."""
    if mode == "DCR":
        return op.SpaceToDepth(x, blocksize=blocksize)
    dims = [op.dim_of(x, a) for a in range(4)]
    block = op.const(np.array([blocksize]))
    high, wide = op.Div(dims[2], block), op.Div(dims[3], block)
    split = op.Concat(dims[0], dims[1], high, block, wide, block, axis=0)
    order = op.Transpose(op.Reshape(x, split), perm=[0, 1, 3, 5, 2, 4])
    channels = op.Mul(dims[1], op.const(np.array([blocksize * blocksize])))
    return op.Reshape(order, op.Concat(dims[0], channels, high, wide, axis=0))


NEWER: dict[tuple[str, str], Lowering] = {
    ("", "Swish"): swish,
    ("", "SwiGLU"): swiglu,
    ("", "RMSNormalization"): rms_normalization,
    ("", "RotaryEmbedding"): rotary_embedding,
    ("", "Attention"): attention,
    ("", "CausalConvWithState"): causal_conv_with_state,
    ("", "TensorScatter"): tensor_scatter,
    ("", "CumProd"): cum_prod,
    ("", "BitCast"): bit_cast,
    ("", "SpaceToDepth"): space_to_depth,
}
