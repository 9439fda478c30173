"""Rearranged images: DepthToSpace, SpaceToDepth, Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import Size, dim, line, vector
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
    rank = _axis_count(block_shape, image_shape, strides, dilations)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * 2 * rank
    known = block_shape.const
    axes, positions = [], []
    for i, (s, d) in enumerate(zip(strides, dilations)):
        size, begin, end = dim(op, y, i + 2), int(pads[i]), int(pads[i + rank])
        kernel: Size = op.Slice(block_shape, [i], [i + 1]) if known is None else int(known[i])
        room = size + (begin + end - 1) - (kernel - 1) * d
        steps: Size = room // s if isinstance(room, int) else op.Div(room, s)
        if isinstance(kernel, int):
            axes.append(Axis(kernel, s, d, begin, end, size, steps + 1))
        else:
            inner = op.Unsqueeze(line(op, kernel) * d, [1])
            positions.append(inner + line(op, steps + 1) * s - begin)
    blocks = columns(op, dy, axes) if axes else _read(op, dy, positions)
    return op.reshape_like(blocks, x)


def _axis_count(
    block_shape: Tensor, image_shape: Tensor, strides: Sequence[int], dilations: Sequence[int]
) -> int:
    for count in (block_shape.dim(0), image_shape.dim(0)):
        if isinstance(count, int):
            return count
    if strides or dilations:
        return len(strides or dilations)
    raise ModelError(
        f"Col2Im: the number of elements of `block_shape` ({block_shape.name!r}) is not known. "
        "Give it a fixed shape."
    )


def _read(op: OpBuilder, image: Tensor, positions: Sequence[Tensor]) -> Tensor:
    """An image at the places [position in the block, block] of each axis, zeros outside of it."""
    rank = len(positions)
    index: Tensor | None = None
    inside: Tensor | None = None
    for i, position in enumerate(positions):
        size = op.dim_of(image, i + 2)
        axes = [a for a in range(2 * rank) if a not in (i, rank + i)]
        position = op.Unsqueeze(position, axes) if axes else position  # noqa: PLW2901
        within = op.And(position >= 0, position < size)
        index = position if index is None else index * size + position
        inside = within if inside is None else op.And(inside, within)
    assert index is not None
    flat = op.Reshape(image, [0, 0, -1])
    count = op.Shape(flat, start=2)
    with_zero = op.Pad(flat, [0, 1], None, op.const([2]))
    return op.Gather(with_zero, op.Reshape(op.Where(inside, index, count), [-1]), axis=2)
