"""Mixtures of experts (`MoE` and `QMoE` of domain com.microsoft), written with standard operators.

Every expert sees every token, in one batched product per layer, and what the router did not
choose is multiplied by zero: the size of the graph does not depend on the number of experts, and
no shape on what is chosen. It costs as many products as there are experts.
"""

from __future__ import annotations

import numpy as np

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .bits import unpack


def moe(
    op: OpBuilder, x: Tensor, router: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor,
    b2: Tensor | None, w3: Tensor | None, b3: Tensor | None,
    *, k: int = 1, activation_type: str = "relu", normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0, swiglu_fusion: int = 0, swiglu_limit: float = float("inf"),
    activation_alpha: float = 1.0, activation_beta: float = 0.0,
) -> Tensor:  # fmt: skip
    """Σₑ sₑ·fc2ₑ(activation(fc1ₑ(x))), with the k largest probabilities of the router as s."""
    _refuse_sparse_mixer("MoE", use_sparse_mixer)
    chosen, places = op.many("TopK", op.Softmax(router, axis=-1), [k], axis=-1, outputs=2)
    if normalize_routing_weights:
        chosen = chosen / op.ReduceSum(chosen, [-1], keepdims=1)
    gate = Gate(activation_type, swiglu_fusion, swiglu_limit, activation_alpha, activation_beta)
    tokens = op.Unsqueeze(op.Reshape(x, [-1, _known(w2, 1)]), [0])
    hidden = gate(op, _layer(op, tokens, w1, b1), _third(op, tokens, w3, b3))
    return _mixed(op, x, _layer(op, hidden, w2, b2), chosen, places, router)


def qmoe(
    op: OpBuilder, x: Tensor, router: Tensor,
    w1: Tensor, s1: Tensor, b1: Tensor | None,
    w2: Tensor, s2: Tensor, b2: Tensor | None,
    w3: Tensor | None, s3: Tensor | None, b3: Tensor | None,
    z1: Tensor | None, z2: Tensor | None, z3: Tensor | None, router_weights: Tensor | None,
    *, k: int = 1, activation_type: str = "relu", normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0, swiglu_fusion: int = 0, swiglu_limit: float = float("inf"),
    activation_alpha: float = 1.0, activation_beta: float = 0.0, expert_weight_bits: int = 4,
    block_size: int = 0, quant_type: str = "int", weights_prepacked: int = -1,
) -> Tensor:  # fmt: skip
    """`moe` with weights of few bits, a scale per row or per block.

    As in onnxruntime's CPU kernel the k chosen scores share one softmax, whatever
    `normalize_routing_weights` says; with `router_weights` these are the shares.
    """
    _refuse_sparse_mixer("QMoE", use_sparse_mixer)
    if quant_type != "int" or weights_prepacked > 0:
        raise ModelError(
            f"QMoE with quant_type {quant_type!r} or weights packed for a device is not supported. "
            "Build the model with integer weights that are not prepacked."
        )
    chosen, places = op.many("TopK", router, [k], axis=-1, outputs=2)
    if router_weights is None:
        chosen = op.Softmax(chosen, axis=-1)
    else:
        chosen = op.GatherElements(router_weights, places, axis=-1)
        if normalize_routing_weights:
            chosen = chosen / op.ReduceSum(chosen, [-1], keepdims=1)

    def plain(w: Tensor, s: Tensor, z: Tensor | None) -> Tensor:
        return _dequantized(op, w, s, z, expert_weight_bits, block_size)

    gate = Gate(activation_type, swiglu_fusion, swiglu_limit, activation_alpha, activation_beta)
    tokens = op.Unsqueeze(op.Reshape(x, [-1, _known(w2, 1)]), [0])
    third = plain(w3, s3, z3) if w3 is not None and s3 is not None else None
    hidden = gate(op, _layer(op, tokens, plain(w1, s1, z1), b1), _third(op, tokens, third, b3))
    return _mixed(op, x, _layer(op, hidden, plain(w2, s2, z2), b2), chosen, places, router)


