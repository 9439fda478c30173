"""The weight's gradient of a convolution: ``dW = dy·P(x)ᵀ``, P cutting the image into windows.

The forms differ only in how P(x) is laid out, which decides the speed: the long axis of the
contraction must be contiguous in the left factor and the rows in the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...operators import OPERAND, blocked_part
from ._index import Size, dim, vector
from .windows import (
    FEW_OFFSETS,
    Axis,
    at_offset,
    cell_positions,
    columns,
    offsets_of,
    pad_image,
    quotient,
)

OF_SHAPES = ("Shape", "Size")
IMAGE_AXES = 2

LARGE_MAP = 1024
"""From this many windows per image on, a session may convolve it with the signal in blocks."""

FEW_CHANNELS = 4
"""Up to this many input channels (a first layer), all windows go into one product."""

LARGE_KERNEL = 25
"""A first layer with stride and a kernel from this size on swaps channels and batch."""

MANY_OFFSETS = 200
"""Above this many kernel positions, one node per position is too many."""

FEW_SHIFTS = 3
"""Up to this many columns of a depthwise kernel, each has a product of its own."""

MANY_WEIGHTS = 2**16
"""Pairs of channels up to which `_convolved` is the fastest however few windows there are."""

WINDOWS_OF_MANY = 100
"""Windows per image from which on it is with more pairs of channels, too."""

MANY_WINDOWS = 400
"""From this many windows per image on, a product per image and a sum beat a transposed dy."""


def weight_gradient(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """Gradient of a weight (M, C/group, *kernel), from the image (N, C, …), the signal (N, M, …).

    For Conv the image is x and the signal dy; for ConvTranspose it is the other way round.
    """
    before = len(op.nodes)
    gradient = _of_standard_operators(op, image, signal, w, axes, group)
    if _suits_blocks(w, axes, group):
        _mark_parts(op.nodes[before:], (image, signal, gradient), w, axes, group)
    return gradient


def _of_standard_operators(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """The gradient in the form that onnxruntime runs fastest for these sizes."""
    if group == 1 and all(a.tiles for a in axes):
        return _tiles(op, image, signal, w, axes)
    if group > 1:
        return _shifted(op, image, signal, w, axes, group)
    if all(a.static for a in axes) and _suits_swapping(w, axes):
        return _swapped(op, image, signal, axes)
    kernel, width = math.prod(a.kernel for a in axes), dim(op, w, 1)
    strided, few = any(a.stride > 1 for a in axes), isinstance(width, int) and width <= FEW_CHANNELS
    if kernel >= FEW_OFFSETS and not strided and not few:
        return _shifted(op, image, signal, w, axes, group)
    if isinstance(width, int) and (few or kernel > FEW_OFFSETS):
        return _one_product(op, image, signal, axes, width)
    if _suits_convolving(w, axes):
        return _convolved(op, image, signal, w, axes)
    counts = [a.windows for a in axes if isinstance(a.windows, int)]
    many = len(counts) == len(axes) and math.prod(counts) >= MANY_WINDOWS
    products = _per_offset(op, image, signal, w, axes, per_image=many)
    joined = products[0] if len(products) == 1 else op.Concat(*products, axis=0)
    stacked = op.Reshape(joined, vector(op, kernel, -1, width))
    return op.Reshape(op.transpose(stacked, 1, 2, 0), _shape(op, w, axes))


# --- the same in onnxruntime's blocked layout, by whoever makes a session ----------------------


def _suits_blocks(w: Tensor, axes: Sequence[Axis], group: int) -> bool:
    """Whether a session may convolve the image with the signal in blocks instead.

    If each channel of images has a kernel of its own it always is faster, three to fifty times on
    two threads. Otherwise it is on large maps: 0.5 to 0.8 of the time on 56×56 and 64×64, 0.9 on
    32×32, and up to 1.25 times as long on 16×16.
    """
    if len(axes) != IMAGE_AXES or w.dtype.name != "FLOAT" or w.shape is None:
        return False
    if group > 1:
        return w.shape[:2] == (group, 1)
    windows = [a.windows for a in axes if isinstance(a.windows, int)]
    is_large = len(windows) == IMAGE_AXES and math.prod(windows) >= LARGE_MAP
    return is_large and not all(a.kernel == 1 for a in axes)


def _mark_parts(
    nodes: Sequence[ir.Node],
    values: tuple[Tensor, Tensor, Tensor],
    w: Tensor,
    axes: Sequence[Axis],
    group: int,
) -> None:
    """Say which nodes read image and signal, and which gives the gradient (`passes/blocked.py`)."""
    image, signal, gradient = values
    key = gradient.value.name or ""
    for role, tensor in (("image", image), ("signal", signal)):
        readers = (n for n in nodes if n.inputs[0] is tensor.value and n.op_type not in OF_SHAPES)
        reader = next(readers, None)
        if reader is not None:
            reader.doc_string = blocked_part(role, key) + OPERAND + (tensor.value.name or "")
    geometry = (s for a in axes for s in (a.kernel, a.stride, a.dilation, a.begin, _behind(a)))
    sizes = [w.dim(0), w.dim(1), group, *geometry]
    known = [s for s in sizes if isinstance(s, int) and s >= 0]
    last, images = gradient.value.producer(), image.dim(0)
    if last is not None and len(known) == len(sizes):
        count = images if isinstance(images, int) else 0
        last.doc_string = blocked_part("weights", key, *known, count)


def _behind(axis: Axis) -> Size:
    """Padding behind the image that the last window reaches; -1 if that is not known."""
    return axis.end if axis.stride == 1 else _overhang(axis) if axis.static else -1


# --- forms of standard operators ---------------------------------------------------------------


def _suits_swapping(w: Tensor, axes: Sequence[Axis]) -> bool:
    """Where one Conv with the batch as channels is the fastest, or all else too large a graph.

    Along one axis it takes half the time of a product per position (31 and 101 positions).
    """
    kernel = math.prod(a.kernel for a in axes)
    strided = any(a.stride > 1 for a in axes)
    inputs = w.dim(1)
    few = isinstance(inputs, int) and inputs <= FEW_CHANNELS
    suits = (strided and few) or (len(axes) == 1 and not strided)
    return kernel > MANY_OFFSETS or (suits and kernel >= LARGE_KERNEL)


def _shape(op: OpBuilder, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    return vector(op, -1, dim(op, w, 1), *(a.kernel for a in axes))


def signal_rows(op: OpBuilder, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """(N, M, …) as (M, N·windows)."""
    return op.Reshape(op.transpose(signal, 1, 0, *range(2, len(axes) + 2)), [0, -1])


def _tiles(op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Windows side by side (patch embeddings, 1x1): one transpose cuts the image into rows."""
    spatial = len(axes)
    if _are_many_points(w, axes):
        rows, cells = (op.Reshape(v, [0, 0, -1]) for v in (signal, image))
        per_image = op.MatMul(rows, op.transpose(cells, 0, 2, 1))
        return op.Reshape(op.ReduceSum(per_image, [0], keepdims=0), _shape(op, w, axes))
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
    product = op.MatMul(signal_rows(op, signal, axes), op.Reshape(cells, vector(op, -1, width)))
    return op.Reshape(product, _shape(op, w, axes))


