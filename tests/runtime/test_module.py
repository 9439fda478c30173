from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import (
    CheckpointError,
    DeviceError,
    ExternalDataError,
    InputError,
    ModelFileError,
    NonFiniteError,
    RunError,
    StateError,
    UnknownNameError,
)
from onnxtrain.runtime.session import threads
from onnxtrain.runtime.session.devices import Device
from onnxtrain.runtime.step import kernels
from onnxtrain.runtime.step.one_graph import OneGraphStep
from onnxtrain.runtime.step.update import load_optimizer

from . import handmade

X, Y = handmade.batch()


def reference(values, x=X, y=Y):
    """Loss, output and gradients with numpy in double precision."""
    v = {n: a.astype(np.float64) for n, a in values.items()}
    centred = x - v["offset"] - v["running_mean"]
    pre = centred @ v["W1"] + v["b1"]
    hidden = np.maximum(pre, 0)
    out = hidden @ v["W2"] + v["b2"]
    d = 2 * (out - y) / y.size
    dh = (d @ v["W2"].T) * (pre > 0)
    gradients = {"W1": centred.T @ dh, "b1": dh.sum(0), "W2": hidden.T @ d, "b2": d.sum(0)}
    return ((out - y) ** 2).mean(), out, gradients


@pytest.fixture
def module(artifacts):
    return Module(artifacts.train, artifacts.state(), artifacts.eval)


def test_step_gives_loss_output_and_gradients(module):
    loss, out = module(X, Y)
    expected, expected_out, gradients = reference(handmade.values())
    assert loss.shape == ()
    assert np.isclose(loss, expected, rtol=1e-5)
    assert np.allclose(out, expected_out, atol=1e-5)
    for name, gradient in gradients.items():
        parameter = module.state.parameters[name]
        assert np.allclose(parameter.grad, gradient, atol=1e-5)
        assert np.shares_memory(
            parameter.grad, module.state.training_state.gradients.buffers["F32"].data
        )
    assert module.state.parameters["offset"].grad is None


def test_gradients_accumulate_until_reset(module):
    g = module.state.parameters["W1"]
    assert not g.grad.any()
    module(X, Y)
    state_of_statistics = module.state.parameters["running_mean"].data.copy()
    first = g.grad.copy()
    _, _, expected = reference({**handmade.values(), "running_mean": state_of_statistics})
    module(X, Y)
    assert np.allclose(g.grad, first + expected["W1"], atol=1e-5)
    statistics = module.state.parameters["running_mean"].data.copy()
    module.lazy_reset_grad()
    assert np.allclose(g.grad, first + expected["W1"], atol=1e-5)
    module(X, Y)
    _, _, third = reference({**handmade.values(), "running_mean": statistics})
    assert np.allclose(g.grad, third["W1"], atol=1e-5)


def test_state_tensors_follow(module):
    old = handmade.values()["running_mean"]
    view = module.state.parameters["running_mean"].data
    module(X, Y)
    assert np.allclose(view, 0.9 * old + 0.1 * X.mean(0), atol=1e-6)
    module.eval()
    kept = view.copy()
    module(X, Y)
    assert np.array_equal(view, kept)


def test_eval_shares_parameters(module):
    module.eval()
    before = module(X, Y)[0]
    module.state.parameters["b2"] = np.full(3, 9, np.float32)
    assert module(X, Y)[0] > before
    assert module.train() is module
    assert module.training
    assert module.input_names() == ["x", "target"]
    assert module.output_names() == ["loss", "out"]
    assert "4 trainable of 6" in repr(module)


def test_inputs_in_every_form(module):
    module.eval()
    expected = module(X, Y)
    for values in (
        (X.tolist(), Y),
        (np.asfortranarray(X), Y[::1]),
        (np.repeat(X, 2, axis=0)[::2], Y),
        (onnxruntime.OrtValue.ortvalue_from_numpy(X), Y),
    ):
        assert np.array_equal(module(*values)[0], expected[0])
    assert np.array_equal(module(x=X, target=Y)[0], expected[0])
    assert np.array_equal(module(X, target=Y)[0], expected[0])
    as_values = module(*map(onnxruntime.OrtValue.ortvalue_from_numpy, (X, Y)))
    assert all(isinstance(v, onnxruntime.OrtValue) for v in as_values)
    assert np.array_equal(as_values[1].numpy(), expected[1])


