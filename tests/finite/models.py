"""A small network with every kind of state, and batches that are no good in different ways."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from onnxtrain import artifacts, optim
from onnxtrain.api import CheckpointState

TRAINABLE = ["scale", "shift", "W", "b", "gain"]
STATISTICS = ["mean", "var"]


def network() -> onnx.ModelProto:
    """Batch normalization, a layer, and √(gain²·|x₀|), whose gradient is NaN where x₀ is zero."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, float[N, 1] target) => (float loss, float[N, 1] out)
          <float[4] scale = {1, 1, 1, 1}, float[4] shift = {0, 0.1, 0, 0},
           float[4] mean = {0, 0, 0, 0}, float[4] var = {1, 1, 1, 1},
           float[4, 1] W = {0.5, -0.25, 0.125, 1}, float[1] b = {0.5}, float[1] gain = {1},
           int64[1] first = {0}>
        {
            h, m, v = BatchNormalization <training_mode = 1> (x, scale, shift, mean, var)
            z = MatMul(h, W)
            out = Add(z, b)
            d = Sub(out, target)
            square = Mul(d, d)
            x0 = Gather <axis = 1> (x, first)
            size = Abs(x0)
            gain2 = Mul(gain, gain)
            scaled = Mul(size, gain2)
            root = Sqrt(scaled)
            both = Add(square, root)
            loss = ReduceMean <keepdims = 0> (both)
        }"""
    )


def good(seed: int, rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32) + 2
    return x, (x @ np.float32([[1], [-1], [0.5], [2]]) + 1).astype(np.float32)


def nan_input() -> tuple[np.ndarray, np.ndarray]:
    """The loss is NaN, and so is everything else."""
    x, target = good(100)
    x[2, 1] = np.nan
    return x, target


def nan_gradient() -> tuple[np.ndarray, np.ndarray]:
    """The loss is finite, and the gradient of `gain` is NaN."""
    x, target = good(101)
    x[3, 0] = 0
    return x, target


def infinite_loss() -> tuple[np.ndarray, np.ndarray]:
    """The loss overflows, and every gradient is finite."""
    x, target = good(102)
    return x, target + np.float32(1e30)


BAD = {"nan input": nan_input, "nan gradient": nan_gradient, "infinite loss": infinite_loss}

OPTIMIZERS = {
    "adamw": optim.adamw(weight_decay=0.01),
    "clipped": optim.adamw(clip=optim.ClipNorm(0.5)),
    "by value": optim.adamw(clip=optim.ClipValue(0.5)),
    "momentum": optim.sgd(momentum=0.9),
    "sgd": optim.sgd(),
}


def write(folder, optimizer: optim.Optimizer):
    artifacts.generate_artifacts(
        network(),
        requires_grad=TRAINABLE,
        optimizer=optimizer,
        artifact_directory=folder,
        step_model=True,
    )
    return folder


def everything(state: CheckpointState) -> dict[str, np.ndarray]:
    """All that a step might change: parameters, running statistics, moments, step count."""
    found = {name: parameter.data.copy() for name, parameter in state.parameters}
    memory = state.training_state.optimizer
    if memory is not None:
        found["step"] = np.array(memory.step)
        for kind, store in memory.states.items():
            found |= {f"{kind}/{name}": store.view(name).copy() for name in store}
    return found


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.isfinite(value).all(), name
