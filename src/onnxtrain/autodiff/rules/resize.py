"""Resize: a linear map along each axis, whatever the mode.

The gradient multiplies by the transposed interpolation matrix, axis after axis. That matrix is
what the operator itself makes of an identity matrix, so every mode, coordinate transformation
and rounding is right without its formula being repeated here; with known sizes onnxruntime
computes it once, when it loads the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.provenance import elements, numbers
from ...graph.tensor import Dim
from ..registry import gradient
from ._index import dim, vector
from .axis_maps import along, back_along


@gradient("Resize", stops=(1, 2, 3))
def resize(
    op: OpBuilder,
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    **attributes: Any,
) -> Any:
    rank = x.rank
    axes = [a % rank for a in attributes.pop("axes", None) or range(rank)]
    scales = _known(op, scales)
    factors = _repeats(op, x, y, axes, scales, attributes)
    if factors is not None:
        return _sum_of_blocks(op, dy, factors)
    matrices = {
        axis: _matrix(op, x, y, axes, index, roi, scales, sizes, attributes)
        for index, axis in enumerate(axes)
        if not _unchanged(x, y, axis, index, scales, sizes, attributes)
    }
    if _is_one_small_map(x, y, matrices):
        return _back_at_once(op, dy, x, y, matrices)
    for axis, matrix in matrices.items():
        dy = back_along(op, dy, matrix, axis, rank)
    return dy


SMALL_MAP = 4096
"""Pixels of a map before, times those after it was resized, up to which one product with all of
them is faster than one for each axis, of which onnxruntime takes those of small matrices one by
one: a million numbers on one thread, 4×4 to 3×3 0.17 instead of 5.4 ms, 6×6 to 5×5 0.3 instead of
2.6; 8×8 to 16×16 (four times as much) takes as long, and from there on longer."""


def _is_one_small_map(x: Tensor, y: Tensor, changed: Collection[int]) -> bool:
    """Whether the last axes, and more than one, are resized, and how large they are is known."""
    first = min(changed, default=x.rank)
    if first + 1 >= x.rank or {*changed} != {*range(first, x.rank)}:
        return False
    sizes = [t.dim(axis) for t in (x, y) for axis in range(first, x.rank)]
    known = [size for size in sizes if isinstance(size, int)]
    return len(known) == len(sizes) and math.prod(known) <= SMALL_MAP


def _back_at_once(
    op: OpBuilder, dy: Tensor, x: Tensor, y: Tensor, matrices: Mapping[int, Tensor]
) -> Tensor:
    """``(A₁ ⊗ A₂ ⊗ …)ᵀ·dy``, which is one product for all maps."""
    first = min(matrices)
    after, before = ([t.dim(axis) for axis in range(first, x.rank)] for t in (y, x))
    product, *others = (
        op.Reshape(
            matrices[axis],
            [*_only(i, after[i], len(after)), *_only(i, before[i], len(before))],
        )
        for i, axis in enumerate(range(first, x.rank))
    )
    for other in others:
        product = product * other
    matrix = op.Reshape(product, [_product(after), _product(before)])
    flat = op.Reshape(dy, [*[0] * first, _product(after)])
    return op.Reshape(op.MatMul(flat, matrix), [*[0] * first, *before])


def _only(place: int, size: Dim, count: int) -> list[Dim]:
    """A shape of so many axes, with one that is not 1."""
    return [size if i == place else 1 for i in range(count)]


def _product(sizes: Iterable[Dim]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))


def as_products(
    op: OpBuilder,
    x: Tensor,
    y: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    attributes: dict[str, Any],
) -> Tensor:
    """What Resize computes, as a product with an interpolation matrix per axis."""
    rank = x.rank
    axes = [a % rank for a in attributes.pop("axes", None) or range(rank)]
    scales = _known(op, scales)
    result = x
    for place, axis in enumerate(axes):
        if not _unchanged(x, y, axis, place, scales, sizes, attributes):
            matrix = _matrix(op, x, y, axes, place, roi, scales, sizes, attributes)
            result = along(op, result, matrix, axis, rank)
    return op.Identity(x) if result is x else result


def _known(op: OpBuilder, scales: Tensor | None) -> Tensor | None:
    """The scales as a constant where they follow; an empty tensor is how they were once omitted."""
    if scales is None:
        return None
    known = numbers(scales)
    if known is None:
        return scales
    return op.const(np.array(known, np.float32), scales.dtype) if known else None


def _crops(attributes: dict[str, Any]) -> bool:
    return bool(attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize")


def _unchanged(
    x: Tensor,
    y: Tensor,
    axis: int,
    index: int,
    scales: Tensor | None,
    sizes: Tensor | None,
    attributes: dict[str, Any],
) -> bool:
    """Whether the operator surely leaves this axis alone."""
    if _crops(attributes):
        return False
    if scales is not None:
        return scales.const is not None and bool(scales.const[index] == 1)
    if x.dim(axis) is not None and x.dim(axis) == y.dim(axis):
        return True
    if sizes is None or attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    target = elements(sizes)
    return target is not None and target[index] == (x.value, axis)


# --- whole-number enlargement ------------------------------------------------------------------

CENTRED = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


def _repeats(
    op: OpBuilder,
    x: Tensor,
    y: Tensor,
    axes: Sequence[int],
    scales: Tensor | None,
    attributes: dict[str, Any],
) -> list[int] | None:
    """How often each pixel is repeated along the spatial axes; None when it is anything else."""
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    centred = mode in CENTRED and rounding.startswith("round")
    if attributes.get("mode", "nearest") != "nearest" or x.dtype.name not in ("FLOAT", "FLOAT16"):
        return None
    if not (centred or (mode == "asymmetric" and rounding == "floor")) or x.rank not in (3, 4, 5):
        return None
    factors = [1.0] * x.rank
    for index, axis in enumerate(axes):
        before, after = x.dim(axis), y.dim(axis)
        if scales is not None and scales.const is not None:
            factors[axis] = float(scales.const[index])
        elif isinstance(before, int) and isinstance(after, int) and scales is None and before:
            factors[axis] = after / before
        elif before is None or before != after or scales is not None:
            return None
    if factors[0] != 1 or factors[1] != 1 or any(f < 1 or f % 1 for f in factors):
        return None
    return [int(f) for f in factors[2:]]


def _sum_of_blocks(op: OpBuilder, dy: Tensor, factors: Sequence[int]) -> Tensor:
    if all(f == 1 for f in factors):
        return op.Identity(dy)
    mean = op.AveragePool(dy, kernel_shape=list(factors), strides=list(factors))
    return mean * float(math.prod(factors))


# --- interpolation matrices --------------------------------------------------------------------


def _matrix(
    op: OpBuilder,
    x: Tensor,
    y: Tensor,
    axes: Sequence[int],
    index: int,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    attributes: dict[str, Any],
) -> Tensor:
    """The interpolation matrix (outputs, inputs) of one axis: an identity matrix, resized."""
    axis, options = axes[index], dict(attributes)
    options.pop("extrapolation_value", None)  # a constant: it has no gradient
    before = dim(op, x, axis)
    square = op.full(vector(op, before, before), 0, ir.DataType.FLOAT)
    image = op.Reshape(op.EyeLike(square), vector(op, 1, before, 1, before))
    if scales is not None:
        one = op.const(np.ones(3, np.float32))
        scale = op.Concat(one, _pick(op, scales, index), axis=0)
        wide = op.Resize(image, _span(op, roi, axes, index, attributes), scale, None, **options)
    elif options.pop("keep_aspect_ratio_policy", "stretch") == "stretch":
        # not the size of y where that is open: in a forward graph, y may be what this computes
        assert sizes is not None
        size = y.dim(axis)
        target = vector(
            op, 1, before, 1, size if isinstance(size, int) else _pick(op, sizes, index)
        )
        wide = op.Resize(image, _span(op, roi, axes, index, attributes), None, target, **options)
    else:
        assert sizes is not None
        wide = _keeping_aspect(op, x, image, axes, index, sizes, attributes)
    matrix = op.transpose(op.Reshape(wide, vector(op, before, -1)), 1, 0)
    return matrix if x.dtype == ir.DataType.FLOAT else op.Cast(matrix, to=x.dtype)


def _pick(op: OpBuilder, values: Tensor, index: int) -> Tensor:
    """One element, as a tensor of shape [1]."""
    if values.const is not None:
        return op.const(np.asarray(values.const)[index : index + 1])
    return op.Slice(values, [index], [index + 1])


def _span(
    op: OpBuilder,
    roi: Tensor | None,
    axes: Sequence[int],
    index: int,
    attributes: dict[str, Any],
) -> Tensor | None:
    """The part of the axis that tf_crop_and_resize looks at, as `roi` of a 4-D image."""
    if roi is None or not _crops(attributes):
        return None
    first, last = _pick(op, roi, index), _pick(op, roi, index + len(axes))
    zeros, ones = op.const(np.zeros(3), roi.dtype), op.const(np.ones(3), roi.dtype)
    return op.Concat(zeros, first, ones, last, axis=0)


def _keeping_aspect(
    op: OpBuilder,
    x: Tensor,
    image: Tensor,
    axes: Sequence[int],
    index: int,
    sizes: Tensor,
    attributes: dict[str, Any],
) -> Tensor:
    """One scale for all axes, that of the axis which limits it; a second axis brings it along."""
    here = op.const(np.array(axes, np.int64))
    before = op.Gather(op.shape_of(x), here, axis=0)
    ratios = op.Cast(sizes, to=ir.DataType.FLOAT) / op.Cast(before, to=ir.DataType.FLOAT)
    smallest = attributes["keep_aspect_ratio_policy"] == "not_larger"
    limit = (op.ArgMin if smallest else op.ArgMax)(ratios, axis=0, keepdims=1)
    width = op.Gather(before, limit, axis=0)
    lines = op.transpose(image, 0, 1, 3, 2)  # (1, rows, this axis, 1)
    one = op.const(np.ones(3, np.int64))
    plane = op.Expand(lines, op.Concat(one, width, axis=0))
    target = op.Concat(_pick(op, sizes, index), op.Gather(sizes, limit, axis=0), axis=0)
    large = op.Resize(plane, None, None, target, **{**attributes, "axes": [2, 3]})
    return op.Slice(large, [0], [1], [3])