@pytest.mark.parametrize("rows", [3000, 30_000])
@pytest.mark.parametrize("kind", ["train", "eval", "one graph", "list"])
def test_a_converted_input_lives_until_the_run_is_over(artifacts, kind, rows):
    """Large inputs are bound by address; a copy that nobody holds would be read after its end."""
    x, y = handmade.batch(2, rows)
    wide = np.zeros((rows, 8), np.float32)
    wide[:, ::2] = x
    converted = x.tolist() if kind == "list" else wide[:, ::2]

    def run(values):
        if kind == "one graph":
            file = load_optimizer(artifacts.optimizer)
            return OneGraphStep(
                artifacts.step, artifacts.state().training_state, file, Device("cpu")
            )([values, y])
        module = Module(artifacts.train, artifacts.state(), artifacts.eval)
        return module.train(kind != "eval")(values, y)

    for expected, found in zip(run(x), run(converted)):
        np.testing.assert_array_equal(expected, found)


def test_batch_size_may_change_and_results_stay(module):
    module.eval()
    kept = []
    for size in (1, 7, 3, 7, 2000):
        x, y = handmade.batch(size, size)
        kept.append((module(x, y)[1], x, y))
    for out, x, y in kept:
        assert np.allclose(out, reference(handmade.values(), x, y)[1], atol=1e-4)


