from __future__ import annotations

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnxtrain.errors import CheckpointError, InputError, ModelFileError, StateError
from onnxtrain.optim import build
from onnxtrain.runtime.files.onnxfile import ModelFile
from onnxtrain.runtime.step import kernels, update

from . import handmade

pytestmark = pytest.mark.slow

NO_DECAY = optim.Group(["b1", "b2"], lr_scale=0.5, weight_decay=0.0)
OPTIMIZERS = {
    "sgd": optim.sgd(),
    "sgd decay": optim.sgd(weight_decay=0.1),
    "momentum": optim.sgd(momentum=0.9, weight_decay=0.01, dampening=0.2),
    "nesterov": optim.sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": optim.adamw(weight_decay=0.05, clip=optim.ClipNorm(0.3)),
    "adamw torch": optim.adamw(weight_decay=0.05, form="torch", clip=optim.ClipValue(0.05)),
    "adamw uncorrected": optim.adamw(correct_bias=False),
    "adam": optim.adam(weight_decay=0.05),
    "groups": optim.adamw(weight_decay=0.05, groups=[NO_DECAY]),
    "lamb": optim.lamb(weight_decay=0.01, clip=optim.ClipNorm(0.3)),
    "adagrad": optim.adagrad(lr_decay=0.1),
    "rmsprop": optim.rmsprop(momentum=0.5, centered=True),
    "adadelta": optim.adadelta(),
    "lion": optim.lion(weight_decay=0.1),
    "adafactor": optim.adafactor(weight_decay=0.1),
}
PARAMS = [(n, handmade.SHAPES[n]) for n in handmade.TRAINABLE]


def sequence_bytes(optimizer):
    return handmade.proto(build.sequence_model(optimizer, PARAMS)).SerializeToString()


def train(artifacts, model, steps=5, lr=0.01):
    state = artifacts.state()
    module = Module(artifacts.train, state)
    optimizer = Optimizer(model, module)
    optimizer.set_learning_rate(lr)
    for seed in range(steps):
        module(*handmade.batch(seed))
        optimizer.step()
        module.lazy_reset_grad()
    return state


def without_description(data):
    model = onnx.load_from_string(data)
    del model.metadata_props[:]
    return model.SerializeToString()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("piece", [None, 16])
def test_in_place_equals_the_sequence_form(artifacts, monkeypatch, name, piece):
    """Over pieces of the flat buffers, in place, the numbers are those of the plain graph."""
    data = sequence_bytes(OPTIMIZERS[name])
    if piece is not None:
        monkeypatch.setattr(update.Update.__init__, "__defaults__", (piece,))
    state = train(artifacts, data)
    expected = reference_training(artifacts, data)
    for kind, tensors in expected.items():
        store = (
            state.training_state.trainable
            if kind == "params"
            else state.training_state.optimizer.states[kind]
        )
        for parameter, value in tensors.items():
            assert np.allclose(store.view(parameter), value, rtol=2e-5, atol=1e-7), (
                kind,
                parameter,
            )
    for store in [
        state.training_state.trainable,
        state.training_state.gradients,
        *state.training_state.optimizer.states.values(),
    ]:
        assert_padding_is_zero(store)


def assert_padding_is_zero(store):
    for buffer in store.buffers.values():
        used = np.zeros(buffer.data.size, bool)
        for slot in buffer.slots.values():
            used[slot.start : slot.stop] = True
        assert not buffer.data[~used].any()


def reference_training(artifacts, data, steps=5, lr=0.01):
    """The sequence form, run as any script would, on gradients from a second module."""
    state = artifacts.state()
    module = Module(artifacts.train, state)
    session = onnxruntime.InferenceSession(data)
    names = handmade.TRAINABLE
    kinds = [i.name for i in session.get_inputs()][2:]
    description = json.loads(session.get_modelmeta().custom_metadata_map["onnxtrain.optimizer"])
    shapes = description.get("state_shapes", {})
    values = {
        k: [np.zeros(shapes.get(k, {}).get(n, handmade.SHAPES[n]), np.float32) for n in names]
        for k in kinds
    }
    for step in range(steps):
        module(*handmade.batch(step))
        module.lazy_reset_grad()
        values["params"] = [state.parameters[n].data for n in names]
        values["gradients"] = [state.parameters[n].grad for n in names]
        feeds = {"learning_rate": np.array([lr], "f4"), "step": np.array([step + 1]), **values}
        outputs = [o.name for o in session.get_outputs()][1:]
        for name, result in zip(outputs, session.run(outputs, feeds)):
            values[name.removesuffix(".updated")] = result
        for name, value in zip(names, values["params"]):
            state.parameters[name] = value
    del values["gradients"]
    kept = {"params", *description["states"]}
    return {k: dict(zip(names, v)) for k, v in values.items() if k in kept}


