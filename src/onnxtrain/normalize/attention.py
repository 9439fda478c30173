"""Scaled dot-product attention and rotary embedding from standard operators.

Shared by the ai.onnx operators of opset 23 and later and by onnxruntime's contrib operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.parameters import mark_constant

CONSTANT_MASK = 2**16
"""Up to this many elements a causal mask is stored rather than computed."""


@dataclass
class Attended:
    """The result and the scores at each stage, for operators that can return them."""

    y: Tensor
    raw: Tensor
    capped: Tensor
    biased: Tensor
    probabilities: Tensor


def split_heads(op: OpBuilder, x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads·size] → [batch, heads, length, size]."""
    return op.Transpose(op.Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def merge_heads(op: OpBuilder, x: Tensor) -> Tensor:
    """[batch, heads, length, size] → [batch, length, heads·size]."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def untrained(*tables: Tensor | None) -> None:
    """Say that stored tables (of cosines and sines) are trained only when asked for by name."""
    for table in tables:
        if table is not None and table.value.const_value is not None:
            mark_constant(table.value)


def _with_heads(op: OpBuilder, x: Tensor, heads: int | None) -> Tensor:
    """[batch, heads, length, size] with more or fewer heads, and shorter or longer; None: as is."""
    return x if heads is None else op.Reshape(x, [0, heads, -1, 0])


def default_scale(op: OpBuilder, head: int | str | None, like: Tensor, size: Tensor) -> Tensor:
    """1/√d, a constant when the head size d is known."""
    if isinstance(head, int):
        return op.like(1.0 / float(np.sqrt(head)), like)
    return op.Reciprocal(op.Sqrt(op.Cast(size, to=like.dtype)))


def attend(
    op: OpBuilder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Tensor,
    bias: Tensor | None = None,
    allowed: Sequence[Tensor] = (),
    dead_rows: bool = False,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    precision: ir.DataType | None = None,
    heads: tuple[int, int] | None = None,
) -> Attended:
    """softmax(cap(q·kᵀ·scale) + bias)·v over 4-D operands.

    Args:
        op: the builder.
        q: queries.
        k: keys.
        v: values.
        scale: scalar factor of the scores.
        bias: added to the scores.
        allowed: boolean tensors; a position must be true in all of them to be attended.
        dead_rows: whether a row may have no position at all; such a row gives zeros.
        softcap: soft limit of the scores, 0 for none.
        sink: score of one more key, whose value is zero: a scalar, or [1, heads, 1, 1].
        precision: type the softmax is computed in.
        heads: how many queries and keys have, where several heads of queries in a row share one of
            keys: they are rows of one product, and nothing is repeated.
    """
    of_q, of_k = heads if heads is not None and heads[0] != heads[1] else (None, None)
    product = _with_heads(op, q * scale, of_k) @ op.Transpose(k, perm=[0, 1, 3, 2])
    raw = _with_heads(op, product, of_q)
    capped = op.Tanh(raw / softcap) * softcap if softcap else raw
    mask = _combine(op, bias, allowed, q)
    alive = None
    if mask is not None and dead_rows:
        # A row of minus infinities has no softmax. It is given scores, and its result removed.
        lowest = op.ReduceMax(mask, [-1], keepdims=1)
        alive = lowest > op.like(float("-inf"), q)
        biased = capped + op.Where(alive, mask, op.like(0.0, q))
    else:
        biased = capped if mask is None else capped + mask
    if sink is not None:
        weights = _softmax_with_sink(op, biased, sink)
    elif precision is not None and precision != q.dtype:
        weights = op.Cast(op.Softmax(op.Cast(biased, to=precision), axis=-1), to=q.dtype)
    else:
        weights = op.Softmax(biased, axis=-1)
    y = _with_heads(op, _with_heads(op, weights, of_k) @ v, of_q)
    if alive is None:
        return Attended(y, raw, capped, biased, weights)
    zero = op.like(0.0, q)
    return Attended(
        op.Where(alive, y, zero),
        raw,
        capped,
        capped + mask if mask is not None else capped,
        op.Where(alive, weights, zero),
    )


def _softmax_with_sink(op: OpBuilder, scores: Tensor, sink: Tensor) -> Tensor:
    """Softmax over the last axis and one more score, which is left out of the result."""
    length = op.Shape(scores, start=-1)
    column = op.Concat(op.Shape(scores, end=-1), op.const(np.array([1])), axis=0)
    more = op.Concat(scores, op.Expand(sink, column), axis=-1)
    return op.Slice(op.Softmax(more, axis=-1), [0], length, [-1])


def _combine(
    op: OpBuilder, bias: Tensor | None, allowed: Sequence[Tensor], like: Tensor
) -> Tensor | None:
    if not allowed:
        return bias
    together = allowed[0]
    for other in allowed[1:]:
        together = op.And(together, other)
    base = op.like(0.0, like) if bias is None else bias
    return op.Where(together, base, op.like(float("-inf"), like))


def positions(op: OpBuilder, x: Tensor, axis: int) -> Tensor:
    """0, 1, 2, … along an axis of `x`, as INT64."""
    size = x.shape[axis] if x.shape is not None else None
    if isinstance(size, int):
        return op.const(np.arange(size, dtype=np.int64))
    length = op.Squeeze(op.dim_of(x, axis), [0])
    return op.Range(op.const(np.array(0)), length, op.const(np.array(1)))


def window(
    op: OpBuilder,
    q: Tensor,
    k: Tensor,
    offset: Tensor | None,
    *,
    left: int = -1,
    right: int = -1,
) -> Tensor:
    """Which key each query may see: at most `left` before and `right` after its position.

    `offset`, a scalar or of shape [batch], is the position of the first query; the result is
    [queries, keys], or [batch, 1, queries, keys] for an offset per batch. -1 sets no limit.
    """
    lengths = [x.shape[2] if x.shape is not None else None for x in (q, k)]
    if offset is None and all(isinstance(n, int) for n in lengths):
        rows, columns = (int(n) for n in lengths if isinstance(n, int))
        if rows * columns <= CONSTANT_MASK:
            ahead = np.arange(columns)[None, :] - np.arange(rows)[:, None]
            inside = (ahead <= right) if right >= 0 else np.ones_like(ahead, bool)
            return op.const(inside & (ahead >= -left) if left >= 0 else inside)
    row = op.Unsqueeze(positions(op, q, 2), [1])
    column = op.Unsqueeze(positions(op, k, 2), [0])
    if offset is not None:
        row = row + offset
    inside_parts = []
    if right >= 0:
        inside_parts.append(column <= (row + right if right else row))
    if left >= 0:
        inside_parts.append(column >= row - left)
    return op.And(*inside_parts) if len(inside_parts) == 2 else inside_parts[0]


def rotate(
    op: OpBuilder,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool,
    rotary_dim: int = 0,
) -> Tensor:
    """Rotate pairs along the last axis of a 4-D tensor; cos and sin broadcast to half of it."""
    rest = None
    if rotary_dim and rotary_dim != (x.shape[-1] if x.shape is not None else None):
        rest = op.Slice(x, [rotary_dim], [2**62], [-1])
        x = op.Slice(x, [0], [rotary_dim], [-1])
    if interleaved:
        pairs = op.Reshape(x, [0, 0, 0, -1, 2])
        a, b = (op.Squeeze(t, [-1]) for t in op.many("Split", pairs, [1, 1], axis=-1, outputs=2))
    else:
        a, b = op.many("Split", x, axis=-1, num_outputs=2, outputs=2)
    if interleaved:
        real, imaginary = a * cos - b * sin, a * sin + b * cos
        both = op.Concat(op.Unsqueeze(real, [-1]), op.Unsqueeze(imaginary, [-1]), axis=-1)
        turned = op.Reshape(both, [0, 0, 0, -1])
    else:  # fewer nodes than by halves, and the angles of all heads and layers are the same values
        twice, signed = op.Concat(cos, cos, axis=-1), op.Concat(op.Neg(sin), sin, axis=-1)
        turned = x * twice + op.Concat(b, a, axis=-1) * signed
    return turned if rest is None else op.Concat(turned, rest, axis=-1)