WRONG_INPUTS = {
    "too few": ((X,), {}, "takes 2 input"),
    "too many": ((X, Y, Y), {}, "takes 2 input"),
    "dtype": ((X.astype("f8"), Y), {}, "'x' needs float32, got float64"),
    "rank": ((X[0], Y), {}, "2 dimension"),
    "shape": ((X[:, :3], Y), {}, "size 4 on axis 1"),
    "batch": ((X, Y[:2]), {}, "disagree about 'N'"),
    "empty": ((X[:0], Y[:0]), {}, "empty batch"),
    "none": ((X, None), {}, "not optional"),
    "unknown name": ((X,), {"labels": Y}, "Unknown input"),
    "missing name": ((), {"x": X}, "Missing input"),
    "given twice": ((X,), {"x": X, "target": Y}, "twice"),
    "strings": ((np.array([["a"] * 4]), Y), {}, "needs float32"),
    "objects": ((object(), Y), {}, "cannot be converted|dimension"),
    "ragged": (([[1, 2], [3]], Y), {}, "cannot be converted"),
    "integers": ((X.astype("i8"), Y), {}, "needs float32"),
    "ortvalue dtype": (
        (onnxruntime.OrtValue.ortvalue_from_numpy(X.astype("f8")), Y), {}, "needs float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_INPUTS)
@pytest.mark.parametrize("training", [True, False])
def test_wrong_inputs(module, name, training):
    args, kwargs, message = WRONG_INPUTS[name]
    module.train(training)
    expected = module(X, Y)[0]
    module.lazy_reset_grad()
    state = {n: p.data.copy() for n, p in module.state.parameters}
    with pytest.raises(InputError, match=message):
        module(*args, **kwargs)
    assert all(np.array_equal(state[n], p.data) for n, p in module.state.parameters)
    if not training:
        assert module(X, Y)[0] == expected


def test_nan_is_reported_when_asked(artifacts):
    bad = np.full_like(X, np.nan)
    assert np.isnan(Module(artifacts.train, artifacts.state())(bad, Y)[0])
    strict = Module(artifacts.train, artifacts.state(), check_finite=True)
    strict(X, Y)
    with pytest.raises(NonFiniteError, match="Nothing was changed"):
        strict(bad, Y)


def test_missing_and_wrong_files(artifacts, tmp_path):
    state = artifacts.state()
    with pytest.raises(FileNotFoundError, match="no model file"):
        Module(tmp_path / "none.onnx", state)
    with pytest.raises(FileNotFoundError, match="no model file"):
        Module(artifacts.train, state, tmp_path / "none.onnx")
    with pytest.raises(ModelFileError, match="'training' model is needed"):
        Module(artifacts.eval, state)
    with pytest.raises(ModelFileError, match="generate the artifacts again"):
        Module(handmade.forward(False, True).SerializeToString(), state)
    with pytest.raises(TypeError, match="CheckpointState"):
        Module(artifacts.train, artifacts.checkpoint)
    with pytest.raises(StateError, match="Eval model was not provided"):
        Module(artifacts.train, state).eval()(X, Y)
    with pytest.raises(StateError, match="Eval model was not provided"):
        Module(artifacts.train, state).export_model_for_inferencing(tmp_path / "m", ["out"])


def test_checkpoint_of_another_model(artifacts):
    values = handmade.values()
    trainable = {n: values[n] for n in handmade.TRAINABLE}
    frozen = {n: values[n] for n in handmade.FROZEN}
    missing = {n: v for n, v in trainable.items() if n != "b2"}
    with pytest.raises(CheckpointError, match="no trainable parameter 'b2'"):
        Module(artifacts.train, CheckpointState.from_arrays(missing, frozen))
    with pytest.raises(CheckpointError, match="does not train 'more'"):
        Module(
            artifacts.train,
            CheckpointState.from_arrays({**trainable, "more": np.ones(2)}, frozen),
        )
    with pytest.raises(CheckpointError, match=r"'b1' is F32\[9\]"):
        Module(
            artifacts.train,
            CheckpointState.from_arrays({**trainable, "b1": np.ones(9, np.float32)}, frozen),
        )


def test_devices():
    for name, message in {
        "gpu": "Unknown device", "cuda:x": "must be a number", "cpu:1": "only one",
        "cuda": "onnxruntime-gpu", "FooExecutionProvider": "no FooExecutionProvider",
    }.items():  # fmt: skip
        with pytest.raises(DeviceError, match=message):
            Device(name).session(b"")
    with pytest.raises(DeviceError, match="no BarExecutionProvider"):
        Device("cpu", ["BarExecutionProvider"]).session(b"")


def test_bytes_and_options(artifacts):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with open(artifacts.train, "rb") as train, open(artifacts.eval, "rb") as evaluation:
        module = Module(
            train.read(), artifacts.state(), evaluation.read(), session_options=options,
            providers=["CPUExecutionProvider"],
        )  # fmt: skip
    assert module.gradient_step.session.get_session_options().intra_op_num_threads == 1
    assert np.isclose(module(X, Y)[0], reference(handmade.values())[0], rtol=1e-5)


def test_contiguous_parameters(module):
    vector = module.get_contiguous_parameters(trainable_only=True)
    values = handmade.values()
    order = [n for n in handmade.ORDER if n in handmade.TRAINABLE]
    expected = np.concatenate([values[n].ravel() for n in order])
    assert np.array_equal(vector.numpy(), expected)
    everything = module.get_contiguous_parameters().numpy()
    assert everything.size == module.get_parameters_size(trainable_only=False) == 75
    module.copy_buffer_to_parameters(np.zeros(67, np.float32))
    assert not any(module.state.parameters[n].data.any() for n in handmade.TRAINABLE)
    assert module.state.parameters["offset"].data.any()
    module.copy_buffer_to_parameters(onnxruntime.OrtValue(vector), trainable_only=True)
    assert np.array_equal(module.state.parameters["W1"].data, values["W1"])
    with pytest.raises(InputError, match="67 float32 values, it holds 66"):
        module.copy_buffer_to_parameters(np.zeros(66, np.float32))
    with pytest.raises(InputError, match="float64"):
        module.copy_buffer_to_parameters(np.zeros(67))


def test_contiguous_parameters_outlive_everything(artifacts):
    module = Module(artifacts.train, artifacts.state())
    expected = module.get_contiguous_parameters().numpy().copy()
    vector = module.get_contiguous_parameters()
    del module
    gc.collect()
    junk = [np.full(expected.size, 7, np.float32) for _ in range(100)]
    assert np.array_equal(vector.numpy(), expected)
    assert junk


def test_folded_frozen_parameters(artifacts):
    state = artifacts.state()
    module = Module(artifacts.train, state, fold_frozen=True)
    assert "offset" not in {i.name for i in module.gradient_step.session.get_inputs()}
    assert "running_mean" in {i.name for i in module.gradient_step.session.get_inputs()}
    loss, _ = module(X, Y)
    assert np.isclose(loss, reference(handmade.values())[0], rtol=1e-5)
    assert np.allclose(
        state.parameters["W1"].grad, reference(handmade.values())[2]["W1"], atol=1e-5
    )


def test_contiguous_parameters_without_padding_are_a_view(module):
    assert module._shared_vector(["W1", "b1"]) is None
    state = CheckpointState.from_arrays(
        {"a": np.ones((4, 4), np.float32), "b": np.ones(3, np.float32)}
    )
    module._values = state.training_state
    module._order = module._trainable = ["a", "b"]
    module._specs = state.training_state.trainable.specs
    vector = module.get_contiguous_parameters()
    assert vector.data_ptr() == state.training_state.trainable.pointer("a")
    assert vector.shape() == [19]


# --- memory and devices --------------------------------------------------------------------------


@pytest.mark.parametrize("one_graph", [False, True])
def test_steady_state_allocates_only_outputs(artifacts, one_graph):
    state = artifacts.state()
    if one_graph:
        graph = OneGraphStep(
            artifacts.step,
            state.training_state,
            load_optimizer(artifacts.optimizer),
            Device("cpu"),
        )
    else:
        module = Module(artifacts.train, state)
        optimizer = Optimizer(artifacts.optimizer, module)

    def step():
        if one_graph:
            graph([X, Y])
            return
        module(X, Y)
        optimizer.step()
        module.lazy_reset_grad()

    for _ in range(20):
        step()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            step()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        step()
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert grown < 32_000, "something is kept from step to step"  # caches come and go: 15 kB
    assert peak < 8192, "a step allocates more than its outputs and small objects"


class HostAsDevice(Device):
    """Host memory in the part of a device's: the copies between the two are real."""

    def __init__(self):
        super().__init__("cpu")
        self.is_host = False


def test_device_path_with_host_memory_standing_in(artifacts, monkeypatch):
    states = []
    for fake in (False, True):
        if fake:
            monkeypatch.setattr("onnxtrain.runtime.step.module.Device", lambda *_: HostAsDevice())
        state = artifacts.state()
        module = Module(artifacts.train, state, artifacts.eval)
        optimizer = Optimizer(artifacts.optimizer, module)
        for seed in range(4):
            module(*handmade.batch(seed))
            module(*handmade.batch(seed + 10))
            optimizer.step()
            module.lazy_reset_grad()
        states.append(state)
        assert state.training_state.trainable.placed is fake
    for name, parameter in states[0].parameters:
        assert np.array_equal(parameter.data, states[1].parameters[name].data)
    moments = [s.training_state.optimizer.states["second_order_moments"].view("W1") for s in states]
    assert np.array_equal(*moments)
    on_device = states[1].parameters["W1"]
    with pytest.raises(ValueError, match="read-only"):
        on_device.data[0, 0] = 1
    on_device.data = np.zeros((4, 8), np.float32)
    states[0].parameters["W1"] = np.zeros((4, 8), np.float32)
    assert not on_device.data.any()


# --- export --------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [None, True])
def test_export(dropout_artifacts, tmp_path, external):
    module = Module(dropout_artifacts.train, dropout_artifacts.state(), dropout_artifacts.eval)
    module(X, Y)
    Optimizer(dropout_artifacts.optimizer, module).step()
    path = tmp_path / "inference.onnx"
    module.export_model_for_inferencing(path, ["out"], external_data=external)
    assert (tmp_path / "inference.onnx.data").exists() is bool(external)
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    assert [i.name for i in model.graph.input] == ["x"]
    assert [o.name for o in model.graph.output] == ["out"]
    assert {n.op_type for n in model.graph.node} == {"Sub", "MatMul", "Add", "Relu"}
    assert [i.name for i in model.graph.initializer] == handmade.ORDER
    assert {p.key: p.value for p in model.metadata_props} == {"author": "someone"}
    session = onnxruntime.InferenceSession(str(path))
    module.eval()
    assert np.array_equal(session.run(None, {"x": X})[0], module(X, Y)[1])


def test_export_goes_to_a_data_file_when_too_large(module, tmp_path, monkeypatch):
    monkeypatch.setattr("onnxtrain.runtime.step.export.LIMIT", 500)
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["out"])
    assert (tmp_path / "m.onnx.data").exists()
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    module.eval()
    assert np.array_equal(session.run(None, {"x": X})[0], module(X, Y)[1])
    with pytest.raises(ModelFileError, match="above 2 GB"):
        module.export_model_for_inferencing(tmp_path / "n.onnx", ["out"], external_data=False)


def test_constants_beside_the_model(artifacts, tmp_path):
    """Constants of the artifacts in external files are found, and go along on export."""
    paths = []
    for source in (artifacts.train, artifacts.eval):
        model = onnx.load(source)
        big = onnx.numpy_helper.from_array(np.full(300, 2, np.float32), "big")
        model.graph.initializer.append(big)
        top = onnx.helper.make_node("ReduceMax", ["big"], ["top"], keepdims=0)
        for node in model.graph.node:
            if node.op_type in ("Gemm", "MatMul") and node.input[0] == "centred":
                node.input[0] = "scaled"
        model.graph.node.insert(0, top)
        at = next(i for i, n in enumerate(model.graph.node) if n.output[0] == "centred")
        scale = onnx.helper.make_node("Mul", ["centred", "top"], ["scaled"])
        model.graph.node.insert(at + 1, scale)
        paths.append(str(tmp_path / f"{len(paths)}.onnx"))
        onnx.save(
            model, paths[-1], save_as_external_data=True, location=f"{len(paths)}.bin",
            size_threshold=1024,
        )  # fmt: skip
    module = Module(paths[0], artifacts.state(), paths[1])
    values = handmade.values()
    for name in ("offset", "running_mean"):
        values[name] = values[name] * 2  # 2·(x − o − m) = 2x − 2o − 2m
    expected = reference(values, 2 * X)[1]
    assert np.allclose(module(X, Y)[1], expected, atol=1e-5)
    module.state.parameters["running_mean"] = handmade.values()["running_mean"]
    assert np.allclose(module.eval()(X, Y)[1], expected, atol=1e-5)
    for external in (False, True):
        out = tmp_path / f"out{external}" / "m.onnx"
        out.parent.mkdir()
        module.export_model_for_inferencing(out, ["out"], external_data=external)
        onnx.checker.check_model(str(out), full_check=True)
        result = onnxruntime.InferenceSession(str(out)).run(None, {"x": X})[0]
        assert np.allclose(result, expected, atol=1e-5)
    with open(paths[1], "rb") as file, pytest.raises(ExternalDataError, match="as a path"):
        Module(artifacts.train, artifacts.state(), file.read())


WRONG_DESCRIPTIONS = {
    "not JSON": ("{", "not a JSON object"),
    "not an object": ("[]", "not a JSON object"),
    "deep": ("[" * 100_000, "not a JSON object"),
    "version": ('{"version": 2}', "version 2"),
    "kind": ('{"version": 1, "kind": "eval"}', "'eval' model"),
    "names": ('{"version": 1, "kind": "training", "user_inputs": 5}', "names are needed"),
    "mapping": (
        '{"version": 1, "kind": "training", "states": {"a": 1}}',
        "names are needed",
    ),
    "a state that is trained": (
        '{"version": 1, "kind": "training", "trainable": ["W1"], "states": {"W1": "W1.new"}}',
        "'W1' a state",
    ),
    "unknown input": (
        '{"version": 1, "kind": "training", "user_inputs": ["nothing"]}',
        "no input named 'nothing'",
    ),
}


@pytest.mark.parametrize("name", WRONG_DESCRIPTIONS)
def test_wrong_descriptions(artifacts, name):
    text, message = WRONG_DESCRIPTIONS[name]
    model = onnx.load(artifacts.train)
    onnx.helper.set_model_props(model, {"onnxtrain.artifact": text})
    with pytest.raises((ModelFileError, UnknownNameError), match=message):
        Module(model.SerializeToString(), artifacts.state())


def test_eval_model_without_description(artifacts):
    """Those of onnxruntime-training run on stock: what is no parameter is the user's."""
    model = onnx.load(artifacts.eval)
    del model.metadata_props[:]
    module = Module(artifacts.train, artifacts.state(), model.SerializeToString()).eval()
    assert module.input_names() == ["x", "target"]
    assert np.isclose(module(X, Y)[0], reference(handmade.values())[0], rtol=1e-5)


def test_failure_inside_a_run_leaves_a_usable_module(artifacts):
    """A model that promises a shape it does not keep fails in onnxruntime, not before."""
    model = onnx.load(artifacts.eval)
    for value in model.graph.input:
        if value.name == "target":
            value.type.tensor_type.shape.dim[0].dim_param = "M"
    module = Module(artifacts.train, artifacts.state(), model.SerializeToString()).eval()
    expected = module(X, Y)
    with pytest.raises(RunError, match="onnxruntime could not run"):
        module(X, Y[:2])
    again = module(X, Y)
    assert all(np.array_equal(a, b) for a, b in zip(expected, again))


def test_model_that_onnxruntime_refuses(artifacts):
    model = onnx.load(artifacts.train)
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ModelFileError, match="onnxruntime cannot load"):
        Module(model.SerializeToString(), artifacts.state())


