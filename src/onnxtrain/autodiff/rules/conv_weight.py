"""The weight's gradient of a convolution: ``dW = dy·P(x)ᵀ``, P cutting the image into windows.

The forms differ only in how P(x) is laid out, which decides the speed: the long axis of the
contraction must be contiguous in the left factor and the rows in the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph import OpBuilder, Tensor
from .windows import (
    Axis,
    at_offset,
    columns,
    offsets_of,
    pad_image,
    quotient,
    size_of,
    vector,
)

FEW_CHANNELS = 4
"""Up to this many input channels (a first layer), all windows go into one product."""

MANY_WINDOWS = 400
"""From this many windows per image on, a product per image and a sum beat a transposed dy."""


def weight_gradient(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """Gradient of a weight (M, C/group, *kernel), from the image (N, C, …), the signal (N, M, …).

    For Conv the image is x and the signal dy; for ConvTranspose it is the other way round.
    """
    if group == 1 and all(a.tiles for a in axes):
        return _tiles(op, image, signal, w, axes)
    channels = image.dim(1)
    if group == 1 and isinstance(channels, int) and channels <= FEW_CHANNELS:
        return _one_product(op, image, signal, axes)
    counts = [a.windows for a in axes if isinstance(a.windows, int)]
    many = len(counts) == len(axes) and math.prod(counts) >= MANY_WINDOWS
    if group == 1:
        pieces = _per_offset(op, image, signal, w, axes, per_image=many)
        stacked = pieces[0] if len(pieces) == 1 else op.Concat(*pieces, axis=0)
        return op.Reshape(op.transpose(stacked, 1, 2, 0), _shape(op, w, axes))
    pieces = _per_offset_grouped(op, image, signal, w, axes, group)
    stacked = pieces[0] if len(pieces) == 1 else op.Concat(*pieces, axis=0)
    return op.Reshape(op.transpose(stacked, 1, 2, 3, 0), _shape(op, w, axes))


def _shape(op: OpBuilder, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    return vector(op, [-1, size_of(op, w, 1), *(a.kernel for a in axes)])


def _signal_rows(op: OpBuilder, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """(N, M, …) as (M, N·windows)."""
    return op.Reshape(op.transpose(signal, 1, 0, *range(2, len(axes) + 2)), [0, -1])


def _tiles(op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Windows side by side (patch embeddings, 1x1): one transpose cuts the image into rows."""
    spatial = len(axes)
    if not all(a.trivial or (a.static and a.windows * a.stride == a.image) for a in axes):
        ends = vector(op, [a.windows * a.stride for a in axes])
        image = op.Slice(image, [0] * spatial, ends, list(range(2, spatial + 2)))
    channels = size_of(op, w, 1)
    if all(a.kernel == 1 for a in axes):
        cells = op.transpose(image, 0, *range(2, spatial + 2), 1)
    else:
        sizes = [s for a in axes for s in (a.windows, a.kernel)]
        split = op.Reshape(image, vector(op, [0, channels, *sizes]))
        windows, inner = range(2, 2 * spatial + 2, 2), range(3, 2 * spatial + 2, 2)
        cells = op.transpose(split, 0, *windows, 1, *inner)
    width = channels * math.prod(a.kernel for a in axes)
    product = op.MatMul(_signal_rows(op, signal, axes), op.Reshape(cells, vector(op, [-1, width])))
    return op.Reshape(product, _shape(op, w, axes))


def _one_product(op: OpBuilder, image: Tensor, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Few channels: im2col, a product per image, and their sum."""
    cells = op.Reshape(columns(op, image, axes), vector(op, [0, _width(image, axes), -1]))
    per_image = op.MatMul(op.Reshape(signal, [0, 0, -1]), op.transpose(cells, 0, 2, 1))
    shape = [0, image.dim(1), *(a.kernel for a in axes)]
    return op.Reshape(op.ReduceSum(per_image, [0], keepdims=0), shape)


def _width(image: Tensor, axes: Sequence[Axis]) -> int:
    channels = image.dim(1)
    assert isinstance(channels, int)
    return channels * math.prod(a.kernel for a in axes)


def _per_offset(
    op: OpBuilder,
    image: Tensor,
    signal: Tensor,
    w: Tensor,
    axes: Sequence[Axis],
    *,
    per_image: bool,
) -> list[Tensor]:
    """One product (1, M, C) per position in the kernel, channels of the image last."""
    channels = size_of(op, w, 1)
    padded = pad_image(op, op.transpose(image, 0, *range(2, len(axes) + 2), 1), axes, 1)
    rows = op.Reshape(signal, [0, 0, -1]) if per_image else _signal_rows(op, signal, axes)
    pieces = []
    for offset in offsets_of(axes):
        cells = at_offset(op, padded, axes, offset, 1)
        if per_image:
            product = op.MatMul(rows, op.Reshape(cells, vector(op, [0, -1, channels])))
            pieces.append(op.ReduceSum(product, [0], keepdims=1))
        else:
            product = op.MatMul(rows, op.Reshape(cells, vector(op, [-1, channels])))
            pieces.append(op.Unsqueeze(product, [0]))
    return pieces


def _per_offset_grouped(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> list[Tensor]:
    """One batched product (1, group, M/group, C/group) per position in the kernel."""
    spatial = len(axes)
    width, height = size_of(op, w, 1), quotient(op, size_of(op, w, 0), group)
    split = op.Reshape(image, vector(op, [0, group, width, *(a.image for a in axes)]))
    padded = pad_image(op, op.transpose(split, 1, 0, *range(3, spatial + 3), 2), axes, 2)
    swapped = op.transpose(signal, 1, 0, *range(2, spatial + 2))
    rows = op.Reshape(swapped, vector(op, [group, height, -1]))
    pieces = []
    for offset in offsets_of(axes):
        cells = at_offset(op, padded, axes, offset, 2)
        product = op.MatMul(rows, op.Reshape(cells, vector(op, [group, -1, width])))
        pieces.append(op.Unsqueeze(product, [0]))
    return pieces
