"""The transforms that the optimizers are chains of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .linear import Linear, Scalar, plus, times
from .transform import Context

FIRST, SECOND = "first_order_moments", "second_order_moments"


def average(ctx: Context, name: str, rate: float, new: Linear) -> Tensor:
    """Exponential moving average: state ← rate·state + (1 − rate)·new."""
    return ctx.keep(name, Linear([(rate, ctx.states[name])]) + new * (1.0 - rate))


def with_square(update: Linear, share: float = 1.0) -> tuple[Linear, Linear]:
    """The update as one term, and `share` times its square.

    Of c·t with a factor c that is known at run time only, because gradients are clipped say, the
    square is that of √share·c·t: c²·t² would overflow where c·t does not, and costs as much.
    """
    update = update.evaluated()
    coefficient, tensor = update.terms[0]
    if not isinstance(coefficient, Tensor) or not share:
        return update, update.square() * share
    root = math.sqrt(share)
    part = tensor * times(coefficient, root)
    return Linear([(1.0 / root, part)]), Linear([(1.0, part * part)])


@dataclass(frozen=True)
class scale_by_learning_rate:  # noqa: N801  transforms read like functions in a chain
    """u ← −η·u: the step down the slope."""

    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        return update * times(ctx.learning_rate, -1.0)


@dataclass(frozen=True)
class add_decayed_weights:  # noqa: N801
    """u ← u + λ·p. First in a chain this is L2 regularisation, last it is decoupled decay."""

    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        return update + Linear([(ctx.weight_decay, ctx.param)])


@dataclass(frozen=True)
class subtract_decayed_weights:  # noqa: N801
    """u ← u − ηλ·p: decoupled decay for a chain that holds its own learning rate."""

    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        decay = times(times(ctx.learning_rate, ctx.weight_decay), -1.0)
        return update + Linear([(decay, ctx.param)])


@dataclass(frozen=True)
class shrink_updated_weights:  # noqa: N801
    """Decay what the update has made: p + u ← (1 − ηλ)(p + u), as Hugging Face's AdamW does."""

    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        decay = times(ctx.learning_rate, ctx.weight_decay)
        shrinkage = plus(1.0, times(decay, -1.0))
        return update * shrinkage + Linear([(times(decay, -1.0), ctx.param)])


@dataclass(frozen=True)
class clip_by_value:  # noqa: N801
    """u ← min(max(u, −limit), limit), element by element."""

    limit: float
    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        return Linear([(1.0, ctx.op.Clip(update.value(), -self.limit, self.limit))])


@dataclass(frozen=True)
class trace:  # noqa: N801
    """Momentum: b ← μ·b + (1 − dampening)·u; u ← b, or u + μ·b in Nesterov's form.

    The first step sets b to u without dampening, as PyTorch does.
    """

    momentum: float
    dampening: float = 0.0
    nesterov: bool = False
    states: ClassVar[tuple[str, ...]] = (FIRST,)
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        if self.nesterov:
            update = update.evaluated()
        fresh: Scalar = 1.0 - self.dampening
        if self.dampening:
            first = ctx.op.Equal(ctx.step, 1)
            one, damped = (ctx.op.const(np.array(x), ctx.param.dtype) for x in (1.0, fresh))
            fresh = ctx.op.Where(first, one, damped)
        buffer = ctx.keep(FIRST, Linear([(self.momentum, ctx.states[FIRST])]) + update * fresh)
        if self.nesterov:
            return update + Linear([(self.momentum, buffer)])
        return Linear([(1.0, buffer)])


