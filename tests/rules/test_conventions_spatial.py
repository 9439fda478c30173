"""Spatial operators against torch: layers as ResNets and U-Nets have them, ties, second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

from .harness import run_ort

torch = pytest.importorskip("torch")
F = torch.nn.functional
RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def tied(*shape: int) -> np.ndarray:
    """Few different values: many windows hold their maximum several times."""
    return RNG.integers(0, 3, shape).astype(np.float32)


def build(
    op: str, inputs: list[Any], attrs: dict[str, Any], weight: np.ndarray, opset: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """``loss = sum(weight * op(inputs)²)``; integers and None in `inputs` are not trained."""
    nodes, infos, constants, feeds, names = [], [], [], {}, []
    for i, array in enumerate(inputs):
        name = "" if array is None else f"x{i}"
        names.append(name)
        if array is None:
            continue
        if isinstance(array, tuple):  # a constant
            constants.append(numpy_helper.from_array(array[0], name))
            continue
        feeds[name] = array
        shape = [f"{name}_{a}" if a != 1 else d for a, d in enumerate(array.shape)]
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    constants.append(numpy_helper.from_array(weight, "r"))
    nodes = [
        helper.make_node(op, names, ["y"], name="layer", **attrs),
        helper.make_node("Mul", ["y", "y"], ["square"]),
        helper.make_node("Mul", ["square", "r"], ["terms"]),
        helper.make_node("ReduceSum", ["terms"], ["loss"], keepdims=0),
    ]
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "layer", infos, outputs, constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds, list(feeds)


def compare(
    op: str,
    inputs: list[Any],
    function: Callable[..., Any],
    opset: int = 18,
    **attrs: Any,
) -> None:
    tensors = [torch.tensor(a, requires_grad=True) for a in inputs if isinstance(a, np.ndarray)]
    y = function(*tensors)
    weight = normal(*y.shape)
    model, feeds, wrt = build(op, inputs, attrs, weight, opset)
    (y * y * torch.tensor(weight)).sum().backward()
    got = run_ort(onnxtrain.differentiate(model, wrt=wrt), feeds)[1:]
    for name, gradient, tensor in zip(wrt, got, tensors):
        expected = tensor.grad.numpy()
        scale = np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5 * scale, err_msg=name)


# --- convolutions as in ResNet and U-Net -------------------------------------------------------

CONVS = {
    "stem": ((2, 3, 33, 32), (16, 3, 7, 7), 2, 3, 1, 1),
    "basic": ((2, 16, 14, 15), (24, 16, 3, 3), 1, 1, 1, 1),
    "large": ((2, 8, 28, 28), (8, 8, 3, 3), 1, 1, 1, 1),
    "down": ((2, 16, 15, 14), (24, 16, 3, 3), 2, 1, 1, 1),
    "shortcut": ((2, 16, 15, 14), (24, 16, 1, 1), 2, 0, 1, 1),
    "deep": ((4, 32, 4, 4), (16, 32, 3, 3), 2, 1, 1, 1),
    "pointwise": ((2, 16, 7, 7), (24, 16, 1, 1), 1, 0, 1, 1),
    "dilated": ((2, 16, 13, 13), (8, 16, 3, 3), 1, 2, 2, 1),
    "grouped": ((2, 16, 9, 8), (24, 4, 3, 3), 1, 1, 1, 4),
    "depthwise": ((2, 16, 9, 8), (16, 1, 3, 3), 1, 1, 1, 16),
    "depthwise down": ((2, 16, 9, 8), (16, 1, 3, 3), 2, 1, 1, 16),
    "patches": ((2, 3, 32, 32), (12, 3, 8, 8), 8, 0, 1, 1),
}


@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str) -> None:
    xs, ws, stride, pad, dilation, group = CONVS[name]
    compare(
        "Conv",
        [normal(*xs), normal(*ws), normal(ws[0])],
        lambda x, w, b: F.conv2d(x, w, b, stride, pad, dilation, group),
        strides=[stride] * 2,
        pads=[pad] * 4,
        dilations=[dilation] * 2,
        group=group,
        kernel_shape=list(ws[2:]),
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "extra"), [(2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0)]
)
def test_conv_transpose(kernel: int, stride: int, pad: int, extra: int) -> None:
    compare(
        "ConvTranspose",
        [normal(2, 16, 7, 6), normal(16, 8, kernel, kernel), normal(8)],
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride, pad, extra),
        strides=[stride] * 2,
        pads=[pad] * 4,
        output_padding=[extra] * 2,
        kernel_shape=[kernel] * 2,
    )


# --- pools -------------------------------------------------------------------------------------

POOLS = [(2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True), (2, 2, 0, True), (3, 1, 1, False)]


@pytest.mark.parametrize("make", [normal, tied])
@pytest.mark.parametrize(("kernel", "stride", "pad", "ceil"), POOLS)
def test_max_pool(
    make: Callable[..., np.ndarray], kernel: int, stride: int, pad: int, ceil: bool
) -> None:
    compare(
        "MaxPool",
        [make(2, 3, 11, 12)],
        lambda x: F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[pad] * 4,
        ceil_mode=int(ceil),
    )


def test_max_pool_dilated_ties() -> None:
    compare(
        "MaxPool",
        [tied(2, 3, 11, 12)],
        lambda x: F.max_pool2d(x, 2, 1, 0, 3),
        kernel_shape=[2, 2],
        dilations=[3, 3],
    )


def test_global_max_pool_ties() -> None:
    compare("GlobalMaxPool", [tied(2, 3, 5, 4)], lambda x: F.adaptive_max_pool2d(x, 1))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "pad", "ceil"), POOLS)
def test_average_pool(kernel: int, stride: int, pad: int, ceil: bool, include: bool) -> None:
    compare(
        "AveragePool",
        [normal(2, 3, 11, 12)],
        lambda x: F.avg_pool2d(x, kernel, stride, pad, ceil, include),
        opset=19,
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[pad] * 4,
        ceil_mode=int(ceil),
        count_include_pad=int(include),
    )


# --- enlarging and sampling --------------------------------------------------------------------

RESIZES = {
    "nearest": ("nearest", None, {"mode": "nearest", "nearest_mode": "floor",
                                  "coordinate_transformation_mode": "asymmetric"}),
    "linear": ("bilinear", False, {"mode": "linear",
                                   "coordinate_transformation_mode": "pytorch_half_pixel"}),
    "corners": ("bilinear", True, {"mode": "linear",
                                   "coordinate_transformation_mode": "align_corners"}),
    "cubic": ("bicubic", False, {"mode": "cubic", "cubic_coeff_a": -0.75,
                                 "coordinate_transformation_mode": "pytorch_half_pixel"}),
}  # fmt: skip


@pytest.mark.parametrize("size", [(12, 14), (9, 5)])
@pytest.mark.parametrize("name", RESIZES)
def test_interpolate(name: str, size: tuple[int, int]) -> None:
    mode, corners, attrs = RESIZES[name]
    sizes = (np.array([2, 3, *size], np.int64),)
    compare(
        "Resize",
        [normal(2, 3, 6, 7), None, None, sizes],
        lambda x: F.interpolate(x, size, mode=mode, align_corners=corners),
        **attrs,
    )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    grid = RNG.uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    compare(
        "GridSample",
        [normal(2, 3, 6, 7), grid],
        lambda x, g: F.grid_sample(x, g, mode, padding, align),
        mode=mode,
        padding_mode=padding,
        align_corners=int(align),
    )


SIZES_AS_EXPORTED = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[N, C, H, W] x) => (float loss)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[2] target = {9, 12}>
    {
        shape = Shape(x)
        kept = Slice(shape, zero, two, zero)
        sizes = Concat <axis = 0> (kept, target)
        y = Resize <mode = "linear"> (x, , , sizes)
        loss = ReduceSum <keepdims = 0> (y)
    }
"""


