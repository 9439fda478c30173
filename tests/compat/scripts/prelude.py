"""What the scripts in miniature find ready: models, data, a folder of artifacts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

RNG = np.random.default_rng(7)


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return (RNG.normal(size=shape) * 0.5).astype(np.float32)


def mlp(outputs: int = 1) -> onnx.ModelProto:
    """Two layers; with two outputs the hidden layer is the other."""
    second = ", float[N, 6] hidden" if outputs == 2 else ""
    name = "hidden" if outputs == 2 else "h"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, 3] output{second}) {{
            z = Gemm(x, weight1, bias1)
            {name} = Relu(z)
            output = Gemm({name}, weight2, bias2)
        }}""")
    shapes = {"weight1": (4, 6), "bias1": (6,), "weight2": (6, 3), "bias2": (3,)}
    for key, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(_floats(*shape), key))
    return model


def linear_with_loss() -> onnx.ModelProto:
    """A regression whose loss is an output: what TrainingSession trains."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 15]>
        g (float[N, 2] X, float[N, 1] label) => (float loss, float[N, 1] variable) {
            product = MatMul(X, coef)
            variable = Add(product, intercept)
            diff = Sub(label, variable)
            square = Mul(diff, diff)
            loss = ReduceSum <keepdims = 0> (square)
        }""")
    for key, shape in {"coef": (2, 1), "intercept": (1,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(_floats(*shape), key))
    return model


def linear() -> onnx.ModelProto:
    """A regression without a loss."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 15]>
        g (float[N, 2] X) => (float[N, 1] variable) {
            product = MatMul(X, coef)
            variable = Add(product, intercept)
        }""")
    for key, shape in {"coef": (2, 1), "intercept": (1,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(_floats(*shape), key))
    return model


PARAMETERS = ["weight1", "bias1", "weight2", "bias2"]


def ready() -> dict[str, Any]:
    """The names a script starts with."""
    x, y = _floats(8, 4), _floats(8, 3)
    labels = RNG.integers(0, 3, 8).astype(np.int64)
    features = _floats(20, 2)
    targets = (features @ np.array([[1.0], [-2.0]], np.float32) + 0.5).astype(np.float32)
    return {
        "np": np, "onnx": onnx, "mlp": mlp, "linear": linear, "linear_with_loss": linear_with_loss,
        "PARAMETERS": list(PARAMETERS), "x": x, "y": y, "labels": labels, "X": features,
        "Y": targets,
    }  # fmt: skip


MAKE_ARTIFACTS = """
from onnxruntime.training import artifacts
artifacts.generate_artifacts(
    mlp(), requires_grad=PARAMETERS, loss=artifacts.LossType.MSELoss,
    optimizer=artifacts.OptimType.AdamW, artifact_directory=".", nominal_checkpoint=True)
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
state = CheckpointState.load_checkpoint("checkpoint")
model = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = Optimizer("optimizer_model.onnx", model)
"""
"""What scripts about the second half begin with."""
