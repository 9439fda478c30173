"""GatherElements, OneHot and AffineGrid for `onnx.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class GatherElements(OpRun):
    """onnx's own is limited to 32 positions along the axis, and wrong or an error above."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        coordinates: list[Array] = list(np.indices(indices.shape, sparse=True))
        coordinates[axis] = indices
        return (data[tuple(coordinates)],)


class AffineGrid(OpRun):
    """onnx's own gives float32 whatever it is given."""

    def _run(self, theta: Array, size: Array, align_corners: int = 0) -> tuple[Array]:
        axes = []
        for count in (int(s) for s in size[2:]):
            line = np.arange(count, dtype=theta.dtype)
            if align_corners:
                axes.append(line * 2 / max(count - 1, 1) - (1 if count > 1 else 0))
            else:
                axes.append((2 * line + 1) / count - 1)
        grid = np.meshgrid(*axes, indexing="ij")
        positions = np.stack([*reversed(grid), np.ones_like(grid[0])], axis=-1)
        return (np.einsum("nij,...j->n...i", theta, positions.astype(theta.dtype)),)


class OneHot(OpRun):
    def _run(self, indices: Any, depth: Any, values: Any, axis: int = -1) -> Any:
        count = int(np.asarray(depth).item())  # a scalar, or a tensor with one element
        axis %= indices.ndim + 1
        classes = np.arange(count).reshape(
            [-1 if i == axis else 1 for i in range(indices.ndim + 1)]
        )
        numbers = np.asarray(indices, np.int64)
        chosen = np.expand_dims(np.where(numbers < 0, numbers + count, numbers), axis)
        return (np.where(chosen == classes, values[1], values[0]).astype(values.dtype),)


OPS = [OneHot, AffineGrid, GatherElements]