class Gate:
    """What stands between the two layers of an expert."""

    def __init__(self, kind: str, fusion: int, limit: float, alpha: float, beta: float) -> None:
        self.kind, self.fusion = kind, fusion
        self.limit, self.alpha, self.beta = limit, alpha, beta

    def __call__(self, op: OpBuilder, first: Tensor, third: Tensor | None) -> Tensor:
        """Of what the first layer gives and, where there is one, the third."""
        if self.kind == "swiglu":
            return self._swiglu(op, first, third)
        y = self._activated(op, first)
        return y if third is None else y * third

    def _activated(self, op: OpBuilder, x: Tensor) -> Tensor:
        if self.kind == "relu":
            return op.Relu(x)
        if self.kind == "silu":
            return x * op.Sigmoid(x)
        if self.kind == "gelu":  # onnxruntime computes the approximation
            inner = x * (x * x * 0.035677408136300125 + 0.7978845608028654)
            return x * (op.Tanh(inner) * 0.5 + 0.5)
        if self.kind == "identity":
            return x
        raise ModelError(f"A mixture of experts with activation {self.kind!r} is not supported.")

    def _swiglu(self, op: OpBuilder, first: Tensor, third: Tensor | None) -> Tensor:
        """G·σ(αG)·(L + β), with G and L in one product or in two."""
        if self.fusion == 1:  # g l g l …
            pairs = op.Reshape(first, op.const(np.array([0, 0, -1, 2])))
            parts = op.many("Split", pairs, [1, 1], axis=-1, outputs=2)
            gate, linear = (op.Squeeze(p, [-1]) for p in parts)
        elif self.fusion == 2:  # g g … l l …
            gate, linear = op.many("Split", first, axis=-1, num_outputs=2, outputs=2)
        elif third is not None:
            gate, linear = first, third
        else:
            raise ModelError("A mixture of experts with swiglu needs fc3, or `swiglu_fusion`.")
        if np.isfinite(self.limit):
            high, low = op.like(self.limit, first), op.like(-self.limit, first)
            gate, linear = op.Min(gate, high), op.Clip(linear, low, high)
        shifted = linear + self.beta if self.beta else linear
        return gate * op.Sigmoid(gate * self.alpha) * shifted


def _refuse_sparse_mixer(name: str, asked: int) -> None:
    if asked:
        raise ModelError(
            f"{name} with use_sparse_mixer is not supported: onnxruntime's CPU kernel ignores it."
        )


def _known(weight: Tensor, axis: int) -> int:
    size = weight.dim(axis)
    if not isinstance(size, int):
        raise ModelError("A mixture of experts needs weights whose shapes are known.")
    return size


def _layer(op: OpBuilder, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b for each expert: (1 or experts, tokens, in) to (experts, tokens, out)."""
    y = op.MatMul(x, op.Transpose(weight, perm=[0, 2, 1]))
    return y if bias is None else y + op.Unsqueeze(bias, [1])


def _third(op: OpBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return None if weight is None else _layer(op, x, weight, bias)


def _mixed(
    op: OpBuilder, x: Tensor, outputs: Tensor, chosen: Tensor, places: Tensor, router: Tensor
) -> Tensor:
    """The experts' outputs (experts, tokens, size), weighed by the chosen scores."""
    nothing = op.full(op.Shape(router), 0, chosen.dtype)
    scores = op.ScatterElements(nothing, places, chosen, axis=-1)
    weighed = outputs * op.Unsqueeze(op.Transpose(scores, perm=[1, 0]), [2])
    return op.reshape_like(op.ReduceSum(weighed, [0], keepdims=0), x)


def _dequantized(
    op: OpBuilder, codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, block: int
) -> Tensor:
    """Weights (experts, out, in) from integers packed along the last axis."""
    experts, rows = _known(codes, 0), _known(codes, 1)
    width = _known(codes, 2) * (8 // bits)
    blocks = width // block if block else 1
    shape = [experts, rows, blocks, width // blocks]
    numbers = op.Cast(unpack(op, codes, bits, shape), to=scales.dtype)
    if zeros is None:
        centred = numbers - float(2 ** (bits - 1))
    else:
        whole = unpack(op, zeros, bits, [experts, -1] if not block else [experts, rows, -1])
        columns = rows if not block else blocks
        shift = op.Slice(whole, [0], [columns], [-1])
        shift = op.Reshape(op.Cast(shift, to=scales.dtype), [experts, rows, blocks, 1])
        centred = numbers - shift
    factor = op.Reshape(scales, [experts, rows, blocks, 1])
    return op.Reshape(centred * factor, [experts, rows, width])
