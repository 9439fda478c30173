"""Pools whose windows onnx and onnxruntime count differently.

With `ceil_mode` a last window that would start behind the image is dropped, by torch and
onnxruntime; onnx's shape inference counts it. With `auto_pad` SAME and dilations, onnxruntime pads
as if the kernel were not dilated, and has fewer windows than onnx says. Such a pool is written with
explicit padding instead, about which all agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from ..errors import ModelError
from ..graph.infer import through_proto
from ..graph.nodes import initializer
from ..graph.parameters import mark_constant
from ..graph.tensor import dims_of
from ..operators import POOLS
from .rewrite import all_nodes, describe, standard


def count_windows(model: ir.Model) -> ir.Model:
    """Write pools whose last window is dropped without `ceil_mode`, dilated ones with pads."""
    while any(_may_differ(node) for node in all_nodes(model)):
        sizes = _image_sizes(model)
        pools = [n for n in all_nodes(model) if _may_differ(n)]
        # One at a time: the sizes behind it follow from how it is written
        if not any(_write_out(node, sizes.get(node.inputs[0].name)) for node in pools):  # type: ignore[union-attr]
            break
    return model


def _may_differ(node: ir.Node) -> bool:
    is_pool = node.op_type in POOLS and not standard(node.domain)
    return is_pool and (node.attributes.get_int("ceil_mode", 0) == 1 or _is_same_dilated(node))


def _is_same_dilated(node: ir.Node) -> bool:
    """Whether its padding is chosen by onnxruntime, for a kernel that is dilated."""
    is_dilated = any(d > 1 for d in node.attributes.get_ints("dilations", ()))
    return is_dilated and node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")


def _image_sizes(model: ir.Model) -> dict[str | None, Sequence[int | str | None]]:
    """The spatial sizes of all values, without what the file says about them."""

    def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            output.type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)

    inferred = through_proto(model.clone(), infer)
    values = [v for n in inferred.graph.all_nodes() for v in n.inputs if v is not None]
    return {v.name: dims[2:] for v in values if (dims := dims_of(v)) is not None}


@dataclass(frozen=True)
class _Windows:
    """The windows along one axis."""

    image: int
    kernel: int
    span: int
    stride: int
    begin: int
    end: int

    @property
    def drops(self) -> bool:
        """Whether rounding up counts a window that starts behind the image."""
        return self.count != self.up

    @property
    def down(self) -> int:
        """Their number, rounded down."""
        return (self.image + self.begin + self.end - self.span) // self.stride + 1

    @property
    def up(self) -> int:
        """Their number, rounded up."""
        return -(-(self.image + self.begin + self.end - self.span) // self.stride) + 1

    @property
    def count(self) -> int:
        """Their number without one that starts behind the image."""
        return self.up - int((self.up - 1) * self.stride >= self.image + self.begin)

    @property
    def padding(self) -> int:
        """The padding behind the image with which rounding down gives the count."""
        needed = (self.count - 1) * self.stride + self.span - self.image - self.begin
        return max(needed, self.end) if self.count > self.down else self.end


def _write_out(node: ir.Node, image: Sequence[int | str | None] | None) -> bool:
    """Whether a pool was written in another way, about which there is no doubt."""
    rank = len(node.attributes["kernel_shape"].as_ints())
    sizes = list(image) if image is not None and len(image) == rank else [None] * rank
    if _is_same_dilated(node):
        return _name_padding(node, sizes)
    axes = _axes(node, sizes)
    if not any(a is not None and a.drops for a in axes):
        return False
    known = [a for a in axes if a is not None]
    included = node.attributes.get_int("count_include_pad", 0)
    counts_padding = node.op_type == "AveragePool" and included == 1
    if len(known) < rank:
        return _shortened(node, axes, counts_padding)
    return _rounded_down(node, known, counts_padding)


def _rounded_down(node: ir.Node, axes: Sequence[_Windows], counts_padding: bool) -> bool:
    """Without `ceil_mode`, all sizes being known."""
    moved = any(a.padding != a.end for a in axes)
    if moved and (counts_padding or any(a.padding >= a.kernel for a in axes)):
        return False  # not the same, or more padding than onnxruntime takes
    pads = [*(a.begin for a in axes), *(a.padding for a in axes)]
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    del node.attributes["ceil_mode"]
    return True


def _shortened(node: ir.Node, axes: Sequence[_Windows | None], counts_padding: bool) -> bool:
    """With so little behind a known size that no window starts there; other axes stay."""
    rank = len(axes)
    pads = list(node.attributes.get_ints("pads", [0] * 2 * rank))
    cropped: dict[int, int] = {}
    for i, axis in enumerate(axes):
        if axis is None or not axis.drops:
            continue
        rest = (axis.count - 1) * axis.stride + axis.span - axis.image - axis.begin
        pads[i + rank] = max(rest, 0)
        if rest < 0:  # the end of the image is in no window
            cropped[i + 2] = axis.image + rest
    if counts_padding:
        return False
    if cropped:
        _crop(node, cropped)
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return True


def _crop(node: ir.Node, sizes: Mapping[int, int]) -> None:
    """Give a node the first so many elements along some axes."""
    graph, image = node.graph, node.inputs[0]
    assert isinstance(graph, ir.Graph)
    assert image is not None
    stem = f"{node.outputs[0].name}_crop"
    bounds = {"starts": [0] * len(sizes), "ends": list(sizes.values()), "axes": list(sizes)}
    operands = [
        initializer(graph, f"{stem}_{name}", np.array(numbers, np.int64))
        for name, numbers in bounds.items()
    ]
    for value in operands:
        mark_constant(value)
    crop = ir.node("Slice", [image, *operands], name=stem)
    crop.outputs[0].name, crop.outputs[0].type = stem, image.type
    graph.insert_before(node, crop)
    node.replace_input_with(0, crop.outputs[0])


def _name_padding(node: ir.Node, sizes: Sequence[int | str | None]) -> bool:
    """The padding that onnxruntime chooses: for as many windows as an undilated kernel has."""
    kernel = node.attributes["kernel_shape"].as_ints()
    strides = node.attributes.get_ints("strides", [1] * len(kernel))
    totals = []
    is_open = [stride > 1 and not isinstance(s, int) for stride, s in zip(strides, sizes)]
    if any(is_open):
        if any(isinstance(size, int) for size in sizes):
            raise ModelError(
                f"{describe(node)} has dilations, strides and auto_pad, and its image has a known "
                "and an open size: onnx and onnxruntime count its windows differently. Give the "
                "node explicit pads, or the image sizes that are all known or all open."
            )
        return False  # nothing is said of their number, and the rule follows onnxruntime
    for k, stride, size in zip(kernel, strides, sizes):
        more = -(-size // stride) * stride - size if isinstance(size, int) else 0
        totals.append(max(k - stride + more, 0))
    pads = shared_out(totals, node.attributes.get_string("auto_pad", ""))
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    del node.attributes["auto_pad"]
    return True


def shared_out(totals: Sequence[int], way: str) -> list[int]:
    """Padding before and behind, axis by axis: SAME_UPPER puts the odd one behind."""
    less, rest = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*less, *rest] if way == "SAME_UPPER" else [*rest, *less]


def _axes(node: ir.Node, sizes: Sequence[int | str | None]) -> list[_Windows | None]:
    """The windows along axes whose size is known."""
    kernel = list(node.attributes["kernel_shape"].as_ints())
    rank = len(kernel)
    padding = node.attributes.get_string("auto_pad", "NOTSET")
    if padding not in ("", "NOTSET", "VALID"):
        return [None] * rank
    strides = node.attributes.get_ints("strides", [1] * rank)
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    pads = node.attributes.get_ints("pads", ()) if padding != "VALID" else ()
    pads = pads or [0] * 2 * rank
    return [
        _Windows(size, k, (k - 1) * dilations[i] + 1, strides[i], pads[i], pads[i + rank])
        if isinstance(size, int)
        else None
        for i, (k, size) in enumerate(zip(kernel, sizes))
    ]
