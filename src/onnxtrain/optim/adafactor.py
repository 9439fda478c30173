"""Adafactor: second moments kept as one row and one column average per matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..graph import Tensor
from .clipping import square_sum
from .linear import Linear
from .transform import Context

ROW, COLUMN = "row_moments", "column_moments"


def factored_shapes(shape: Sequence[int]) -> dict[str, list[int]]:
    """Shapes of the two states of a parameter; a vector counts as a matrix of one row."""
    dims = list(shape)
    row = [*dims[:-1], 1]
    column = [*dims[:-2], 1, dims[-1]] if len(dims) > 1 else dims
    return {ROW: row, COLUMN: column}


@dataclass(frozen=True)
class scale_by_factored_rms:  # noqa: N801
    """Adafactor's direction, with its relative step size.

        1 − β₂(t) = t^decay
        R ← β₂·R + (1 − β₂)·mean over columns of u²      C ← the same over rows
        V = R·C / max(mean of R, ε₁)                     (a vector keeps its own squares)
        u ← u / √max(V, ε₁²),  then / max(1, RMS(u)/d)
        ηₜ = max(ε₂, RMS(p)) · min(η, 1/√t)

    This transform contains the learning rate: its result is −ηₜ·u.
    """

    beta2_decay: float = -0.8
    eps1: float = float(np.finfo(np.float32).eps)
    eps2: float = 1e-3
    clip_threshold: float = 1.0
    states: ClassVar[tuple[str, ...]] = (ROW, COLUMN)
    elementwise: ClassVar[bool] = False

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        op = ctx.op
        gradient = _as_matrix(ctx, update.value())
        fresh = ctx.per_step(lambda t: op.Pow(t, self.beta2_decay))
        squares = gradient * gradient
        row = self._average(ctx, ROW, squares, -1, fresh)
        column = self._average(ctx, COLUMN, squares, -2, fresh)
        mean = op.Max(_mean(ctx, row, -2), self.eps1)
        matrix = op.Size(op.Shape(ctx.param)) > 1
        share = op.Where(matrix, row / mean, op.const(np.array(1.0), row.dtype))
        estimate = op.Max(share * column, self.eps1 * self.eps1)
        direction = op.Reshape(gradient / op.Sqrt(estimate), op.Shape(ctx.param))
        excess = op.Max(_rms(ctx, direction) / self.clip_threshold, 1.0)
        size = op.Max(_rms(ctx, ctx.param), self.eps2)
        limit = ctx.per_step(lambda t: 1.0 / op.Sqrt(t))
        rate = op.Min(ctx.learning_rate, limit) * size / excess
        return Linear([(-rate, direction)])

    @staticmethod
    def _average(ctx: Context, name: str, squares: Tensor, axis: int, fresh: Tensor) -> Tensor:
        old = _as_matrix(ctx, ctx.states[name])
        new = old + (_mean(ctx, squares, axis) - old) * fresh
        ctx.updated[name] = ctx.op.Reshape(new, ctx.op.Shape(ctx.states[name]))
        return new


def _as_matrix(ctx: Context, x: Tensor) -> Tensor:
    """Two more leading axes of size one, so that every tensor has rows and columns."""
    ones = ctx.op.const(np.array([1, 1], np.int64))
    return ctx.op.Reshape(x, ctx.op.Concat(ones, ctx.op.Shape(x), axis=0))


def _mean(ctx: Context, x: Tensor, axis: int) -> Tensor:
    if ctx.op.opset < 18:
        return ctx.op.ReduceMean(x, axes=[axis], keepdims=1)
    return ctx.op.ReduceMean(x, [axis], keepdims=1)


def _rms(ctx: Context, x: Tensor) -> Tensor:
    op = ctx.op
    return op.Sqrt(square_sum(op, x) / op.Cast(op.Size(x), to=x.dtype))