def _are_many_points(w: Tensor, axes: Sequence[Axis]) -> bool:
    """1×1 on maps so large that a product per image, and their sum, take less than transposes.

    Nothing but the products is moved then.
    """
    channels = [d for d in (w.dim(0), w.dim(1)) if isinstance(d, int)]
    windows = [a.windows for a in axes if isinstance(a.windows, int)]
    if len(channels) < 2 or len(windows) < len(axes) or not all(a.trivial for a in axes):
        return False
    return math.prod(channels) <= sum(channels) * math.prod(windows)


def _one_product(
    op: OpBuilder, image: Tensor, signal: Tensor, axes: Sequence[Axis], channels: int
) -> Tensor:
    """Few channels, or a large kernel: im2col, a product per image, and their sum.

    A small kernel's windows lie position by position, all channels of each: there is one node per
    position then, whole images are put side by side, and the few sums are turned. With the
    positions of each channel side by side there are two nodes per position, for the same time on
    large maps (64 images of 3 channels on 32×32: 0.99 to 1.01) and more on small ones: a step of a
    convolution of 2 images on 10×10 takes 0.87 to 0.9 of its time so, a session 0.96.
    """
    kernel = [a.kernel for a in axes]
    count = math.prod(kernel)
    if count > FEW_OFFSETS:
        cells = columns(op, image, axes)
    else:
        padded = pad_image(op, image, axes, 2)
        parts = [at_offset(op, padded, axes, offset, 2) for offset in offsets_of(axes)]
        cells = parts[0] if count == 1 else op.Concat(*parts, axis=1)
    cells = op.Reshape(cells, [0, channels * count, -1])
    per_image = op.MatMul(op.Reshape(signal, [0, 0, -1]), op.transpose(cells, 0, 2, 1))
    total = op.ReduceSum(per_image, [0], keepdims=0)
    if 1 < count <= FEW_OFFSETS and channels > 1:
        total = op.transpose(op.Reshape(total, [0, count, channels]), 0, 2, 1)
    return op.Reshape(total, [0, channels, *kernel])


