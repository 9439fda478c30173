"""What releases of onnxruntime that we claim to run on compute wrongly, in a form that is right.

Before 1.24 a reduction over no axes fails, or, where its axes are given and empty, leaves its
operand as it is even if it is a norm or a logarithm. Up to 1.26 a Resize whose axes count from the
end reads memory that is not its own.

The window of a GroupQueryAttention (wrong before 1.24), the four bits of a QMoE (before 1.25) and
the logistic that a classifier of two classes forgets (before 1.27) need no other form, for what is
trained and exported has none of these operators; but whoever runs the model itself with such a
release gets other numbers, so that is said. So is that every release so far moves the windows of a
Conv or LpPool with `auto_pad` SAME whose strides leave two or three elements between them: negative
padding is shared among both ends, by each of them in its own way. (MaxPool and AveragePool fail.)
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib import metadata

import onnx_ir as ir

from ..errors import OldRuntimeWarning
from ..graph.nodes import known, rank_of
from ..graph.tensor import Dim, dims_of
from .rewrite import all_nodes, standard

OF_ONE_ELEMENT = {
    "ReduceSum": "Identity", "ReduceMean": "Identity", "ReduceProd": "Identity",
    "ReduceMax": "Identity", "ReduceMin": "Identity", "ReduceLogSumExp": "Identity",
    "ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul",
}  # fmt: skip
"""What a reduction makes of a single element; the last one multiplies it with itself."""


ML = "ai.onnx.ml"
MOVING = {"Conv": 3, "LpPool": 2}
"""How many elements must be left between windows (1.31) before they are moved."""
CLASSIFIERS = {"LinearClassifier", "SVMClassifier"}


def tell_of_old_kernels(model: ir.Model) -> ir.Model:
    """Warn of operators that the installed onnxruntime computes otherwise than is trained."""
    release = installed()
    if release is None:
        return model
    for node in all_nodes(model):
        right, mistake = _mistake(node)
        if release < right:
            warnings.warn(
                f"{node.op_type} {node.name!r}: onnxruntime {release[0]}.{release[1]} {mistake}. "
                "What is trained and exported here does not; the model itself gives other numbers "
                f"with this release. Update to onnxruntime {right[0]}.{right[1]} or newer.",
                OldRuntimeWarning,
                stacklevel=2,
            )
    return model


def tell_of_moved_windows(model: ir.Model) -> ir.Model:
    """Warn where onnxruntime's windows lie elsewhere than the specification has them."""
    for node in all_nodes(model):
        if _moves_windows(node):
            warnings.warn(
                f"{node.op_type} {node.name!r}: with auto_pad SAME and strides that leave elements "
                "between the windows, onnxruntime moves these by an element or more for some sizes;"
                " gradients are those of the specification. Write the padding as pads, which is 0 "
                "wherever all windows fit.",
                OldRuntimeWarning,
                stacklevel=2,
            )
    return model


def _moves_windows(node: ir.Node) -> bool:
    attributes = node.attributes
    if standard(node.domain) or node.op_type not in MOVING:
        return False
    if not attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        return False
    strides, kernel = attributes.get_ints("strides", ()), attributes.get_ints("kernel_shape", ())
    weight = node.inputs[1] if node.op_type == "Conv" else None
    if not kernel and weight is not None and weight.shape is not None:
        kernel = [d for d in weight.shape[2:] if isinstance(d, int)]
    dilations = attributes.get_ints("dilations", ()) or [1] * len(kernel)
    image = dims_of(node.inputs[0]) if node.inputs[0] is not None else None
    sizes = image[2:] if image is not None else [None] * len(kernel)
    spare = MOVING[node.op_type]
    return any(
        _covered(stride, size) >= (width - 1) * dilation + 1 + spare
        for width, stride, dilation, size in zip(kernel, strides, dilations, sizes)
    )


def _covered(stride: int, size: Dim) -> int:
    """How many elements the last stride covers, or may cover, of an image of this size."""
    return (size - 1) % stride + 1 if isinstance(size, int) else stride


def _mistake(node: ir.Node) -> tuple[tuple[int, int], str]:
    """The first release that computes a node as it should, and what those before it do."""
    window = node.attributes.get_int("local_window_size", -1)
    if node.op_type == "GroupQueryAttention" and window > 0:
        return (1, 24), f"looks one position further back than its window of {window}"
    if node.op_type == "QMoE" and node.attributes.get_int("expert_weight_bits", 4) == 4:
        return (1, 25), "reads weights of four bits in another way"
    if node.domain == ML and node.op_type in CLASSIFIERS and _forgets_the_logistic(node):
        return (1, 27), "gives the score of the second of two classes without its logistic"
    return (0, 0), ""


def _forgets_the_logistic(node: ir.Node) -> bool:
    """Whether one score, of the second of two classes, is to go through a logistic."""
    attributes = node.attributes
    if attributes.get_string("post_transform", "NONE") != "LOGISTIC":
        return False
    if node.op_type == "LinearClassifier":
        return len(attributes.get_floats("intercepts", ())) == 1
    two = len(attributes.get_ints("vectors_per_class", ())) == 2
    return two and not attributes.get_floats("prob_a", ())


@cache
def installed() -> tuple[int, int] | None:
    """Release of the onnxruntime that is installed; None if it goes by another name."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)", metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        return None
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def suit_old_runtimes(model: ir.Model) -> ir.Model:
    """Write reductions over no axes element by element, and count the axes of Resize from 0."""
    for node in all_nodes(model):
        if standard(node.domain):
            continue
        if node.op_type in OF_ONE_ELEMENT and _reduces_nothing(node):
            _write_by_element(node)
        elif node.op_type == "Resize":
            _count_from_the_front(node)
    return model


def _reduces_nothing(node: ir.Node) -> bool:
    if not node.attributes.get_int("noop_with_empty_axes", 0):
        return False
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None:
        return True
    tensor = known(axes)
    return tensor is not None and tensor.size == 0


def _write_by_element(node: ir.Node) -> None:
    node.op_type = OF_ONE_ELEMENT[node.op_type]
    node.attributes.clear()
    node.resize_inputs(2 if node.op_type == "Mul" else 1)
    if node.op_type == "Mul":
        node.replace_input_with(1, node.inputs[0])


def _count_from_the_front(node: ir.Node) -> None:
    axes, rank = node.attributes.get("axes"), rank_of(node.inputs[0])
    if axes is not None and rank is not None:
        node.attributes["axes"] = ir.AttrInt64s("axes", [axis % rank for axis in axes.as_ints()])
