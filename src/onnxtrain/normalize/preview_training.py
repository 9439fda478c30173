"""Adam, Adagrad and Momentum of ai.onnx.preview.training, as standard operators.

Each updates several tensors in one node: after the rate R and the count T come all tensors, then
all their gradients, then all their states. No runtime has kernels for them.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from .rewrite import Lowering, Table

DOMAIN = "ai.onnx.preview.training"
Update = Callable[..., tuple[Tensor, ...]]


def adam(
    op: OpBuilder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Tensor]:
    """Moments without correction; the rate is corrected instead, but for the count zero."""
    steps = op.Cast(count, to=rate.dtype)
    lost = 1.0 - op.Pow(op.like(alpha, rate), steps), 1.0 - op.Pow(op.like(beta, rate), steps)
    first = op.Greater(count, op.like(0, count))
    # A power of the count 0 would divide zero by zero: this branch is then not taken.
    denominator = op.Where(first, lost[0], op.like(1.0, rate))
    adjusted = op.Where(first, rate * op.Sqrt(lost[1]) / denominator, rate)

    def update(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = _regularized(x, g, norm_coefficient)
        v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * (g * g)
        x = x - op.as_type_of(adjusted, x) * v / (op.Sqrt(h) + epsilon)
        return (x * (1 - norm_coefficient_post) if norm_coefficient_post else x), v, h

    return _each(tensors, 4, update)


def adagrad(
    op: OpBuilder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    """The rate falls with the count, and for each element with the squares seen so far."""
    decayed = rate
    if decay_factor:
        decayed = rate / (1.0 + op.Cast(count, to=rate.dtype) * decay_factor)

    def update(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = _regularized(x, g, norm_coefficient)
        h = h + g * g
        return x - op.as_type_of(decayed, x) * g / (op.Sqrt(h) + epsilon), h

    return _each(tensors, 3, update)


def momentum(
    op: OpBuilder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> list[Tensor]:
    """In the first step (count zero) the gradient counts in full, whatever beta says."""
    if mode not in {"standard", "nesterov"}:
        raise ModelError(f"Momentum has the mode {mode!r}; there are 'standard' and 'nesterov'.")
    later = op.Greater(count, op.like(0, count))
    share = op.Where(later, op.like(beta, rate), op.like(1.0, rate))

    def update(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        g = _regularized(x, g, norm_coefficient)
        v = alpha * v + op.as_type_of(share, g) * g
        direction = g + alpha * v if mode == "nesterov" else v
        return x - op.as_type_of(rate, x) * direction, v

    return _each(tensors, 3, update)


def _regularized(x: Tensor, g: Tensor, coefficient: float) -> Tensor:
    return g + coefficient * x if coefficient else g


def _each(tensors: tuple[Tensor, ...], kinds: int, update: Update) -> list[Tensor]:
    """Update tensor by tensor; outputs are grouped by kind, as inputs are."""
    count, rest = divmod(len(tensors), kinds)
    if rest or not count or any(t is None for t in tensors):
        raise ModelError(
            f"It takes a rate, a count and {kinds} lists of equal length (tensors, gradients, "
            f"states); {len(tensors)} tensors were given."
        )
    groups = [tensors[i * count : (i + 1) * count] for i in range(kinds)]
    results = [update(*one) for one in zip(*groups)]
    return [result for kind in zip(*results) for result in kind]


_LOWERINGS: dict[str, Lowering] = {"Adam": adam, "Adagrad": adagrad, "Momentum": momentum}
PREVIEW: Table = {(DOMAIN, name): lowering for name, lowering in _LOWERINGS.items()}
