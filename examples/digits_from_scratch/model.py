"""A small convolutional network, written as an ONNX graph; no other framework is involved."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
digits (float[batch, 1, 8, 8] image) => (float[batch, 10] logits) {
    c1 = Conv <pads = [1, 1, 1, 1]> (image, conv1_weight, conv1_bias)
    r1 = Relu (c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, conv2_weight, conv2_bias)
    r2 = Relu (c2)
    p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
    flat = Flatten (p2)
    h = Gemm <transB = 1> (flat, fc1_weight, fc1_bias)
    a = Relu (h)
    d = Dropout (a, dropout_ratio)
    logits = Gemm <transB = 1> (d, fc2_weight, fc2_bias)
}
"""
SHAPES = {
    "conv1": (16, 1, 3, 3),
    "conv2": (32, 16, 3, 3),
    "fc1": (64, 32 * 4 * 4),
    "fc2": (10, 64),
}


def build(seed: int = 0) -> onnx.ModelProto:
    """The model with fresh weights: normal, with a spread of √(2 / fan-in); biases are zero."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(GRAPH)
    for layer, shape in SHAPES.items():
        weight = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        bias = np.zeros(shape[0], np.float32)
        for name, array in ((f"{layer}_weight", weight), (f"{layer}_bias", bias)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ratio = onnx.numpy_helper.from_array(np.array(0.4, np.float32), "dropout_ratio")
    model.graph.initializer.append(ratio)
    onnx.checker.check_model(model, full_check=True)
    return model
