"""onnxruntime's contrib operators (domain com.microsoft), written with standard ones.

They come from models that onnxruntime optimised and saved, and from its exporters for language
models. Each lowering says what the operator computes; names follow onnxruntime's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .bits import unpack
from .contrib_attention import attention, group_query_attention, multi_head_attention, rotary
from .experts import moe, qmoe
from .few_bits import MS as MS
from .few_bits import matmul_nbits
from .newer import causal_conv_with_state, rms
from .rewrite import Lowering

# --- activations ---------------------------------------------------------------------------------


def gelu(op: OpBuilder, x: Tensor) -> Tensor:
    """x·Φ(x), with the error function."""
    return x * (op.Erf(x * 0.7071067811865476) * 0.5 + 0.5)


def bias_gelu(op: OpBuilder, x: Tensor, bias: Tensor) -> Tensor:
    """Gelu of a sum."""
    return gelu(op, x + bias)


def fast_gelu(op: OpBuilder, x: Tensor, bias: Tensor | None) -> Tensor:
    """The tanh approximation of Gelu."""
    x = x if bias is None else x + bias
    inner = x * (x * x * 0.035677408136300125 + 0.7978845608028654)
    return x * (op.Tanh(inner) * 0.5 + 0.5)


def quick_gelu(op: OpBuilder, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """x·σ(αx)."""
    return x * op.Sigmoid(x * alpha)


def bias_softmax(
    op: OpBuilder, x: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int = 1
) -> Tensor:
    """Softmax of a sum over all axes from `axis` on.

    The bias broadcasts as usual (`is_inner_broadcast`), or along the leading axes of `x`.
    """
    if not is_inner_broadcast:
        missing = x.rank - bias.rank
        bias = op.Unsqueeze(bias, list(range(missing))) if missing else bias
    total = x + bias
    if axis % x.rank == x.rank - 1:
        return op.Softmax(total, axis=-1)
    flat = op.Softmax(op.Flatten(total, axis=axis), axis=-1)
    return op.reshape_like(flat, x)


def _activate(op: OpBuilder, x: Tensor, name: str, params: Sequence[float]) -> Tensor:
    if not name:
        return x
    if name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"):
        return op.emit(name, [x], 1)[0]
    if name == "LeakyRelu":
        return op.LeakyRelu(x, alpha=params[0] if params else 0.01)
    if name in ("Elu", "ThresholdedRelu"):
        return op.emit(name, [x], 1, alpha=params[0] if params else 1.0)[0]
    if name == "HardSigmoid":
        alpha, beta = (*params, 0.2, 0.5)[:2] if len(params) != 1 else (params[0], 0.5)
        return op.HardSigmoid(x, alpha=alpha, beta=beta)
    if name == "Clip" and len(params) == 2:
        return op.Clip(x, op.like(params[0], x), op.like(params[1], x))
    raise ModelError(f"The fused activation {name!r} is not known.")


# --- products and convolutions -------------------------------------------------------------------


def fused_matmul(
    op: OpBuilder,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """α·A·B with either operand's last axes (and leading axes) transposed first."""
    a = _transposed(op, a, transA, transBatchA)
    b = _transposed(op, b, transB, transBatchB)
    product = a @ b
    return product if alpha == 1.0 else product * alpha


def _transposed(op: OpBuilder, x: Tensor, last: int, batch: int) -> Tensor:
    if not last and not batch:
        return x
    axes = list(range(x.rank))
    if batch and len(axes) > 2:
        # the batch axes move between the two matrix axes' first: [m, batch…, k] → [batch…, m, k]
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if last and len(axes) > 1:
        axes[-1], axes[-2] = axes[-2], axes[-1]
    return op.Transpose(x, perm=axes)


def fused_gemm(
    op: OpBuilder,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attributes: Any,
) -> Tensor:
    """Gemm and an activation."""
    params = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return _activate(op, op.Gemm(a, b, c, **attributes), activation, params)


def fused_conv(
    op: OpBuilder,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    z: Tensor | None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Any,
) -> Tensor:
    """Convolution, plus a residual, then an activation."""
    y = op.Conv(x, w, b, **attributes)
    return _activate(op, y if z is None else y + z, activation, list(activation_params))


