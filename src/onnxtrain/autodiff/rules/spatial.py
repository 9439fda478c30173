"""Rearranged images: DepthToSpace, SpaceToDepth, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import Size, dim, vector
from .windows import Axis, columns


@gradient("DepthToSpace")
def depth_to_space(
    op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, blocksize: int, mode: str = "DCR"
) -> Any:
    if mode == "DCR":
        return op.SpaceToDepth(dy, blocksize=blocksize)
    rows, width = dim(op, x, 2), dim(op, x, 3)
    shape = vector(op, 0, -1, rows, blocksize, width, blocksize)
    blocks = op.transpose(op.Reshape(dy, shape), 0, 1, 3, 5, 2, 4)
    return op.Reshape(blocks, vector(op, 0, -1, rows, width))


@gradient("SpaceToDepth")
def space_to_depth(op: OpBuilder, dy: Tensor, y: Tensor, x: Tensor, *, blocksize: int) -> Any:
    return op.DepthToSpace(dy, blocksize=blocksize, mode="DCR")


@gradient("Col2Im", stops=(1, 2))
def col2im(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    if block_shape.const is None:
        raise ModelError(
            f"Col2Im: `block_shape` ({block_shape.name!r}) is computed at run time, and its "
            "gradient takes one slice per element of the block. Make it a constant."
        )
    kernel = [int(k) for k in block_shape.const]
    rank = len(kernel)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * 2 * rank
    axes = []
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations)):
        size, begin, end = dim(op, y, i + 2), int(pads[i]), int(pads[i + rank])
        room = size + (begin + end - (k - 1) * d - 1)
        steps: Size = room // s if isinstance(room, int) else op.Div(room, s)
        axes.append(Axis(k, s, d, begin, end, size, steps + 1))
    return op.reshape_like(columns(op, dy, axes), x)
