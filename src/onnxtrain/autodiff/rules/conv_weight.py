"""The weight's gradient of a convolution: ``dW = dy·P(x)ᵀ``, P cutting the image into windows.

The forms differ only in how P(x) is laid out, which decides the speed: the long axis of the
contraction must be contiguous in the left factor and the rows in the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph import OpBuilder, Tensor
from ._index import dim, vector
from .windows import Axis, at_offset, columns, offsets_of, pad_image, quotient

FEW_CHANNELS = 4
"""Up to this many input channels (a first layer), all windows go into one product."""

LARGE_KERNEL = 25
"""A first layer with stride and a kernel from this size on swaps channels and batch."""

MANY_OFFSETS = 200
"""Above this many kernel positions, one node per position is too many."""

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
    if all(a.static for a in axes) and _suits_swapping(image, w, axes, group):
        return _swapped(op, image, signal, w, axes, group)
    if group > 1 and w.dim(0) == group and w.dim(1) == 1:
        return _depthwise(op, image, signal, axes)
    channels = image.dim(1)
    if group == 1 and isinstance(channels, int) and channels <= FEW_CHANNELS:
        return _one_product(op, image, signal, axes)
    counts = [a.windows for a in axes if isinstance(a.windows, int)]
    many = len(counts) == len(axes) and math.prod(counts) >= MANY_WINDOWS
    kernel, width = math.prod(a.kernel for a in axes), dim(op, w, 1)
    if group == 1:
        products = _per_offset(op, image, signal, w, axes, per_image=many)
        order, shape = [1, 2, 0], vector(op, kernel, -1, width)
    else:
        products = _per_offset_grouped(op, image, signal, w, axes, group)
        order, shape = [1, 2, 3, 0], vector(op, kernel, group, -1, width)
    stacked = op.Reshape(_joined(op, products), shape)
    return op.Reshape(op.transpose(stacked, *order), _shape(op, w, axes))


def _joined(op: OpBuilder, products: Sequence[Tensor]) -> Tensor:
    return products[0] if len(products) == 1 else op.Concat(*products, axis=0)


def _suits_swapping(image: Tensor, w: Tensor, axes: Sequence[Axis], group: int) -> bool:
    """Where one Conv with the batch as channels is the fastest, or all else too large a graph."""
    kernel = math.prod(a.kernel for a in axes)
    strided = any(a.stride > 1 for a in axes)
    inputs = w.dim(1)
    few = isinstance(inputs, int) and inputs <= FEW_CHANNELS
    large = kernel >= LARGE_KERNEL or group > 1
    return kernel > MANY_OFFSETS or (strided and few and large)


def _shape(op: OpBuilder, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    return vector(op, -1, dim(op, w, 1), *(a.kernel for a in axes))


def _signal_rows(op: OpBuilder, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """(N, M, …) as (M, N·windows)."""
    return op.Reshape(op.transpose(signal, 1, 0, *range(2, len(axes) + 2)), [0, -1])


def _tiles(op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Windows side by side (patch embeddings, 1x1): one transpose cuts the image into rows."""
    spatial = len(axes)
    if not all(a.trivial or (a.static and a.windows * a.stride == a.image) for a in axes):
        ends = vector(op, *[a.windows * a.stride for a in axes])
        image = op.Slice(image, [0] * spatial, ends, list(range(2, spatial + 2)))
    channels = dim(op, w, 1)
    if all(a.kernel == 1 for a in axes):
        cells = op.transpose(image, 0, *range(2, spatial + 2), 1)
    else:
        sizes = [s for a in axes for s in (a.windows, a.kernel)]
        split = op.Reshape(image, vector(op, 0, channels, *sizes))
        windows, inner = range(2, 2 * spatial + 2, 2), range(3, 2 * spatial + 2, 2)
        cells = op.transpose(split, 0, *windows, 1, *inner)
    width = channels * math.prod(a.kernel for a in axes)
    product = op.MatMul(_signal_rows(op, signal, axes), op.Reshape(cells, vector(op, -1, width)))
    return op.Reshape(product, _shape(op, w, axes))


