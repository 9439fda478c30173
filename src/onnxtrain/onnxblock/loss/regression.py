"""Losses between numbers: MSE, L1, Huber, Poisson and Gaussian likelihood."""

from __future__ import annotations

import math

from ..block import BlockError
from ..emit import Emitter
from .common import Loss, target


class MSELoss(Loss):
    """Mean squared error, (x − t)².

    Example:
        >>> from onnxtrain import onnxblock
        >>> onnxblock.loss.MSELoss(reduction="median")
        Traceback (most recent call last):
        onnxtrain.onnxblock.block.BlockError: Reduction 'median' not supported. \
Use one of mean, sum, none.
    """

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit = self._emit
        difference = emit.sub(loss_input_name, target(emit, target_name, loss_input_name))
        return self._reduce(emit, emit.mul(difference, difference))


class L1Loss(Loss):
    """Mean absolute error, |x − t|."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit = self._emit
        difference = emit.sub(loss_input_name, target(emit, target_name, loss_input_name))
        return self._reduce(emit, emit.node("Abs", difference))


class HuberLoss(Loss):
    """Quadratic near the target, linear beyond `delta`.

    With a = |x − t| and q = min(a, δ): q·(a − q/2).
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not delta > 0:
            raise BlockError(f"delta must be positive, not {delta}.")
        self._delta, self.factor = delta, 1.0

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit = self._emit
        difference = emit.sub(loss_input_name, target(emit, target_name, loss_input_name))
        a = emit.node("Abs", difference)
        q = emit.at_most(a, self._delta)
        loss = emit.mul(q, emit.sub(a, emit.scale(q, 0.5)))
        return self._reduce(emit, emit.scale(loss, self.factor))


class SmoothL1Loss(Loss):
    """Huber's loss over its threshold `beta`; with beta 0 the absolute error."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        if beta < 0:
            raise BlockError(f"beta must not be negative, and it is {beta}.")
        if beta == 0:
            self._inner: Loss = L1Loss(reduction)
        else:
            inner = HuberLoss(reduction, beta)
            inner.factor = 1.0 / beta
            self._inner = inner

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        name: str = self._inner(loss_input_name, target_name)
        return name


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

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Append the loss; the target becomes a graph input unless it exists."""
        emit, x = self._emit, loss_input_name
        t = target(emit, target_name, x)
        if self._log_input:
            loss = emit.sub(emit.node("Exp", x), emit.mul(t, x))
        else:
            loss = emit.sub(x, emit.mul(t, emit.node("Log", emit.shift(x, self._eps))))
        if self._full:
            loss = emit.add(loss, _stirling(emit, t, x))
        return self._reduce(emit, loss)


def _stirling(emit: Emitter, t: str, like: str) -> str:
    """t·log t − t + ½·log(2πt) where t > 1, else 0."""
    large = emit.cast(emit.node("Greater", t, emit.number(1.0, like)), emit.dtype(like))
    safe = emit.at_least(t, 1.0)
    log = emit.node("Log", safe)
    value = emit.sub(emit.mul(safe, log), safe)
    half = emit.scale(emit.shift(log, math.log(2 * math.pi)), 0.5)
    return emit.mul(large, emit.add(value, half))


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

    def build(self, loss_input_name: str, variance_name: str, target_name: str = "target") -> str:
        """Append the loss of two outputs, mean and variance."""
        emit, x = self._emit, loss_input_name
        difference = emit.sub(x, target(emit, target_name, x))
        v = emit.at_least(variance_name, self._eps)
        square = emit.div(emit.mul(difference, difference), v)
        loss = emit.scale(emit.add(emit.node("Log", v), square), 0.5)
        if self._full:
            loss = emit.shift(loss, 0.5 * math.log(2 * math.pi))
        return self._reduce(emit, loss)
