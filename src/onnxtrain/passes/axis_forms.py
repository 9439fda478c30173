"""What goes along axes, in other forms: norms by groups, softmax, resizing, places in planes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
import onnx_ir as ir

from ..autodiff.composites import as_operator
from ..autodiff.registry import is_rule
from ..autodiff.rules import elementwise, movement, normalization, softmax
from ..autodiff.rules.resize import as_products
from ..autodiff.rules.resize import resize as resize_rule
from ..autodiff.walk import attributes_of
from ..graph import OpBuilder, Tensor
from ..graph.nodes import ints, producer_of
from ..graph.tensor import dims_of
from .forms import Written, composite, operand
from .group_norm import group_norm_parts

VOLUMES = 5
"""Axes of volumes: images, channels, and three more."""


LAST = np.iinfo(np.int64).max


def group_norm(op: OpBuilder, node: ir.Node) -> Written:
    """The statistics once, for both halves: x - μ times scale·r, a number per image and channel."""
    parts = group_norm_parts(node)
    assert parts is not None
    x, scale, bias = (op.tensor(v) for v in (parts.x, parts.scale, parts.bias))
    groups, by_group = parts.groups, op.Reshape(x, [0, parts.groups, -1])
    centred, rstd = normalization.centre(op, by_group, [2], parts.epsilon)
    maps = [0, x.dim(1), *[1] * (x.rank - 2)]
    slope = op.Reshape(op.Reshape(scale, [groups, -1]) * rstd, maps)
    y = op.reshape_like(centred, x) * slope + bias

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        x, scale, bias = (op.tensor(v) for v in (parts.x, parts.scale, parts.bias))
        vectors = [op.Reshape(v, [-1]) for v in (scale, bias)]
        for vector in vectors:
            vector.value.shape = ir.Shape([x.dim(1)])
        by, shift = vectors
        c, r = (op.tensor(v.value) for v in (centred, rstd))
        dx, *rest = normalization.group_gradient(op, dy, x, by, shift, c, r, groups)
        d_scale, d_bias = (op.reshape_like(d, v) for d, v in zip(rest, (scale, bias)))
        return [(parts.x, dx), (parts.scale, d_scale), (parts.bias, d_bias)]

    return Written(y, lambda new: composite(new, gradient))


def is_group_norm(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a sum is the last of a norm by groups, as exporters write it."""
    parts = group_norm_parts(node)
    rules = (
        (normalization.instance_normalization, "InstanceNormalization"),
        (elementwise.mul, "Mul"),
    )
    return (
        parts is not None
        and all(is_rule(rule, op_type) for rule, op_type in rules)
        and not any(v.name in named for v in parts.inner)
    )


def softmax_across(op: OpBuilder, node: ir.Node) -> Written:
    """Along an axis that is not the last, the kernels of Softmax and LogSoftmax transpose."""
    x, axis = operand(op, node), node.attributes.get_int("axis", -1)
    is_log, op_type = node.op_type == "LogSoftmax", node.op_type
    form = softmax.log_softmax_across if is_log else softmax.softmax_across
    y = form(op, x, axis)
    return Written(y, lambda nodes: as_operator(op_type, nodes, x.value, axis=axis))


def is_across(rule: Callable[..., object]) -> Callable[[ir.Node, Collection[str]], bool]:
    """What says whether a softmax is along an axis that is not the last."""

    def applies(node: ir.Node, _: Collection[str]) -> bool:
        dims = None if node.inputs[0] is None else dims_of(node.inputs[0])
        axis = node.attributes.get_int("axis", -1)
        return is_rule(rule, node.op_type) and softmax.is_across(dims, axis)

    return applies


def resize(op: OpBuilder, node: ir.Node) -> Written:
    """A product with an interpolation matrix per axis, or the nearest elements of volumes."""
    x, roi, scales, sizes = [
        None if v is None else op.tensor(v) for v in (*node.inputs, None, None, None)[:4]
    ]
    assert x is not None
    y = op.tensor(node.outputs[0])
    if not _is_cubic(node, ()):
        return nearest_of_volumes(op, node, x, scales, sizes)
    return Written(as_products(op, x, y, roi, scales, sizes, attributes_of(node, None)))


def nearest_of_volumes(
    op: OpBuilder, node: ir.Node, x: Tensor, scales: Tensor | None, sizes: Tensor | None
) -> Written:
    """Images and channels as one axis: onnxruntime has loops for up to four.

    With five, 16,380 volumes of 4³ to 3³ take 3.8 ms instead of 0.3, on one thread.
    """
    before, after = (dims_of(value) or () for value in (x.value, node.outputs[0]))
    attributes, spatial = attributes_of(node, None), [1, 2, 3]
    options = {k: v for k, v in attributes.items() if k != "axes"}
    volumes = op.Reshape(x, [-1, *before[2:]])
    if sizes is not None:
        behind = op.const(np.array(after[2:], np.int64))
        y = op.Resize(volumes, None, None, behind, axes=spatial, **options)
    else:
        assert scales is not None
        y = op.Resize(volumes, None, op.Slice(scales, [-3], [LAST]), None, axes=spatial, **options)
    result = op.Reshape(y, [-1, *after[1:]])

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        inputs = (op.tensor(result.value), op.tensor(x.value), None, scales, sizes)
        return [(x.value, resize_rule(op, dy, *inputs, **attributes))]

    return Written(result, lambda nodes: composite(nodes, gradient))