def test_own_sequence_model_and_flat_file(artifacts):
    data = sequence_bytes(OPTIMIZERS["adamw"])
    expected = train(artifacts, data)
    flat = handmade.proto(build.flat_model(OPTIMIZERS["adamw"])).SerializeToString()
    for other in (without_description(data), flat):
        state = train(artifacts, other)
        for name in handmade.TRAINABLE:
            assert np.allclose(
                state.parameters[name].data, expected.parameters[name].data, rtol=1e-5, atol=1e-7
            )


def test_writing_over_what_is_still_read_is_recognised():
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[n] m, float[n] p) => (float[n] m2, float[n] p2)
        { m2 = Add(m, m)  q = Mul(m, p)  p2 = Sub(p, q) }"""
    )
    file = ModelFile.load(graph.SerializeToString())
    assert not update.safe_in_place(file, "m", "m2"), "q may be computed after m2"
    assert update.safe_in_place(file, "p", "p2")


def test_unsafe_update_goes_through_scratch(artifacts):
    """Lion's sign reads the old momentum: whatever order the session picks, numbers are right."""
    loaded = update.load_optimizer(sequence_bytes(OPTIMIZERS["lion"]))
    assert loaded.unsafe == {"first_order_moments"}


def test_learning_rate_and_step_come_back(artifacts, tmp_path):
    data = sequence_bytes(OPTIMIZERS["adamw"])
    state = train(artifacts, data, lr=0.25)
    CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    loaded = CheckpointState.load_checkpoint(tmp_path / "c")
    optimizer = Optimizer(data, Module(artifacts.train, loaded))
    assert optimizer.get_learning_rate() == 0.25
    assert optimizer.step_count == 5
    assert repr(optimizer) == "Optimizer(AdamW, step=5, learning_rate=0.25)"
    fresh = Optimizer(data, Module(artifacts.train, loaded), reset=True)
    assert (fresh.step_count, fresh.get_learning_rate()) == (0, 0.001)


def test_resume_is_bit_for_bit(artifacts, tmp_path):
    data = sequence_bytes(OPTIMIZERS["adamw"])

    def run(state, seeds):
        module = Module(artifacts.train, state)
        optimizer = Optimizer(data, module)
        for seed in seeds:
            module(*handmade.batch(seed))
            optimizer.step()
            module.lazy_reset_grad()

    straight = artifacts.state()
    run(straight, range(6))
    first = artifacts.state()
    run(first, range(3))
    CheckpointState.save_checkpoint(first, tmp_path / "c", include_optimizer_state=True)
    second = CheckpointState.load_checkpoint(tmp_path / "c")
    run(second, range(3, 6))
    for store, other in zip(straight.training_state.stores(), second.training_state.stores()):
        assert all(np.array_equal(store.view(n), other.view(n)) for n in store)


def test_odtc_checkpoint_continues(artifacts, tmp_path):
    data = sequence_bytes(OPTIMIZERS["adamw"])
    state = train(artifacts, data)
    CheckpointState.save_checkpoint(state, tmp_path / "c", True, format="odtc")
    optimizer = Optimizer(
        data, Module(artifacts.train, CheckpointState.load_checkpoint(tmp_path / "c"))
    )
    assert optimizer.step_count == 5
    optimizer.step()


def test_wrong_optimizers(artifacts, tmp_path):
    state = train(artifacts, sequence_bytes(OPTIMIZERS["adamw"]))
    module = Module(artifacts.train, state)
    with pytest.raises(CheckpointError, match="state of AdamW, the optimizer is SGD"):
        Optimizer(sequence_bytes(OPTIMIZERS["sgd"]), module)
    state.training_state.optimizer.name = ""
    with pytest.raises(CheckpointError, match="has no 'row_moments'"):
        Optimizer(sequence_bytes(OPTIMIZERS["adafactor"]), module)
    with pytest.raises(ModelFileError, match="not an optimizer model"):
        Optimizer(handmade.forward(False, False).SerializeToString(), module)
    with pytest.raises(FileNotFoundError):
        Optimizer(tmp_path / "none", module)
    with pytest.raises(TypeError, match="Module"):
        Optimizer(sequence_bytes(OPTIMIZERS["sgd"]), state)
    with pytest.raises(InputError, match="finite"):
        Optimizer(sequence_bytes(OPTIMIZERS["adamw"]), module).set_learning_rate(float("nan"))