def test_resize_leaves_batch_and_channels_alone() -> None:
    """One product per image axis, although nothing is known about the sizes but their origin."""
    model = onnxtrain.differentiate(onnx.parser.parse_model(SIZES_AS_EXPORTED), wrt=["x"])
    assert [n.op_type for n in model.graph.node].count("MatMul") == 2
    x = normal(2, 3, 5, 7)
    tensor = torch.tensor(x, requires_grad=True)
    F.interpolate(tensor, (9, 12), mode="bilinear").sum().backward()
    np.testing.assert_allclose(run_ort(model, {"x": x})[1], tensor.grad.numpy(), rtol=1e-5)


SCALES_AS_EXPORTED = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[N, 3, H, W] x) => (float loss)
    <float[4] scales = {1, 1, 2, 2}, float[3, 1, 1] gain = {1, 2, 3}>
    {
        z = Mul(x, gain)
        y = Resize(z, , scales)
        loss = ReduceSum <keepdims = 0> (y)
    }
"""


def test_scales_are_no_parameters() -> None:
    """By default all float initializers are trained; the scales of a Resize are not among them."""
    model = onnxtrain.differentiate(onnx.parser.parse_model(SCALES_AS_EXPORTED))
    assert [o.name for o in model.graph.output] == ["loss", "gain_grad"]
    assert "AveragePool" in [n.op_type for n in model.graph.node]
    x = normal(2, 3, 4, 5)
    expected = 4 * x.sum((0, 2, 3)).reshape(3, 1, 1)
    np.testing.assert_allclose(run_ort(model, {"x": x})[1], expected, rtol=1e-4, atol=1e-4)


# --- twice -------------------------------------------------------------------------------------

SECOND: dict[str, tuple[str, list[Any], Callable[..., Any], dict[str, Any]]] = {
    "conv": (
        "Conv",
        [normal(2, 5, 7, 6), normal(4, 5, 3, 3), normal(4)],
        lambda x, w, b: F.conv2d(x, w, b, 2, 1),
        {"strides": [2, 2], "pads": [1] * 4, "kernel_shape": [3, 3]},
    ),
    "conv, few channels": (
        "Conv",
        [normal(2, 3, 7, 6), normal(4, 3, 3, 3)],
        lambda x, w: F.conv2d(x, w, None, 1, 1),
        {"pads": [1] * 4, "kernel_shape": [3, 3]},
    ),
    "conv, depthwise": (
        "Conv",
        [normal(2, 4, 7, 6), normal(4, 1, 3, 3)],
        lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 4),
        {"pads": [1] * 4, "kernel_shape": [3, 3], "group": 4},
    ),
    "conv, depthwise with stride": (
        "Conv",
        [normal(2, 4, 33, 31), normal(4, 1, 3, 3)],
        lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 4),
        {"pads": [1] * 4, "kernel_shape": [3, 3], "group": 4, "strides": [2, 2]},
    ),
    "conv_transpose": (
        "ConvTranspose",
        [normal(2, 5, 4, 3), normal(5, 4, 3, 3)],
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1),
        {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1], "kernel_shape": [3, 3]},
    ),
    "max_pool": (
        "MaxPool",
        [normal(2, 3, 8, 6)],
        lambda x: F.max_pool2d(x, 2),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "max_pool, overlapping": (
        "MaxPool",
        [normal(2, 3, 8, 7)],
        lambda x: F.max_pool2d(x, 3, 2, 1),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    ),
    "average_pool": (
        "AveragePool",
        [normal(2, 3, 8, 7)],
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1},
    ),
    "nearest": (
        "Resize",
        [normal(2, 3, 4, 5), None, (np.array([1, 1, 2, 2], np.float32),)],
        lambda x: F.interpolate(x, scale_factor=2),
        RESIZES["nearest"][2],
    ),
    "linear": (
        "Resize",
        [normal(2, 3, 4, 5), None, (np.array([1, 1, 2, 2], np.float32),)],
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        RESIZES["linear"][2],
    ),
    "grid_sample": (
        "GridSample",
        [normal(2, 3, 6, 7), RNG.uniform(-0.9, 0.9, (2, 4, 5, 2)).astype(np.float32)],
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        {"mode": "bilinear"},
    ),
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", SECOND)
def test_differentiated_twice(name: str, static: bool) -> None:
    """The gradient of ``sum(v * gradient of loss)``, v fixed: the Hessian times v."""
    op, inputs, function, attrs = SECOND[name]
    tensors = [torch.tensor(a, requires_grad=True) for a in inputs if isinstance(a, np.ndarray)]
    y = function(*tensors)
    weight = normal(*y.shape)
    loss = (y * y * torch.tensor(weight)).sum()
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    directions = [normal(*t.shape) for t in tensors]
    total = sum((g * torch.tensor(v)).sum() for g, v in zip(first, directions))
    expected = torch.autograd.grad(total, tensors, allow_unused=True)
    model, feeds, wrt = build(op, inputs, attrs, weight, 18)
    if static:
        for info in model.graph.input:
            for dim, size in zip(info.type.tensor_type.shape.dim, feeds[info.name].shape):
                dim.dim_value = size
    once = onnxtrain.differentiate(model, wrt=wrt)
    terms = []
    for n, v in zip(wrt, directions):
        once.graph.initializer.append(numpy_helper.from_array(v, f"v_{n}"))
        once.graph.node.append(helper.make_node("Mul", [f"{n}_grad", f"v_{n}"], [f"m_{n}"]))
        once.graph.node.append(helper.make_node("ReduceSum", [f"m_{n}"], [f"s_{n}"], keepdims=0))
        terms.append(f"s_{n}")
    once.graph.node.append(helper.make_node("Sum", terms, ["total"]))
    del once.graph.output[:]
    once.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    twice = onnxtrain.differentiate(once, wrt=wrt, of="total", allow_unused=True)
    got = run_ort(twice, feeds)[1:]
    for n, g, e in zip(wrt, got, expected):
        wanted = np.zeros_like(feeds[n]) if e is None else e.numpy()
        scale = np.abs(wanted).max() + 1e-6
        np.testing.assert_allclose(g, wanted, rtol=2e-3, atol=2e-5 * scale, err_msg=n)
