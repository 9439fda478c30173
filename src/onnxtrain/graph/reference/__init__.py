"""Operators for `onnx.reference` where its own are wrong, incomplete, or take minutes.

They compute in the type of their inputs, so that a model in float64 can judge gradients.
"""

from __future__ import annotations

from typing import Any

from . import elementwise, indexing, loops, movement, normalization, sampling, windows

OPS: list[Any] = [
    *elementwise.OPS, *indexing.OPS, *loops.OPS, *movement.OPS, *normalization.OPS, *sampling.OPS,
    *windows.OPS,
]  # fmt: skip