def test_export_errors(module, tmp_path):
    with pytest.raises(UnknownNameError, match="Please regenerate the eval graph"):
        module.export_model_for_inferencing(tmp_path / "m.onnx", ["nothing"])
    with pytest.raises(ValueError, match="empty"):
        module.export_model_for_inferencing(tmp_path / "m.onnx", [])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        module.export_model_for_inferencing(tmp_path / "no" / "m.onnx", ["out"])
    assert not list(tmp_path.iterdir())


def test_export_of_the_loss_keeps_the_target(module, tmp_path):
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["loss", "h"])
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert [i.name for i in session.get_inputs()] == ["x", "target"]
    module.eval()
    assert session.run(["loss"], {"x": X, "target": Y})[0] == module(X, Y)[0]


# --- dropout -------------------------------------------------------------------------------------


def masks(artifacts, state, steps=3):
    module = Module(artifacts.train, state)
    found = []
    for _ in range(steps):
        module(X, Y)
        module.lazy_reset_grad()
        found.append(state.parameters["W2"].grad.copy())
    return found


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b))


def test_dropout_masks_continue_after_resume(dropout_artifacts, tmp_path):
    state = dropout_artifacts.state()
    first = masks(dropout_artifacts, state)
    assert not np.array_equal(first[0], first[1]), "masks change from step to step"
    assert same(first, masks(dropout_artifacts, dropout_artifacts.state()))
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    resumed = masks(dropout_artifacts, CheckpointState.load_checkpoint(tmp_path / "c"))
    assert not any(np.array_equal(a, b) for a in first for b in resumed), "masks are replayed"
    again = masks(dropout_artifacts, CheckpointState.load_checkpoint(tmp_path / "c"))
    assert same(resumed, again)
    other = dropout_artifacts.state()
    other.seed = 5
    with pytest.raises(ValueError, match="64 bits"):
        other.seed = -1
    assert not same(first, masks(dropout_artifacts, other))


