"""Real tasks: a regression, and a head trained on a frozen body."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxtrain import artifacts, optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer


def perceptron(*sizes: int) -> onnx.ModelProto:
    """Linear layers with Tanh between them; names `w0`, `b0`, `w1`, …"""
    rng = np.random.default_rng(0)
    body, weights, value = [], [], "x"
    last = len(sizes) - 2
    for i, (inside, outside) in enumerate(itertools.pairwise(sizes)):
        body.append(f"l{i} = Gemm({value}, w{i}, b{i})")
        value = f"l{i}"
        if i < last:
            body.append(f"t{i} = Tanh(l{i})")
            value = f"t{i}"
        scale = 1 / np.sqrt(inside)
        weights += [
            numpy_helper.from_array(
                rng.uniform(-scale, scale, (inside, outside)).astype(np.float32), f"w{i}"
            ),
            numpy_helper.from_array(np.zeros(outside, np.float32), f"b{i}"),
        ]
    text = " ".join([*body, f"y = Identity({value})"])
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[N,{sizes[0]}] x) => '
        f"(float[N,{sizes[-1]}] y) {{ {text} }}"
    )
    model.graph.initializer.extend(weights)
    return model


def test_diabetes_regression(tmp_path) -> None:
    """The explained variance of a linear model on held-out patients, or better."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_diabetes(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(x))
    x = (x / x.std(0)).astype(np.float32)[order]
    y = ((y - y.mean()) / y.std()).astype(np.float32)[order, None]
    artifacts.generate_artifacts(
        perceptron(10, 16, 1),
        requires_grad=["w0", "b0", "w1", "b1"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.adamw(weight_decay=0.1, form="torch"),
        artifact_directory=tmp_path,
        step_model=True,
    )
    trainer = Trainer.from_directory(tmp_path, metrics=["r2"], learning_rate=0.003)
    trainer.fit((x[:340], y[:340]), epochs=40, batch_size=20, progress=False)
    assert trainer.evaluate((x[340:], y[340:]), 102)["r2"] > 0.4


def test_only_the_head_is_trained(tmp_path) -> None:
    """Frozen tensors do not move by a bit, and nothing is computed for their gradients."""
    model = perceptron(12, 64, 64, 3)
    body, head = ["w0", "b0", "w1", "b1"], ["w2", "b2"]
    nodes = {}
    for kind, trained in (("all", [*body, *head]), ("head", head)):
        (tmp_path / kind).mkdir()
        artifacts.generate_artifacts(
            model,
            requires_grad=trained,
            frozen_params=[n for n in body if n not in trained],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path / kind,
        )
        nodes[kind] = len(onnx.load(tmp_path / kind / "training_model.onnx").graph.node)
    assert nodes["head"] < 0.7 * nodes["all"]
    state = CheckpointState.load_checkpoint(tmp_path / "head" / "checkpoint")
    module = Module(tmp_path / "head" / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "head" / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    before = {name: parameter.data.copy() for name, parameter in state.parameters}
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 12)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    losses = []
    for _ in range(60):
        losses.append(float(module(x, labels)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.5 * losses[0]
    for name, parameter in state.parameters:
        moved = not np.array_equal(parameter.data, before[name])
        assert moved == (name in head), name
        assert (parameter.grad is not None) == (name in head), name


def test_a_vector_of_parameters_outlives_its_ortvalue(tmp_path) -> None:
    artifacts.generate_artifacts(
        perceptron(5, 7, 3),
        requires_grad=["w1", "b1"],
        frozen_params=["w0", "b0"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    vector = module.get_contiguous_parameters().numpy()  # the OrtValue is gone after this line
    junk = [np.full(vector.size, 1e9, np.float32) for _ in range(100)]
    expected = np.concatenate([state.parameters[n].data.ravel() for n in ("w0", "b0", "w1", "b1")])
    np.testing.assert_array_equal(vector, expected)
    assert len(junk) == 100
