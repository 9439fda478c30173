"""Pad and Slice for `onnx.reference`.

Its own know no negative amounts, and slice as numpy does where onnxruntime does otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ..slices import taken


class Pad(OpRun):
    op_domain = ""

    def _run(
        self, data: Any, pads: Any, fill: Any = None, axes: Any = None, mode: Any = None
    ) -> Any:
        where = range(data.ndim) if axes is None else [int(a) % data.ndim for a in axes]
        half = len(pads) // 2
        grow = [(0, 0)] * data.ndim
        for i, axis in enumerate(where):
            before, after = int(pads[i]), int(pads[half + i])
            end = data.shape[axis] + min(after, 0)
            data = np.take(data, np.arange(max(-before, 0), end), axis)
            grow[axis] = (max(before, 0), max(after, 0))
        mode = mode or "constant"
        options = {"constant_values": 0 if fill is None else fill} if mode == "constant" else {}
        return (np.pad(data, grow, mode=mode, **options).astype(data.dtype),)


class Slice(OpRun):
    op_domain = ""

    def _run(self, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        where = range(len(starts)) if axes is None else axes
        strides = [1] * len(starts) if steps is None else steps
        for start, end, axis, step in zip(starts, ends, where, strides):
            positions = taken(data.shape[axis], int(start), int(end), int(step))
            data = np.take(data, np.array(positions, np.int64), int(axis))
        return (data,)


OPS = [Pad, Slice]
