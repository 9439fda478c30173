"""Resize that crops: regions that the model computes get a gradient.

With `tf_crop_and_resize` output i along an axis of length n is read at the position
``(start + i·(end − start)/(m − 1))·(n − 1)`` for m outputs, or in the middle for one. Written with
standard operators, a linear interpolation passes gradients to start and end. Regions that are
constants, and the other modes, keep the operator: a nearest pixel does not change with the region.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .custom_types import infer_with_custom
from .rewrite import all_nodes, rewrite_typed, standard

DOMAIN, NAME = "onnxtrain", "LinearCrop"


def open_crops(model: ir.Model) -> ir.Model:
    """Write every linear Resize of a computed region as interpolation along its axes."""
    nodes = [n for n in all_nodes(model) if _crops(n)]
    if not nodes:
        return model
    model = infer_with_custom(model)
    for node in (n for n in all_nodes(model) if _crops(n)):
        node.domain, node.op_type = DOMAIN, NAME
    model.opset_imports[DOMAIN] = 1
    return rewrite_typed(model, {(DOMAIN, NAME): linear_crop}, model.opset_imports[""])


def _crops(node: ir.Node) -> bool:
    if standard(node.domain) or node.op_type != "Resize" or len(node.inputs) < 2:
        return False
    words = {n: a.value for n, a in node.attributes.items() if a.type == ir.AttributeType.STRING}
    region = node.inputs[1]
    return (
        words.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        and words.get("mode") == "linear"
        and region is not None
        and region.const_value is None
    )


def linear_crop(
    op: OpBuilder, x: Tensor, roi: Tensor, scales: Tensor | None, sizes: Tensor | None,
    *, extrapolation_value: float = 0.0, axes: Any = None, **attributes: Any,
) -> Tensor:  # fmt: skip
    """Resize along one axis after the other; outside of the image a constant is read."""
    chosen = [a % x.rank for a in axes] if axes else list(range(x.rank))
    before = op.Gather(op.Shape(x), op.const(np.array(chosen)), axis=0)
    if sizes is None:
        assert scales is not None
        wide = op.Cast(before, to=scales.dtype) * scales
        sizes = op.Cast(op.Floor(wide), to=ir.DataType.INT64)
    y, inside = x, None
    for place, axis in enumerate(chosen):
        matrix, seen = _hats(op, x, roi, before, sizes, place, len(chosen))
        y = _along(op, y, matrix, axis, x.rank)
        shaped = op.Reshape(seen, [-1, *[1] * (x.rank - 1 - axis)])
        inside = shaped if inside is None else op.And(inside, shaped)
    assert inside is not None
    return op.Where(inside, y, op.like(extrapolation_value, x))


def _hats(
    op: OpBuilder, x: Tensor, roi: Tensor, before: Tensor, sizes: Tensor, place: int, count: int
) -> tuple[Tensor, Tensor]:
    """What each output along an axis takes of each input, and whether it lies in the image."""
    ends = [op.Cast(op.Slice(roi, [i], [i + 1]), to=x.dtype) for i in (place, place + count)]
    length, number = (op.Slice(s, [place], [place + 1]) for s in (before, sizes))
    last, steps = (op.Cast(t, to=x.dtype) - 1.0 for t in (length, number))
    outputs, inputs = (op.Cast(_line(op, t), to=x.dtype) for t in (number, length))
    share = op.Where(steps > 0.0, outputs / op.Max(steps, op.like(1.0, x)), op.like(0.5, x))
    where = (ends[0] + share * (ends[1] - ends[0])) * last
    hats = op.Relu(1.0 - op.Abs(op.Unsqueeze(where, [1]) - op.Unsqueeze(inputs, [0])))
    return hats, op.And(where >= 0.0, where <= last)


def _line(op: OpBuilder, size: Tensor) -> Tensor:
    """0, 1, 2, … up to a size of shape [1]."""
    return op.Range(op.const(np.array(0)), op.Squeeze(size, [0]), op.const(np.array(1)))


def _along(op: OpBuilder, x: Tensor, matrix: Tensor, axis: int, rank: int) -> Tensor:
    """Multiply a matrix (outputs, inputs) along one axis."""
    order = [a for a in range(rank) if a != axis]
    last = op.MatMul(op.Transpose(x, perm=[*order, axis]), op.Transpose(matrix, perm=[1, 0]))
    back = [int(a) for a in np.argsort([*order, axis])]
    return op.Transpose(last, perm=back)