@dataclass(frozen=True)
class scale_by_adam:  # noqa: N801
    r"""Adam's direction.

        m ← β₁·m + (1 − β₁)·u        v ← β₂·v + (1 − β₂)·u²

    With `correct_bias` and `eps_inside_correction` (PyTorch):
        u ← (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
    with `correct_bias` alone (Hugging Face, and the predecessor of this package):
        u ← √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    correct_bias: bool = True
    eps_inside_correction: bool = True
    states: ClassVar[tuple[str, ...]] = (FIRST, SECOND)
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        op = ctx.op
        update, square = with_square(update, 1.0 - self.b2)
        m = average(ctx, FIRST, self.b1, update)
        v = ctx.keep(SECOND, Linear([(self.b2, ctx.states[SECOND])]) + square)
        eps: Scalar = self.eps
        scale: Scalar = 1.0
        if self.correct_bias:
            # √(v/c₂) + ε = (√v + ε√c₂)/√c₂: the correction moves from the tensor to two scalars
            root = ctx.per_step(lambda t: op.Sqrt(1.0 - op.Pow(_double(op, self.b2), t)))
            scale = ctx.per_step(
                lambda t: (
                    op.Sqrt(1.0 - op.Pow(_double(op, self.b2), t))
                    / (1.0 - op.Pow(_double(op, self.b1), t))
                )
            )
            eps = times(root, self.eps) if self.eps_inside_correction else self.eps
        return Linear([(scale, m / (op.Sqrt(v) + eps))])


def _double(op: OpBuilder, number: float) -> Tensor:
    return op.const(np.array(number), ir.DataType.DOUBLE)


@dataclass(frozen=True)
class scale_by_sign_of_momentum:  # noqa: N801
    """Lion's direction: u' ← sign(β₁·m + (1 − β₁)·u), then m ← β₂·m + (1 − β₂)·u."""

    b1: float = 0.9
    b2: float = 0.99
    states: ClassVar[tuple[str, ...]] = (FIRST,)
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        update = update.evaluated()
        m = ctx.states[FIRST]
        mixed = Linear([(self.b1, m)]) + update * (1.0 - self.b1)
        average(ctx, FIRST, self.b2, update)
        return Linear([(1.0, ctx.op.Sign(mixed.value()))])


@dataclass(frozen=True)
class scale_by_sum_of_squares:  # noqa: N801
    """Adagrad's direction: s ← s + u²; u ← u / (√(s + s₀) + ε), over 1 + (t − 1)·decay."""

    lr_decay: float = 0.0
    initial: float = 0.0
    eps: float = 1e-10
    states: ClassVar[tuple[str, ...]] = (SECOND,)
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        op = ctx.op
        update, square = with_square(update)
        total = ctx.keep(SECOND, Linear([(1.0, ctx.states[SECOND])]) + square)
        if self.initial:  # states start at zero, so the start value is added when it is used
            total = total + self.initial
        direction = _divided(update, op.Sqrt(total) + self.eps)
        if self.lr_decay:
            direction *= ctx.per_step(lambda t: 1.0 / ((t - 1.0) * self.lr_decay + 1.0))
        return direction


@dataclass(frozen=True)
class scale_by_rms:  # noqa: N801
    """RMSprop's direction: v ← α·v + (1 − α)·u²; u ← u / (√(v − m²) + ε).

    m is the moving average of u when `centered`, else 0.
    """

    alpha: float = 0.99
    eps: float = 1e-8
    centered: bool = False
    elementwise: ClassVar[bool] = True

    @property
    def states(self) -> tuple[str, ...]:
        """The squares' average, and the gradients' when centered."""
        return (SECOND, "gradient_averages") if self.centered else (SECOND,)

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        update, square = with_square(update, 1.0 - self.alpha)
        v = ctx.keep(SECOND, Linear([(self.alpha, ctx.states[SECOND])]) + square)
        if self.centered:
            m = average(ctx, "gradient_averages", self.alpha, update)
            v = v - m * m
        return _divided(update, ctx.op.Sqrt(v) + self.eps)


@dataclass(frozen=True)
class scale_by_adadelta:  # noqa: N801
    """Adadelta's direction.

    v ← ρ·v + (1 − ρ)·u²; u ← √(d + ε) / √(v + ε) · u; d ← ρ·d + (1 − ρ)·u².
    """

    rho: float = 0.9
    eps: float = 1e-6
    states: ClassVar[tuple[str, ...]] = (SECOND, "update_averages")
    elementwise: ClassVar[bool] = True

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        op = ctx.op
        update, square = with_square(update, 1.0 - self.rho)
        v = ctx.keep(SECOND, Linear([(self.rho, ctx.states[SECOND])]) + square)
        d = ctx.states["update_averages"]
        ratio = op.Sqrt((d + self.eps) / (v + self.eps))
        coefficient, direction = update.terms[0]
        scaled = Linear([(coefficient, ratio * direction)])
        average(ctx, "update_averages", self.rho, scaled.square())
        return scaled


def _divided(update: Linear, by: Tensor) -> Linear:
    """The update, which is one term, over a tensor; its scalar stays outside."""
    coefficient, tensor = update.terms[0]
    return Linear([(coefficient, tensor / by)])


@dataclass(frozen=True)
class scale_by_trust_ratio:  # noqa: N801
    """Lamb's layer-wise step: u ← ‖p‖ / ‖u‖ · u; the factor is 1 where a norm is zero.

    `smallest` and `largest` limit the factor.
    """

    smallest: float = -math.inf
    largest: float = math.inf
    states: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = False

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        op = ctx.op
        value = update.value()
        of_param, of_update = op.ReduceL2(ctx.param, keepdims=0), op.ReduceL2(value, keepdims=0)
        usable = op.And(of_param > 0.0, of_update > 0.0)
        one = op.const(np.array(1.0), ctx.param.dtype)
        ratio = of_param / op.Where(usable, of_update, one)
        if self.largest != math.inf:
            ratio = op.Min(ratio, self.largest)
        if self.smallest > 0:  # a ratio of norms is never below zero
            ratio = op.Max(ratio, self.smallest)
        ratio = op.Where(usable, ratio, one)
        return Linear([(ratio, value)])
