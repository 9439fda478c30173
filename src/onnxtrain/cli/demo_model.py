"""The small convolutional network of the demo, built with onnx alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def digits_network(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions, a pooling and two dense layers: N×1×8×8 → N×10, 38,282 numbers.

    Weights are random, as in He et al.: normal with variance 2 / fan-in; biases are 0.
    """
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Array:
        fan_in = int(np.prod(shape[1:]))
        drawn = rng.standard_normal(shape) * np.sqrt(2 / fan_in)
        return np.asarray(drawn, np.float32)

    values = {
        "conv1.weight": weight(16, 1, 3, 3),
        "conv1.bias": np.zeros(16, np.float32),
        "conv2.weight": weight(32, 16, 3, 3),
        "conv2.bias": np.zeros(32, np.float32),
        "fc1.weight": weight(64, 512),
        "fc1.bias": np.zeros(64, np.float32),
        "fc2.weight": weight(10, 64),
        "fc2.bias": np.zeros(10, np.float32),
    }
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", **same),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", **same),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["r3"], "relu3"),
        helper.make_node("Gemm", ["r3", "fc2.weight", "fc2.bias"], ["scores"], "fc2", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(v, n) for n, v in values.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="onnxtrain demo")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model
