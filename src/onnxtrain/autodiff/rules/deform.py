"""DeformConv: a convolution that reads its image at learned offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...graph import OpBuilder, Tensor
from ..registry import gradient
from ._index import Size, dim, vector
from .conv import bias_gradient
from .sampling import Reader, inside_only, linear_taps
from .windows import Axis, axes_of, cell_positions, kernel_of, quotient


@gradient("DeformConv")
def deform_conv(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None,
    mask: Tensor | None,
    *,
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    offset_group: int = 1,
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Any:
    """``y = W·(mask·read(x, places + offset))``; each offset group reads its own channels."""
    axes = axes_of(op, x, y, kernel_of(kernel_shape, w), strides, dilations, pads)
    cells = math.prod(a.kernel for a in axes)
    channels = dim(op, x, 1)
    shape = [
        dim(op, x, 0) * offset_group,
        quotient(op, channels, offset_group),
        *(a.image for a in axes),
    ]
    taps = [
        [inside_only(op, *tap, axes[i].image) for tap in linear_taps(op, position)]
        for i, position in enumerate(_positions(op, offset, axes, offset_group))
    ]
    reader = Reader(op, op.Reshape(x, vector(op, *shape)), taps, shape)
    pixels = reader.read()
    read = reader.value(pixels)  # (N·offset groups, C/offset groups, kernel·windows)
    share = None if mask is None else op.Reshape(mask, vector(op, shape[0], 1, -1))

    # y = W·columns per group, with columns (N, group, C/group·kernel, windows)
    width = quotient(op, channels, group) * cells
    by_group = vector(op, dim(op, x, 0), group, width, -1)
    columns = op.Reshape(read if share is None else read * share, by_group)
    rows = quotient(op, dim(op, w, 0), group)
    signal = op.Reshape(dy, vector(op, dim(op, x, 0), group, rows, -1))
    dw = op.ReduceSum(op.MatMul(signal, op.transpose(columns, 0, 1, 3, 2)), [0], keepdims=0)
    matrix = op.Reshape(w, vector(op, group, rows, width))
    dcolumns = op.MatMul(op.transpose(matrix, 0, 2, 1), signal)
    dread = op.Reshape(dcolumns, vector(op, *shape[:2], -1))
    dmask = None
    if mask is not None and share is not None:
        dmask = op.reshape_like(op.ReduceSum(dread * read, [1], keepdims=0), mask)
        dread = dread * share

    dx = op.reshape_like(reader.image_gradient(dread), x)
    moves = [reader.position_gradient(dread, pixels, i) for i in range(len(axes))]
    per_cell = vector(op, shape[0], cells, 1, -1)
    stacked = op.Concat(*(op.Reshape(m, per_cell) for m in moves), axis=2)
    doffset = op.reshape_like(stacked, offset)
    return dx, op.reshape_like(dw, w), doffset, bias_gradient(op, dy, b, len(axes)), dmask


def _positions(
    op: OpBuilder, offset: Tensor, axes: Sequence[Axis], offset_group: int
) -> list[Tensor]:
    """Where each cell of each window is read, (N·offset groups, kernel·windows), per axis."""
    rank = len(axes)
    windows: list[Size] = [a.windows for a in axes]
    kernel: list[Size] = [a.kernel for a in axes]
    shape = [dim(op, offset, 0) * offset_group, *kernel, rank, *windows]
    split = op.Reshape(offset, vector(op, *shape))
    positions = []
    for i, axis in enumerate(axes):
        moved = op.Squeeze(op.Slice(split, [i], [i + 1], [1 + rank]), [1 + rank])
        grid = op.transpose(op.Cast(cell_positions(op, axis), to=offset.dtype), 1, 0)
        spread: list[Size] = [1 for _ in range(2 * rank)]
        spread[i], spread[rank + i] = axis.kernel, axis.windows
        positions.append(op.Reshape(moved + op.Reshape(grid, vector(op, *spread)), [0, -1]))
    return positions
