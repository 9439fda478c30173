"""The device half on what the offline half really writes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxtrain import artifacts, optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.errors import StateError

SHAPES = {
    "conv.w": (16, 1, 3, 3), "conv.b": (16,), "bn.scale": (16,), "bn.bias": (16,),
    "bn.mean": (16,), "bn.var": (16,), "fc.w": (256, 10), "fc.b": (10,),
}  # fmt: skip
STATISTICS = ["bn.mean", "bn.var"]


def network(dropout=False):
    """Convolution, batch normalisation, dropout, classifier, as an exporter in training mode."""
    quoted = {n: f'"{n}"' for n in SHAPES}
    drop = "d, mask = Dropout (f, ratio, on)" if dropout else "d = Identity(f)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 1, 8, 8] x) => (float[N, 10] scores)
        <float ratio = {{0.3}}, bool on = {{1}}>
        {{
            c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]>
                (x, {quoted["conv.w"]}, {quoted["conv.b"]})
            n, m1, v1 = BatchNormalization <training_mode = 1>
                (c, {quoted["bn.scale"]}, {quoted["bn.bias"]}, {quoted["bn.mean"]},
                 {quoted["bn.var"]})
            r = Relu(n)
            f = Flatten(r)
            {drop}
            scores = Gemm(d, {quoted["fc.w"]}, {quoted["fc.b"]})
        }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        value = rng.normal(size=shape).astype(np.float32) * 0.2
        if name in {"bn.scale", "bn.var"}:
            value = np.ones(shape, np.float32)
        elif name in {"bn.mean", "bn.bias"}:
            value = np.zeros(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def generate(folder, dropout=False, optimizer=None, **options):
    artifacts.generate_artifacts(
        network(dropout),
        requires_grad=[n for n in SHAPES if n not in STATISTICS],
        frozen_params=STATISTICS,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer or optim.adamw(weight_decay=0.01, clip=optim.ClipNorm(1.0)),
        artifact_directory=folder,
        **options,
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("real"), step_model=True, nominal_checkpoint=True)


def batch(seed=0, size=16):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 1, 8, 8)).astype("f4"), rng.integers(0, 10, size)


def paths(folder):
    return (str(folder / f"{n}_model.onnx") for n in ("training", "eval", "optimizer"))


def test_module_optimizer_export(folder, tmp_path):
    train, evaluation, optimizer = paths(folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(train, state, evaluation)
    assert module.input_names()[0] == "x"
    update = Optimizer(optimizer, module)
    update.set_learning_rate(0.01)
    x, y = batch()
    statistics = state.parameters["bn.mean"].data.copy()
    losses = []
    for _ in range(30):
        losses.append(float(module(x, y)))
        update.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0] / 2
    assert not np.array_equal(state.parameters["bn.mean"].data, statistics)
    module.eval()
    expected = float(module(x, y))
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["scores"])
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    scores = session.run(None, {"x": x})[0]
    shifted = scores - scores.max(1, keepdims=True)
    chosen = (shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))[np.arange(16), y]
    assert np.isclose(-chosen.mean(), expected, rtol=1e-5)


def test_one_graph_equals_parts(folder):
    x, y = batch(size=100)
    results = []
    for options in ({}, {"step_model": None}):
        trainer = Trainer.from_directory(folder, metrics=["accuracy"], **options)
        history = trainer.fit(
            (x, y), epochs=3, batch_size=20, validation_data=(x, y), progress=False
        )
        results.append((history, {n: p.data.copy() for n, p in trainer.state.parameters}))
    assert type(trainer._engine).__name__ == "TwoPartEngine"
    for name in results[0][0]:
        assert np.allclose(results[0][0][name], results[1][0][name], rtol=1e-4), name
    for name in SHAPES:
        assert np.allclose(results[0][1][name], results[1][1][name], rtol=1e-3, atol=1e-5), name


def test_nominal_checkpoint(folder):
    train, _, optimizer = paths(folder)
    full = Module(train, CheckpointState.load_checkpoint(folder / "checkpoint"))
    state = CheckpointState.load_checkpoint(folder / "nominal_checkpoint")
    assert state.is_nominal
    with pytest.raises(StateError, match="Please load the parameter states first"):
        state.parameters["bn.mean"]
    with pytest.raises(StateError, match="Please load all the parameter states first"):
        state.parameters["bn.mean"] = np.ones(4, np.float32)
    module = Module(train, state)
    assert module.get_parameters_size(False) == full.get_parameters_size(False)
    update = Optimizer(optimizer, module)
    module.copy_buffer_to_parameters(full.get_contiguous_parameters(), trainable_only=False)
    assert module(*batch()) == full(*batch())
    update.step()


def test_dropout_is_in_training_only(tmp_path):
    train, evaluation, _ = paths(generate(tmp_path, dropout=True))
    module = Module(train, CheckpointState.load_checkpoint(tmp_path / "checkpoint"), evaluation)
    losses = {float(module(*batch())) for _ in range(4)}
    assert len(losses) == 4
    module.eval()
    assert float(module(*batch())) == float(module(*batch()))
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["scores"])
    assert "Dropout" not in {n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node}


@pytest.mark.parametrize("optimizer", [optim.sgd(0.9), optim.lamb(), optim.adafactor()])
def test_other_optimizers(tmp_path, optimizer):
    generate(tmp_path, optimizer=optimizer, step_model=True)
    x, y = batch(size=40)
    losses = []
    for options in ({}, {"step_model": None}):
        trainer = Trainer.from_directory(tmp_path, learning_rate=0.01, **options)
        losses.append(trainer.fit((x, y), epochs=4, batch_size=20, progress=False)["loss"])
    assert np.allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_digits(tmp_path):
    """A real task to a real score."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order].astype(np.int64)
    generate(tmp_path, step_model=True)
    trainer = Trainer.from_directory(tmp_path, metrics=["accuracy"], learning_rate=0.01)
    trainer.fit((x[:1400], y[:1400]), epochs=25, batch_size=50, progress=False)
    assert trainer.evaluate((x[1400:], y[1400:]), 397)["accuracy"] >= 0.97
