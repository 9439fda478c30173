"""Losses between numbers: MSE, L1, Huber, Poisson and Gaussian likelihood."""

from __future__ import annotations

import math

from ..graph import OpBuilder, Tensor
from ..graph.block import BlockError
from .base import Loss, target_like


class MSELoss(Loss):
    """Mean squared error, (x − t)²."""

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """(x − t)²."""
        difference = x - t
        return difference * difference


class L1Loss(Loss):
    """Mean absolute error, |x − t|."""

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """|x − t|."""
        return op.Abs(x - t)


class HuberLoss(Loss):
    """Quadratic near the target, linear beyond `delta`.

    With a = |x − t| and q = min(a, δ): q·(a − q/2).
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not delta > 0:
            raise BlockError(f"delta must be positive, not {delta}.")
        self._delta = delta

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """q·(a − q/2)."""
        a = op.Abs(x - t)
        q = op.Min(a, self._delta)
        return q * (a - q * 0.5)


class SmoothL1Loss(Loss):
    """Huber's loss over its threshold `beta`; with beta 0 the absolute error."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        if beta < 0:
            raise BlockError(f"beta must not be negative, and it is {beta}.")
        self._beta = beta

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """Huber's loss over β."""
        if self._beta == 0:
            return L1Loss().elements(op, x, t)
        loss = HuberLoss(delta=self._beta).elements(op, x, t)
        return loss if self._beta == 1 else loss * (1.0 / self._beta)


class PoissonNLLLoss(Loss):
    """Negative log likelihood of counts t under a Poisson distribution.

    The input x is the logarithm of the rate (exp(x) − t·x) or the rate (x − t·log(x + ε)).

    Args:
        log_input: whether the input is a logarithm.
        full: add Stirling's approximation of log t! where t > 1.
        eps: keeps the logarithm of a rate finite.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self._log_input, self._full, self._eps = log_input, full, eps

    def elements(self, op: OpBuilder, x: Tensor, t: Tensor) -> Tensor:
        """exp(x) − t·x, or x − t·log(x + ε)."""
        loss = op.Exp(x) - t * x if self._log_input else x - t * op.Log(x + self._eps)
        return loss + _stirling(op, t) if self._full else loss


def _stirling(op: OpBuilder, t: Tensor) -> Tensor:
    """t·log t − t + ½·log(2πt) where t > 1, else 0."""
    safe = op.Max(t, 1.0)
    log = op.Log(safe)
    value = safe * log - safe + (log + math.log(2 * math.pi)) * 0.5
    return op.Cast(t > 1.0, to=t.dtype) * value


class GaussianNLLLoss(Loss):
    """Negative log likelihood under a normal distribution whose variance is predicted too.

    ½·(log v + (x − t)²/v) with v = max(variance, ε).

    Args:
        full: add the constant ½·log 2π.
        eps: smallest variance.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._full, self._eps = full, eps

    def elements(self, op: OpBuilder, x: Tensor, variance: Tensor, t: Tensor) -> Tensor:
        """½·(log v + (x − t)²/v)."""
        difference, v = x - t, op.Max(variance, self._eps)
        loss = (op.Log(v) + difference * difference / v) * 0.5
        return loss + 0.5 * math.log(2 * math.pi) if self._full else loss

    def build(self, loss_input_name: str, variance_name: str, target_name: str = "target") -> str:  # type: ignore[override]
        """Append the loss of two outputs, mean and variance."""
        op = self._builder
        x, variance = op.value(loss_input_name), op.value(variance_name)
        return op.append(self.loss(op, x, variance, target_like(op, target_name, x)))