def test_large_inputs_that_are_made_into_arrays_live_until_the_run(module):
    """Their memory is bound by its address, and nobody else holds it."""
    repeats = 20_000 // X.nbytes * 5
    x, y = np.tile(X, (repeats, 1)), np.tile(Y, (repeats, 1))
    want = float(module.eval()(x, y)[0])
    for _ in range(20):
        for given in (np.asfortranarray(x), x.tolist(), np.hstack([x, x])[:, : x.shape[1]]):
            assert float(module(given, y)[0]) == want


def test_small_batches_run_on_one_thread_and_large_ones_on_all(module):
    train = module.gradient_step
    weights = sum(s.size for s in module._specs.values())
    repeats = threads.LIMIT // (weights * len(X)) + 1
    large = np.tile(X, (repeats, 1)), np.tile(Y, (repeats, 1))
    for x, y, single in ((X, Y, True), (*large, False), (X, Y, True)):
        values = {n: module.state.parameters[n].data.copy() for n in handmade.values()}
        module.lazy_reset_grad()
        loss, _ = module(x, y)
        assert (train.sessions.current is train.sessions.single) == single
        expected, _, gradients = reference(values, x, y)
        assert np.isclose(loss, expected, rtol=1e-5)
        assert np.allclose(module.state.parameters["W1"].grad, gradients["W1"], atol=1e-5)
    assert train.sessions.single.session.get_session_options().intra_op_num_threads == 1