def gather_block_quantized(
    op: OpBuilder, data: Tensor, indices: Tensor, scales: Tensor, zeros: Tensor | None,
    *, bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> Tensor:  # fmt: skip
    """Rows of a table that is stored in blocks of few-bit integers, a scale per block.

    Rows are gathered before they are unpacked; the gradient flows to the scales.
    """
    rank = data.rank
    if gather_axis % rank or quantize_axis % rank != rank - 1:
        raise ModelError(
            "GatherBlockQuantized is supported along the first axis, in blocks along the last."
        )
    packed = data.dtype == ir.DataType.UINT8
    blocks, stored = scales.dim(rank - 1), data.dim(rank - 1)
    if not isinstance(blocks, int) or not isinstance(stored, int):
        raise ModelError("GatherBlockQuantized needs a table whose shape is known.")
    width = stored * (8 // bits) if packed else stored
    leading = [0] * (indices.rank + rank - 2)

    def numbers(table: Tensor, count: int) -> Tensor:
        if not packed:  # four-bit types: Gather does not know them
            return op.Gather(op.Cast(table, to=scales.dtype), indices, axis=0)
        rows = unpack(op, op.Gather(table, indices, axis=0), bits, [*leading, -1])
        return op.Cast(op.Slice(rows, [0], [count], [-1]), to=scales.dtype)

    codes = numbers(data, width)
    missing = blocks * block_size - width
    if missing:
        codes = op.Pad(codes, [*[0] * (2 * len(leading) + 1), missing])
    centred = op.Reshape(codes, [*leading, blocks, block_size])
    if zeros is not None:
        centred = centred - op.Unsqueeze(numbers(zeros, blocks), [-1])
    elif packed:
        centred = centred - float(2 ** (bits - 1))
    factor = op.Unsqueeze(op.Gather(scales, indices, axis=0), [-1])
    y = op.Reshape(centred * factor, [*leading, blocks * block_size])
    return op.Slice(y, [0], [width], [-1]) if missing else y


# --- normalizations ------------------------------------------------------------------------------


def skip_layer_normalization(
    op: OpBuilder, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None,
    bias: Tensor | None, *, epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """Layer normalization of a sum; the sum is the fourth output."""
    total = x + skip if bias is None else x + skip + bias
    return op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon), None, None, total


def skip_rms_normalization(
    op: OpBuilder, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None,
    *, epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """RMS normalization of a sum; the sum is the fourth output."""
    total = x + skip if bias is None else x + skip + bias
    y, root = rms(op, total, gamma, axis=-1, epsilon=epsilon)
    return y, None, root, total


def simplified_layer_normalization(
    op: OpBuilder, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:  # fmt: skip
    """RMS normalization, under its first name."""
    return rms(op, x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)


def embed_layer_normalization(
    op: OpBuilder, ids: Tensor, segments: Tensor | None, words: Tensor, position_table: Tensor,
    segment_table: Tensor | None, gamma: Tensor, beta: Tensor, mask: Tensor | None,
    position_ids: Tensor | None, *, epsilon: float = 1e-12, mask_index_type: int | None = None,
) -> Any:  # fmt: skip
    """Word, position and segment embeddings, summed and normalized."""
    total = op.Gather(words, ids, axis=0)
    if position_ids is None:
        length = op.Slice(op.Shape(ids), [1], [2])
        total = total + op.Slice(position_table, op.const(np.array([0])), length, [0])
    else:
        total = total + op.Gather(position_table, position_ids, axis=0)
    if segments is not None and segment_table is not None:
        total = total + op.Gather(segment_table, segments, axis=0)
    y = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon)
    if mask is None:
        count = op.full(op.Slice(op.Shape(ids), [0], [1]), 0, ir.DataType.INT32)
    else:
        count = op.ReduceSum(mask, [1], keepdims=0)
    return y, count, total


def causal_conv(
    op: OpBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None,
    *, activation: str = "none", ndim: int = 1, state_window: int = 0,
) -> Any:  # fmt: skip
    """The standard operator under its former domain, of one dimension."""
    if ndim != 1 or state_window:
        raise ModelError("CausalConvWithState with ndim above 1 or state_window is not supported.")
    return causal_conv_with_state(op, x, weight, bias, past, activation=activation)


def trilu(op: OpBuilder, x: Tensor, k: Tensor | None, *, upper: int = 1) -> Tensor:
    """The standard operator under its former domain."""
    return op.Trilu(x, k, upper=upper)


def gather_nd(op: OpBuilder, x: Tensor, indices: Tensor) -> Tensor:
    """The standard operator under its former domain."""
    return op.GatherND(x, op.Cast(indices, to=ir.DataType.INT64))


CONTRIB: dict[tuple[str, str], Lowering] = {
    (MS, "Gelu"): gelu,
    (MS, "FastGelu"): fast_gelu,
    (MS, "QuickGelu"): quick_gelu,
    (MS, "BiasGelu"): bias_gelu,
    (MS, "BiasSoftmax"): bias_softmax,
    (MS, "FusedMatMul"): fused_matmul,
    (MS, "TransposeMatMul"): fused_matmul,
    (MS, "FusedGemm"): fused_gemm,
    (MS, "FusedConv"): fused_conv,
    (MS, "MatMulNBits"): matmul_nbits,
    (MS, "GatherBlockQuantized"): gather_block_quantized,
    (MS, "MoE"): moe,
    (MS, "QMoE"): qmoe,
    (MS, "CausalConvWithState"): causal_conv,
    (MS, "SkipLayerNormalization"): skip_layer_normalization,
    (MS, "SkipSimplifiedLayerNormalization"): skip_rms_normalization,
    (MS, "SimplifiedLayerNormalization"): simplified_layer_normalization,
    ("", "SimplifiedLayerNormalization"): simplified_layer_normalization,
    (MS, "EmbedLayerNormalization"): embed_layer_normalization,
    (MS, "Attention"): attention,
    (MS, "MultiHeadAttention"): multi_head_attention,
    (MS, "GroupQueryAttention"): group_query_attention,
    (MS, "RotaryEmbedding"): rotary,
    (MS, "Trilu"): trilu,
    (MS, "GatherND"): gather_nd,
}
