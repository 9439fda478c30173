"""Pools that round their number of windows up, where onnx and onnxruntime count differently.

With `ceil_mode` a last window that would start behind the image is dropped, by torch and
onnxruntime; onnx's shape inference counts it. Such a pool is written with explicit padding
instead, about which all agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx.shape_inference
import onnx_ir as ir

from ..graph.infer import through_proto
from ..graph.tensor import dims_of
from ..operators import POOLS
from .rewrite import all_nodes, standard


def count_windows(model: ir.Model) -> ir.Model:
    """Write pools whose last window is dropped without `ceil_mode`."""
    while any(_rounds_up(node) for node in all_nodes(model)):
        sizes = _image_sizes(model)
        pools = [n for n in all_nodes(model) if _rounds_up(n)]
        # One at a time: the sizes behind it follow from how it is written
        if not any(_write_out(node, sizes.get(node.inputs[0].name)) for node in pools):  # type: ignore[union-attr]
            break
    return model


def _rounds_up(node: ir.Node) -> bool:
    is_pool = node.op_type in POOLS and not standard(node.domain)
    return is_pool and node.attributes.get_int("ceil_mode", 0) == 1


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
    """Whether a pool drops a window and could be written without `ceil_mode`."""
    axes = _axes(node, image)
    if axes is None or not any(a.count != a.up for a in axes):
        return False
    included = node.attributes.get_int("count_include_pad", 0)
    counts_padding = node.op_type == "AveragePool" and included == 1
    moved = any(a.padding != a.end for a in axes)
    if moved and (counts_padding or any(a.padding >= a.kernel for a in axes)):
        return False  # not the same, or more padding than onnxruntime takes
    pads = [*(a.begin for a in axes), *(a.padding for a in axes)]
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    del node.attributes["ceil_mode"]
    return True


def _axes(node: ir.Node, image: Sequence[int | str | None] | None) -> list[_Windows] | None:
    kernel = list(node.attributes["kernel_shape"].as_ints())
    rank = len(kernel)
    sizes = [s for s in image or () if isinstance(s, int)]
    padding = node.attributes.get_string("auto_pad", "NOTSET")
    if len(sizes) != rank or padding not in ("", "NOTSET", "VALID"):
        return None
    strides, dilations, pads = (
        list(node.attributes[name].as_ints()) if name in node.attributes else default
        for name, default in (("strides", [1] * rank), ("dilations", [1] * rank), ("pads", []))
    )
    pads = pads if pads and padding != "VALID" else [0] * 2 * rank
    return [
        _Windows(sizes[i], k, (k - 1) * dilations[i] + 1, strides[i], pads[i], pads[i + rank])
        for i, k in enumerate(kernel)
    ]
