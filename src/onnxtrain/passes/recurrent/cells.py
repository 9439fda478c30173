"""One time step of LSTM, GRU and RNN, as nodes; their gradients follow from those of the nodes.

What does not depend on the state, X·Wᵀ and the biases, is computed for all time steps before the
loop and comes in as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from ...errors import ModelError
from ...graph import OpBuilder, Tensor

Activation: TypeAlias = Callable[[OpBuilder, Tensor], Tensor]

_PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign",
          "softplus": "Softplus"}  # fmt: skip
_WITH_ALPHA = {
    "leakyrelu": ("LeakyRelu", 0.01),
    "thresholdedrelu": ("ThresholdedRelu", 1.0),
    "elu": ("Elu", 1.0),
}
_WITH_BOTH = {"affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5)}


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """The activation functions of all directions; each takes the next alpha and beta it uses."""
    rest_a, rest_b = list(alphas), list(betas)
    functions: list[Activation] = []
    for name in names:
        key = name.lower()
        if key in _PLAIN:
            functions.append(_plain(_PLAIN[key]))
        elif key in _WITH_ALPHA:
            operator, default = _WITH_ALPHA[key]
            functions.append(_plain(operator, alpha=rest_a.pop(0) if rest_a else default))
        elif key in _WITH_BOTH:
            alpha = rest_a.pop(0) if rest_a else _WITH_BOTH[key][0]
            beta = rest_b.pop(0) if rest_b else _WITH_BOTH[key][1]
            functions.append(_with_both(key, alpha, beta))
        else:
            known = sorted([*_PLAIN, *_WITH_ALPHA, *_WITH_BOTH])
            raise ModelError(f"{name!r} is no activation of ONNX; known: {', '.join(known)}.")
    return functions


def _plain(operator: str, **attributes: Any) -> Activation:
    return lambda op, z: op.emit(operator, [z], 1, **attributes)[0]


def _with_both(key: str, alpha: float, beta: float) -> Activation:
    def apply(op: OpBuilder, z: Tensor) -> Tensor:
        if key == "affine":
            return op.Add(op.Mul(z, alpha), beta)
        if key == "scaledtanh":
            return op.Mul(op.Tanh(op.Mul(z, beta)), alpha)
        return op.HardSigmoid(z, alpha=alpha, beta=beta)

    return apply


@dataclass(frozen=True)
class Weights:
    """What one direction of the operator has, without the axis of directions.

    Attributes:
        x: the sequence, with time first.
        w: weights of the input; r: weights of the state; wb, rb: their biases.
        p: peephole weights.
        size: hidden size.
        flags: the operator's attributes.
        functions: activation functions.
    """

    x: Tensor
    w: Tensor
    r: Tensor
    wb: Tensor | None
    rb: Tensor | None
    p: Tensor | None
    size: int
    flags: Mapping[str, Any]
    functions: Sequence[Activation]


Step: TypeAlias = Callable[[OpBuilder, list[Tensor], list[Tensor]], list[Tensor]]
"""(builder of the body, states, slices) → new states; the first state is h."""


def _clipped(op: OpBuilder, weights: Weights, z: Tensor) -> Tensor:
    limit = float(weights.flags.get("clip") or 0.0)
    if not limit:
        return z
    return op.Clip(z, op.const(-limit, z.dtype), op.const(limit, z.dtype))


def _project(op: OpBuilder, k: Weights, gates: int, bias: Tensor | None) -> Tensor:
    """X·Wᵀ + b, all time steps at once."""
    rows = op.Gemm(op.Flatten(k.x, axis=2), k.w, bias, transB=1)
    width, dims = gates * k.size, [k.x.dim(0), k.x.dim(1)]
    sizes = [size if isinstance(size, int) else -1 for size in dims]
    shape = op.const([*sizes, width])
    if sizes.count(-1) == 2 or 0 in sizes:
        shape = op.Concat(op.Shape(k.x, start=0, end=2), op.const([width]), axis=0)
    results = op.Reshape(rows, shape)
    results.value.type, results.value.shape = k.x.value.type, ir.Shape([*dims, width])
    return results


def rnn(op: OpBuilder, k: Weights) -> tuple[list[Tensor], Step]:
    """h = f(X·Wᵀ + H·Rᵀ + b)."""
    bias = None if k.wb is None or k.rb is None else k.wb + k.rb

    def step(op: OpBuilder, states: list[Tensor], slices: list[Tensor]) -> list[Tensor]:
        z = op.Gemm(states[0], k.r, slices[0], transB=1)
        return [k.functions[0](op, _clipped(op, k, z))]

    return [_project(op, k, 1, bias)], step


def gru(op: OpBuilder, k: Weights) -> tuple[list[Tensor], Step]:
    """Gates update and reset, and a candidate; the new state lies between candidate and old one."""
    reset_after = bool(k.flags.get("linear_before_reset"))
    sizes = op.const([2 * k.size, k.size])
    bias = k.wb
    if k.wb is not None and k.rb is not None and not reset_after:
        bias = k.wb + k.rb
    gates, new = op.many("Split", _project(op, k, 3, bias), sizes, outputs=2, axis=-1)
    r_gates = r_new = k.r
    if not reset_after:
        r_gates, r_new = op.many("Split", k.r, sizes, outputs=2, axis=0)
    f, g = k.functions

    def step(op: OpBuilder, states: list[Tensor], slices: list[Tensor]) -> list[Tensor]:
        h, (x_gates, x_new) = states[0], slices
        if reset_after:  # Rₕ·h is part of one product with the gates; the reset gate scales it
            from_h = op.Gemm(h, k.r, k.rb, transB=1)
            h_gates, h_new = op.many("Split", from_h, sizes, outputs=2, axis=-1)
            gates = x_gates + h_gates
        else:
            gates = op.Gemm(h, r_gates, x_gates, transB=1)
        both = f(op, _clipped(op, k, gates))
        update, reset = op.many("Split", both, outputs=2, axis=-1, num_outputs=2)
        inner = x_new + reset * h_new if reset_after else op.Gemm(reset * h, r_new, x_new, transB=1)
        n = g(op, _clipped(op, k, inner))
        return [n + update * (h - n)]

    return [gates, new], step


def lstm(op: OpBuilder, k: Weights) -> tuple[list[Tensor], Step]:
    """Gates input, output and forget, a candidate, and a cell state."""
    bias = None if k.wb is None or k.rb is None else k.wb + k.rb
    f, g, act = k.functions
    peep = () if k.p is None else op.many("Split", k.p, outputs=3, axis=0, num_outputs=3)
    coupled = bool(k.flags.get("input_forget"))
    sizes = op.const([3 * k.size, k.size])

    def step(op: OpBuilder, states: list[Tensor], slices: list[Tensor]) -> list[Tensor]:
        h, c = states
        z, new = op.many("Split", op.Gemm(h, k.r, slices[0], transB=1), sizes, outputs=2, axis=-1)
        if peep or coupled:
            zi, zo, zf = op.many("Split", z, outputs=3, axis=-1, num_outputs=3)
            i = f(op, _clipped(op, k, zi + c * peep[0] if peep else zi))
            forget = (
                1.0 - i if coupled else f(op, _clipped(op, k, zf + c * peep[2] if peep else zf))
            )
        else:
            gates = f(op, _clipped(op, k, z))
            i, o, forget = op.many("Split", gates, outputs=3, axis=-1, num_outputs=3)
        c = forget * c + i * g(op, _clipped(op, k, new))
        if peep or coupled:
            o = f(op, _clipped(op, k, zo + c * peep[1] if peep else zo))
        return [o * act(op, c), c]

    return [_project(op, k, 4, bias)], step


CELLS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "RNN": (rnn, 1, ("Tanh",)),
    "GRU": (gru, 3, ("Sigmoid", "Tanh")),
    "LSTM": (lstm, 4, ("Sigmoid", "Tanh", "Tanh")),
}
"""Operator → (its step, number of gates, default activations)."""