def test_own_session_options_keep_their_threads(artifacts):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    module = Module(artifacts.train, artifacts.state(), session_options=options)
    module(X, Y)
    assert module.gradient_step.sessions.current is module.gradient_step.sessions.usual


@pytest.fixture
def nobody_else(monkeypatch):
    """No other training session in the process, no torch, and an update on one thread."""
    monkeypatch.setattr(threads, "_training", weakref.WeakSet())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 1)
    monkeypatch.setattr(kernels, "available", lambda: True)
    monkeypatch.setattr(kernels, "find", lambda *_: None)


def sleeps(session: onnxruntime.InferenceSession) -> bool:
    """Whether its threads sleep between steps."""
    try:
        entry = session.get_session_options().get_session_config_entry(
            "session.force_spinning_stop"
        )
    except RuntimeError:  # nothing was said about it
        return False
    return entry == "1"


@pytest.mark.usefixtures("nobody_else")
def test_threads_spin_while_nobody_else_trains(artifacts):
    first = Module(artifacts.train, artifacts.state())
    assert not sleeps(first.gradient_step.session)
    first(X, Y)
    second = Module(artifacts.train, artifacts.state())
    assert sleeps(first.gradient_step.session)
    assert sleeps(second.gradient_step.session)
    for module in (first, second):
        values = {n: module.state.parameters[n].data.copy() for n in handmade.values()}
        module.lazy_reset_grad()
        loss, _ = module(X, Y)
        assert np.isclose(loss, reference(values)[0], rtol=1e-5)