def test_groups_of_unknown_parameters(artifacts):
    model = onnx.load_from_string(sequence_bytes(OPTIMIZERS["groups"]))
    described = json.loads(model.metadata_props[0].value)
    described["groups"][0]["params"] = ["nothing"]
    model.metadata_props[0].value = json.dumps(described)
    with pytest.raises(ModelFileError, match="nothing"):
        Optimizer(model.SerializeToString(), Module(artifacts.train, artifacts.state()))


def test_nominal_state_waits(artifacts):
    state = CheckpointState.nominal(handmade.TRAINABLE, handmade.FROZEN)
    module = Module(artifacts.train, state)
    optimizer = Optimizer(artifacts.optimizer, module)
    optimizer.set_learning_rate(0.5)
    with pytest.raises(StateError, match="Please load the model parameters first"):
        optimizer.step()
    vector = Module(artifacts.train, artifacts.state()).get_contiguous_parameters()
    module.copy_buffer_to_parameters(vector, trainable_only=False)
    module(*handmade.batch())
    optimizer.step()
    assert (optimizer.step_count, optimizer.get_learning_rate()) == (1, 0.5)


def test_scheduler_position_is_in_the_checkpoint(artifacts, tmp_path):
    def start(state):
        optimizer = Optimizer(artifacts.optimizer, Module(artifacts.train, state))
        return optimizer, LinearLRScheduler(optimizer, 2, 10, 0.2)

    state = artifacts.state()
    optimizer, scheduler = start(state)
    assert optimizer.get_learning_rate() == 0
    assert not scheduler.resume(), "a fresh checkpoint has no position"
    for _ in range(5):
        scheduler.step()
    CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    optimizer, resumed = start(CheckpointState.load_checkpoint(tmp_path / "c"))
    assert resumed.resume()
    assert resumed.count == 5
    assert optimizer.get_learning_rate() == scheduler.get_last_lr()[0]


# --- numba ---------------------------------------------------------------------------------------

KERNELS = [n for n, o in OPTIMIZERS.items() if o.name in {"AdamW", "Adam", "SGD"}]


@pytest.mark.skipif(not kernels.available(), reason="numba is not installed")
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_graph(artifacts, monkeypatch, name):
    data = sequence_bytes(OPTIMIZERS[name])
    expected = train(artifacts, data)
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 0)
    calls = []
    original = kernels.Kernel.__call__
    monkeypatch.setattr(kernels.Kernel, "__call__", lambda *a: (calls.append(1), original(*a))[1])
    state = train(artifacts, data)
    assert calls
    for kind, store in {
        "params": state.training_state.trainable,
        **state.training_state.optimizer.states,
    }.items():
        other = (
            expected.training_state.trainable
            if kind == "params"
            else expected.training_state.optimizer.states[kind]
        )
        for parameter in store:
            assert np.allclose(
                store.view(parameter), other.view(parameter), rtol=3e-6, atol=2e-7
            ), (kind, parameter)
        assert_padding_is_zero(store)


def test_kernels_are_for_large_models_and_can_be_turned_off(monkeypatch):
    description = build.describe(OPTIMIZERS["adamw"])
    monkeypatch.setattr(kernels, "_has_numba", lambda: True)
    assert kernels.find(description, kernels.COMPILED_PARAMETERS) is not None
    assert kernels.find(description, kernels.COMPILED_PARAMETERS - 1) is None
    assert kernels.find(build.describe(OPTIMIZERS["lion"]), kernels.COMPILED_PARAMETERS) is None
    monkeypatch.setitem(os.environ, "ONNXTRAIN_NO_NUMBA", "1")
    assert kernels.find(description, kernels.COMPILED_PARAMETERS) is None


def test_small_models_do_not_import_numba(artifacts):
    import subprocess

    code = (
        "import sys, numpy as np\n"
        "from onnxtrain.api import *\n"
        f"state = CheckpointState.load_checkpoint({artifacts.checkpoint!r})\n"
        f"module = Module({artifacts.train!r}, state)\n"
        f"optimizer = Optimizer({artifacts.optimizer!r}, module)\n"
        "module(np.ones((2, 4), np.float32), np.ones((2, 3), np.float32))\n"
        "optimizer.step()\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.skipif(not kernels.available(), reason="numba is not installed")
@pytest.mark.parametrize("name", ["adam", "sgd", "momentum"])
def test_serial_and_parallel_forms_have_caches_of_their_own(name):
    forms = [kernels._form(name, parallel) for parallel in (False, True)]
    assert len({form.py_func.__qualname__ for form in forms}) == 2
    assert [form.targetoptions["parallel"] for form in forms] == [False, True]