def _is_cubic(node: ir.Node, named: Collection[str]) -> bool:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    cubic = node.attributes.get_string("mode", "nearest") == "cubic"
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    return cubic and mode != "tf_crop_and_resize" and rank is not None


def is_resized(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Resize is cubic, or takes the nearest elements of volumes."""
    return _is_cubic(node, named) or _is_of_volumes(node)


def _is_of_volumes(node: ir.Node) -> bool:
    """Whether the nearest elements of volumes are taken, whose sizes are known."""
    x, y, said = node.inputs[0], node.outputs[0], node.attributes
    before, after = (None if v is None else dims_of(v) for v in (x, y))
    if before is None or after is None or not len(before) == len(after) == VOLUMES:
        return False
    axes = [a % VOLUMES for a in said.get_ints("axes", range(VOLUMES))]
    is_plain = (
        said.get_string("mode", "nearest") == "nearest"
        and said.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and said.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and axes in ([2, 3, 4], [*range(VOLUMES)])
        and is_rule(resize_rule, "Resize")
    )
    sizes = [d for d in (*before[1:], *after[1:]) if isinstance(d, int) and d > 0]
    return is_plain and before[:2] == after[:2] and len(sizes) == 2 * (VOLUMES - 1)


def start_of_planes(op: OpBuilder, node: ir.Node) -> Written:
    """Places are counted through: exporters ask a pool for them, to count anew in each plane.

    A million numbers take that pool 7.8 ms.
    """
    places = node.inputs[0]
    pool = None if places is None else places.producer()
    assert pool is not None
    x = operand(op, pool)
    channels, *sizes = (d for d in (dims_of(x.value) or ())[1:] if isinstance(d, int))
    starts = op.Range(0, op.Size(x), math.prod(sizes))
    return Written(op.Reshape(starts, [-1, channels, *[1] * len(sizes)]))


def is_start_of_planes(node: ir.Node, named: Collection[str]) -> bool:
    """Whether the place of the first element of each plane is asked of a pool that copies."""
    places = node.inputs[0]
    pool = None if places is None else places.producer()
    if pool is None or pool.op_type != "MaxPool" or pool.domain or places is pool.outputs[0]:
        return False
    kernel, said = pool.attributes.get_ints("kernel_shape", ()), pool.attributes
    image = None if pool.inputs[0] is None else dims_of(pool.inputs[0])
    ones = [1] * len(kernel)
    is_copy = (
        list(kernel) == list(said.get_ints("strides", ones)) == ones
        and not any(said.get_ints("pads", ()))
        and not said.get_int("storage_order", 0)
    )
    if not is_copy or image is None or not all(isinstance(d, int) and d > 0 for d in image[1:]):
        return False
    begin, end, axes, steps = (ints(v) for v in (*node.inputs[1:], None)[:4])
    spatial = list(range(2, len(image)))
    is_first = begin == [0] * len(spatial) and end == ones and steps in (None, ones)
    return is_first and axes is not None and [a % len(image) for a in axes] == spatial


def slices_of_joined(op: OpBuilder, node: ir.Node) -> Written:
    """What is cut off is not joined before, and its gradient is not taken apart."""
    joined = producer_of(node.inputs[0], "Concat")
    assert joined is not None
    bounds = [None if v is None else op.tensor(v) for v in node.inputs[1:]]
    parts = [op.Slice(op.tensor(v), *bounds) for v in joined.inputs if v is not None]
    return Written(op.Concat(*parts, axis=joined.attributes.get_int("axis", 0)))


def is_slice_of_joined(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a Slice is all that reads a Concat, and is along other axes.

    Exporters join real numbers with zeros to make them complex, and cut the signal then.
    """
    joined, axes = producer_of(node.inputs[0], "Concat"), (*node.inputs, None)[3]
    if joined is None or axes is None or not is_rule(movement.concat, "Concat"):
        return False
    result, cut = joined.outputs[0], ints(axes)
    if result.name in named or result.is_graph_output() or len(result.uses()) != 1:
        return False
    rank = len(result.shape) if result.shape is not None else 0
    along = joined.attributes.get_int("axis", 0)
    return bool(cut) and rank > 0 and all(a % rank != along % rank for a in cut or ())