@pytest.mark.usefixtures("nobody_else")
def test_threads_sleep_when_the_update_is_a_session(artifacts):
    module = Module(artifacts.train, artifacts.state())
    module(X, Y)
    assert not sleeps(module.gradient_step.session)
    optimizer = Optimizer(artifacts.optimizer, module)
    assert sleeps(module.gradient_step.session)
    module.lazy_reset_grad()
    before = module(X, Y)[0]
    optimizer.step()
    assert module(X, Y)[0] < before


@pytest.mark.usefixtures("nobody_else")
def test_threads_sleep_where_the_user_or_torch_is_concerned(artifacts, monkeypatch):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    assert sleeps(
        Module(artifacts.train, artifacts.state(), session_options=options).gradient_step.session
    )
    monkeypatch.setattr(threads, "_training", weakref.WeakSet())
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert sleeps(Module(artifacts.train, artifacts.state()).gradient_step.session)


@pytest.mark.usefixtures("nobody_else")
def test_one_graph_spins_until_somebody_else_trains(artifacts):
    file = load_optimizer(artifacts.optimizer)
    alone, watched = (
        OneGraphStep(artifacts.step, artifacts.state().training_state, file, Device("cpu"))
        for _ in range(2)
    )
    assert sleeps(alone.session)
    assert sleeps(watched.session)
    threads._training.clear()
    third = OneGraphStep(artifacts.step, artifacts.state().training_state, file, Device("cpu"))
    assert not sleeps(third.session)
    expected = [float(watched((X, Y))[0]) for _ in range(4)]
    found = [float(third((X, Y))[0])]
    Module(artifacts.train, artifacts.state())
    assert sleeps(third.session)
    found += [float(third((X, Y))[0]) for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_on_again(artifacts, monkeypatch, was_on):
    """It waits while a model is read, also if that fails, and stays off where it was off."""
    calls = []
    monkeypatch.setattr(gc, "isenabled", lambda: was_on)
    monkeypatch.setattr(gc, "disable", lambda: calls.append("off"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("on"))
    Module(artifacts.train, artifacts.state())
    with pytest.raises(FileNotFoundError):
        Module("no such file", artifacts.state())
    assert calls == (["off", "on"] * 2 if was_on else ["off"] * 2)


def test_modules_made_and_trained_in_several_threads(artifacts):
    """Each asks the others to let their threads sleep, whatever these are doing."""
    data = artifacts.train, artifacts.state
    errors = []

    def work():
        try:
            for _ in range(5):
                module = Module(data[0], data[1]())
                for _ in range(3):
                    module.lazy_reset_grad()
                    module(X, Y)
        except Exception as error:  # shown by the main thread
            errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
