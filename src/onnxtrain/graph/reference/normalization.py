"""LpNormalization, LRN and MeanVarianceNormalization for `onnx.reference`.

Its own forget the absolute value of p = 1, normalize as many channels as the batch has samples, and
take no float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class LpNormalization(OpRun):
    def _run(self, x: Any, axis: int = -1, p: int = 2) -> Any:
        size = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
        return (x / np.where(size == 0, 1, size),)


class LRN(OpRun):
    def _run(
        self, x: Any, alpha: Any = 1e-4, beta: Any = 0.75, bias: Any = 1.0, size: Any = None
    ) -> Any:
        before, channels = (size - 1) // 2, x.shape[1]
        squares = np.zeros_like(x)
        for c in range(channels):
            near = slice(max(c - before, 0), min(c - before + size, channels))
            squares[:, c] = (x[:, near] ** 2).sum(1)
        return (x / (bias + alpha / size * squares) ** beta,)


class MeanVarianceNormalization(OpRun):
    def _run(self, x: Any, axes: Any = None) -> Any:
        over = (0, 2, 3) if axes is None else tuple(axes)
        spread = np.sqrt((x**2).mean(over, keepdims=True) - x.mean(over, keepdims=True) ** 2)
        return ((x - x.mean(over, keepdims=True)) / (spread + x.dtype.type(1e-9)),)


OPS = [LpNormalization, LRN, MeanVarianceNormalization]