def _swapped(op: OpBuilder, image: Tensor, signal: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Conv of the image with the signal as its kernel: the batch is contracted as channels."""
    spatial = len(axes)
    swapped = (1, 0, *range(2, spatial + 2))
    product = op.Conv(
        op.transpose(image, *swapped),
        op.transpose(signal, *swapped),
        None,
        kernel_shape=[a.windows for a in axes],
        strides=[a.dilation for a in axes],
        dilations=[a.stride for a in axes],
        pads=[*(a.begin for a in axes), *(a.end for a in axes)],
    )
    # a rest behind the last window gives further positions
    spatial_axes = list(range(2, spatial + 2))
    product = op.Slice(product, [0] * spatial, [a.kernel for a in axes], spatial_axes)
    return op.transpose(product, *swapped)


def _suits_convolving(w: Tensor, axes: Sequence[Axis]) -> bool:
    """Whether all is known that a Conv has as attributes, and its result is not too large.

    The result, laid out as the weights, is turned once more: 512 by 512 channels on 7×7 with four
    images take 1.2 times as long as with a product per position.
    """
    if len(axes) > 2 or not all(a.static for a in axes):  # a Conv has three axes at most
        return False
    channels = [d for d in (w.dim(0), w.dim(1)) if isinstance(d, int)]
    windows = [a.windows for a in axes if isinstance(a.windows, int)]
    few = len(channels) == 2 and math.prod(channels) <= MANY_WEIGHTS
    return few or math.prod(windows) >= WINDOWS_OF_MANY


def _convolved(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis]
) -> Tensor:
    """Conv with the signal as its kernel, as in `_swapped`, and the channels as one more axis.

    So it is one product, (M, N·windows) by (N·windows, kernel·C), which threads share once, and
    onnxruntime lays out the second factor piece by piece while it multiplies, in runs of C numbers.
    On one thread that takes as long as a product per position, on two half to nine tenths of it.
    """
    spatial = len(axes)
    behind = list(range(2, spatial + 2))
    overhangs = [_overhang(a) for a in axes]  # more padding would give further positions
    product = op.Conv(
        op.Unsqueeze(op.transpose(image, 0, *behind, 1), [0]),
        op.Unsqueeze(op.transpose(signal, 1, 0, *behind), [spatial + 2]),
        None,
        kernel_shape=[*(a.windows for a in axes), 1],
        strides=[*(a.dilation for a in axes), 1],
        dilations=[*(a.stride for a in axes), 1],
        pads=[*(a.begin for a in axes), 0, *(max(o, 0) for o in overhangs), 0],
    )
    if min(overhangs) < 0:
        product = op.Slice(product, [0] * spatial, [a.kernel for a in axes], behind)
    return _positions_last(op, op.Squeeze(product, [0]), w, axes)


def _positions_last(op: OpBuilder, dw: Tensor, w: Tensor, axes: Sequence[Axis]) -> Tensor:
    """(M, *kernel, C) as (M, C, *kernel).

    By way of (*kernel, M, C), which moves whole rows, and a transposition of one matrix. Directly
    it would be one of a small matrix per filter, for each of which onnxruntime calls all threads:
    128 × 128 kernels of 3×3 take 0.25 instead of 0.65 ms on two threads, and 0.05 instead of 0.03
    on one.
    """
    spatial = len(axes)
    kernel = math.prod(a.kernel for a in axes)
    planes = op.transpose(dw, *range(1, spatial + 1), 0, spatial + 1)
    cells = op.transpose(op.Reshape(planes, vector(op, kernel, -1)), 1, 0)
    return op.Reshape(cells, _shape(op, w, axes))


def _overhang(axis: Axis) -> int:
    """How far the last window reaches beyond the image; below 0 where the image goes on."""
    sizes = (axis.windows, axis.begin, axis.image)
    windows, begin, image = (size for size in sizes if isinstance(size, int))
    return (windows - 1) * axis.stride + axis.span - begin - image


def _per_offset(
    op: OpBuilder,
    image: Tensor,
    signal: Tensor,
    w: Tensor,
    axes: Sequence[Axis],
    *,
    per_image: bool,
) -> list[Tensor]:
    """One product (M, C) per position in the kernel, channels of the image last.

    Tried, with fewer nodes, and slower on kernels of 9 to 27 positions: `_shifted` (1.0 to 1.7
    times, twice for 256 channels), all positions side by side in one product (0.9 to 1.9 times),
    gathered windows (3 to 7 times).
    """
    channels = dim(op, w, 1)
    padded = pad_image(op, op.transpose(image, 0, *range(2, len(axes) + 2), 1), axes, 1)
    rows = op.Reshape(signal, [0, 0, -1]) if per_image else signal_rows(op, signal, axes)
    products = []
    for offset in offsets_of(axes):
        cells = at_offset(op, padded, axes, offset, 1)
        if per_image:
            product = op.MatMul(rows, op.Reshape(cells, vector(op, 0, -1, channels)))
            products.append(op.ReduceSum(product, [0], keepdims=0))
        else:
            products.append(op.MatMul(rows, op.Reshape(cells, vector(op, -1, channels))))
    return products


def _shifted(
    op: OpBuilder, image: Tensor, signal: Tensor, w: Tensor, axes: Sequence[Axis], group: int
) -> Tensor:
    """Groups, and large kernels: as many nodes for a kernel of 49 elements as for one of three.

    Seen as long lines, the image is repeated once per row of the kernel, each time a row further,
    and the signal once per column, each time an element further:

        dW[i, j] = Σₚ image[p + i·width]·signal[p - j]

    All pairs (i, j) are one product per image and group. A depthwise 7×7 kernel on 56×56 takes a
    fifth of the time that a sum per element of the kernel took, 3×3 on 32×32 nine tenths.
    Tried, and slower: Conv with the signal as kernel, in a group per image and channel (1.3 to 6
    times); products of all columns with all, whose diagonals are added up (1 to 3 times).
    """
    *outer, last = axes
    line = _line(op, last)
    heights = math.prod(a.kernel for a in outer)
    length = math.prod((a.windows for a in outer), start=line.width)
    inputs, outputs = dim(op, w, 1), quotient(op, dim(op, w, 0), group)
    rows = op.Reshape(
        _by_kernel_row(op, image, outer, last, line),
        vector(op, 0, group, inputs * (heights * line.phases), length),
    )
    if outputs == 1 and line.shifts <= FEW_SHIFTS:
        total = _column_by_column(op, rows, signal, line, length)
    else:
        shifted = op.Reshape(
            _by_kernel_column(op, signal, line, length),
            vector(op, 0, group, outputs * line.shifts, length),
        )
        product = op.MatMul(rows, op.transpose(shifted, 0, 1, 3, 2))
        total = op.ReduceSum(product, [0], keepdims=0)
    if inputs == outputs == line.phases == 1:  # (group, kernel rows, kernel columns) already
        return op.Reshape(total, _shape(op, w, axes))
    parts = vector(op, group, inputs, line.phases, heights, outputs, line.shifts)
    cells = op.transpose(op.Reshape(total, parts), 0, 4, 1, 3, 5, 2)
    if line.phases > 1:
        cells = op.Reshape(cells, vector(op, group, outputs, inputs, heights, -1))
        cells = op.Slice(cells, [0], [last.span], [4], [last.dilation])
    return op.Reshape(cells, _shape(op, w, axes))


@dataclass(frozen=True)
class _Line:
    """One row of the image, its every `phases`-th element by itself.

    Attributes:
        width: elements of a row, of one phase.
        phases: the stride; the elements at 0, stride, 2·stride, … are one phase.
        shifts: how often the signal is repeated, each time `step` elements further.
    """

    width: Size
    phases: int
    shifts: int
    step: int


def _line(op: OpBuilder, axis: Axis) -> _Line:
    if axis.stride == 1:
        return _Line(axis.windows + (axis.span - 1), 1, axis.kernel, axis.dilation)
    behind = (axis.span - 1) // axis.stride
    return _Line(axis.windows + behind, axis.stride, behind + 1, 1)


def _by_kernel_row(
    op: OpBuilder, image: Tensor, outer: Sequence[Axis], last: Axis, line: _Line
) -> Tensor:
    """What each row of the kernel sees: (N, C, phases, kernel rows, windows, width)."""
    end = line.width * line.phases - last.image - last.begin
    padded = pad_image(op, image, [*outer, replace(last, end=end)], 2)
    first = 2
    if line.phases > 1:
        heights = [a.image + a.begin + a.end for a in outer]
        split = op.Reshape(padded, vector(op, 0, 0, *heights, line.width, line.phases))
        rank = len(outer) + 4
        padded = op.transpose(split, 0, 1, rank - 1, *range(2, rank - 1))
        first = 3
    for i, axis in enumerate(outer):
        cells = cell_positions(op, replace(axis, begin=0))  # (windows, kernel)
        known = cells.const
        by_row = op.transpose(cells, 1, 0) if known is None else op.const(known.T.copy())
        padded = op.Gather(padded, by_row, axis=first + 2 * i)
    if len(outer) > 1:
        kernel = [first + 2 * i for i in range(len(outer))]
        order = [*range(first), *kernel, *(k + 1 for k in kernel), first + 2 * len(outer)]
        padded = op.transpose(padded, *order)
    return padded


def _column_by_column(
    op: OpBuilder, rows: Tensor, signal: Tensor, line: _Line, length: Size
) -> Tensor:
    """(group, rows, shifts): products of one line each, with the signal moved on by padding.

    onnxruntime multiplies a single row without packing the other factor. A depthwise 3×3 kernel on
    32×32 takes 0.6 of the time of one product of three rows; with seven columns it takes 1.3 times
    as long, for the padding.
    """
    last, behind = signal.rank - 1, line.step * (line.shifts - 1)
    across, products = op.transpose(rows, 0, 1, 3, 2), []
    for moved in range(0, behind + 1, line.step):
        around = [moved, behind - moved]
        padded = op.Pad(signal, around, op.like(0, signal), op.const([last])) if behind else signal
        products.append(op.MatMul(op.Reshape(padded, vector(op, 0, 0, 1, length)), across))
    together = products[0] if len(products) == 1 else op.Concat(*products, axis=2)
    return op.transpose(op.ReduceSum(together, [0], keepdims=0), 0, 2, 1)


def _by_kernel_column(op: OpBuilder, signal: Tensor, line: _Line, length: Size) -> Tensor:
    """The signal (N, M, shifts·length), once per shift; what leaves a row was zero.

    Repeated with a period that is a step longer than the line, it moves on from line to line.
    """
    behind = line.step * (line.shifts - 1)
    if behind:
        last = signal.rank - 1
        signal = op.Pad(signal, [0, behind], op.like(0, signal), op.const([last]))
    flat = op.Reshape(signal, vector(op, 0, 0, 1, length))
    if line.shifts == 1:
        return flat
    longer = op.Pad(flat, [0, line.step], op.like(0, signal), op.const([3]))
    repeated = op.Expand(longer, [1, 1, line.shifts, 1])
    together = op.Reshape(repeated, [0, 0, -1])
    return op.Slice(together, [0], vector(op, length * line.shifts), [2])