def _one_product(op: OpBuilder, image: Tensor, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Few channels: im2col, a product per image, and their sum."""
    cells = op.Reshape(columns(op, image, axes), vector(op, 0, _width(image, axes), -1))
    per_image = op.MatMul(op.Reshape(signal, [0, 0, -1]), op.transpose(cells, 0, 2, 1))
    shape = [0, image.dim(1), *(a.kernel for a in axes)]
    return op.Reshape(op.ReduceSum(per_image, [0], keepdims=0), shape)


def _width(image: Tensor, axes: Sequence[Axis]) -> int:
    channels = image.dim(1)
    assert isinstance(channels, int)
    return channels * math.prod(a.kernel for a in axes)


def _swapped(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """Conv of the image with the signal as its kernel: the batch is contracted as channels."""
    spatial, width = len(axes), dim(op, w, 1)
    sizes = [a.image for a in axes]
    split = op.Reshape(image, vector(op, 0, group, width, *sizes))
    batch_inside = op.transpose(split, 2, 1, 0, *range(3, spatial + 3))
    product = op.Conv(
        op.Reshape(batch_inside, vector(op, width, -1, *sizes)),
        op.transpose(signal, 1, 0, *range(2, spatial + 2)),
        None,
        group=group,
        kernel_shape=[a.windows for a in axes],
        strides=[a.dilation for a in axes],
        dilations=[a.stride for a in axes],
        pads=[*(a.begin for a in axes), *(a.end for a in axes)],
    )
    places = list(range(2, spatial + 2))  # a rest behind the last window gives further positions
    product = op.Slice(product, [0] * spatial, [a.kernel for a in axes], places)
    return op.transpose(product, 1, 0, *places)


def _depthwise(op: OpBuilder, image: Tensor, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """One channel each: a product and a sum per position in the kernel."""
    padded = pad_image(op, image, axes, 2)
    spatial = list(range(2, len(axes) + 2))
    sums = []
    for offset in offsets_of(axes):
        product = op.Mul(signal, at_offset(op, padded, axes, offset, 2))
        per_image = op.ReduceSum(product, spatial, keepdims=0)
        sums.append(op.ReduceSum(per_image, [0], keepdims=1))
    stacked = op.transpose(_joined(op, sums), 1, 0)  # (C, kernel)
    return op.Reshape(stacked, [0, 1, *(a.kernel for a in axes)])


def _per_offset(
    op: OpBuilder,
    image: Tensor,
    signal: Tensor,
    w: Tensor,
    axes: Sequence[Axis],
    *,
    per_image: bool,
) -> list[Tensor]:
    """One product (M, C) per position in the kernel, channels of the image last."""
    channels = dim(op, w, 1)
    padded = pad_image(op, op.transpose(image, 0, *range(2, len(axes) + 2), 1), axes, 1)
    rows = op.Reshape(signal, [0, 0, -1]) if per_image else _signal_rows(op, signal, axes)
    products = []
    for offset in offsets_of(axes):
        cells = at_offset(op, padded, axes, offset, 1)
        if per_image:
            product = op.MatMul(rows, op.Reshape(cells, vector(op, 0, -1, channels)))
            products.append(op.ReduceSum(product, [0], keepdims=0))
        else:
            products.append(op.MatMul(rows, op.Reshape(cells, vector(op, -1, channels))))
    return products


def _per_offset_grouped(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> list[Tensor]:
    """One batched product (group, M/group, C/group) per position in the kernel."""
    spatial = len(axes)
    width, height = dim(op, w, 1), quotient(op, dim(op, w, 0), group)
    split = op.Reshape(image, vector(op, 0, group, width, *(a.image for a in axes)))
    padded = pad_image(op, op.transpose(split, 1, 0, *range(3, spatial + 3), 2), axes, 2)
    swapped = op.transpose(signal, 1, 0, *range(2, spatial + 2))
    rows = op.Reshape(swapped, vector(op, group, height, -1))
    products = []
    for offset in offsets_of(axes):
        cells = at_offset(op, padded, axes, offset, 2)
        products.append(op.MatMul(rows, op.Reshape(cells, vector(op, group, -1, width))))
    return products
