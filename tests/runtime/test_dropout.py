"""Masks of Dropout: the same whether a run was interrupted or not, and however a step is run."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain.passes as building
from onnxtrain import artifacts, optim
from onnxtrain.api import Callback, CheckpointState, Module, Optimizer, Trainer
from onnxtrain.errors import CheckpointError, ModelFileError, NonFiniteError, OnnxTrainError
from onnxtrain.runtime.files import tensorfile
from onnxtrain.runtime.files.onnxfile import ModelFile
from onnxtrain.runtime.session import cutting
from onnxtrain.runtime.session.devices import Device
from onnxtrain.runtime.state.checkpoint_state import RandomState
from onnxtrain.runtime.step.one_graph import OneGraphStep
from onnxtrain.runtime.step.update import load_optimizer

pytestmark = pytest.mark.slow

WEIGHTS = {"w1": (12, 40), "b1": (40,), "w2": (40, 24), "b2": (24,), "w3": (24, 5)}


def network():
    """Two layers with Dropout behind each; the masks can be asked for."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 12] x) => (float[N, 5] y) <float ratio = {0.3}, bool on = {1}> {
            a = Gemm(x, w1, b1)  r = Relu(a)
            [first] d, mask1 = Dropout(r, ratio, on)
            c = Gemm(d, w2, b2)  t = Tanh(c)
            [second] e, mask2 = Dropout(t, ratio, on)
            y = MatMul(e, w3)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        value = rng.normal(size=shape).astype(np.float32) * 0.3
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def generate(folder, **options):
    artifacts.generate_artifacts(
        network(),
        requires_grad=list(WEIGHTS),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optim.adamw(weight_decay=0.01),
        artifact_directory=folder,
        step_model=True,
        **options,
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("dropout"))


@pytest.fixture(scope="module")
def showing(tmp_path_factory):
    """Artifacts whose training model also returns the masks."""
    names = {"additional_output_names": ["mask1", "mask2"]}
    return generate(tmp_path_factory.mktemp("showing"), **names)


RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(90, 12)).astype(np.float32), RNG.integers(0, 5, 90)


def options(threads):
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    return made


def everything(trainer):
    """Parameters, moments, counters and history."""
    state = trainer.state
    state.training_state.sync()
    memory = state.training_state.optimizer
    found = {n: p.data.copy() for n, p in state.parameters}
    for kind, store in memory.states.items():
        found |= {f"{kind}/{n}": store.view(n).copy() for n in store}
    return found, memory.step, state.training_state.random, dict(trainer.history)


def assert_equal(one, other):
    for name, value in one[0].items():
        assert np.array_equal(value, other[0][name]), name
    assert one[1:] == other[1:]


# --- interrupted or not ---------------------------------------------------------------------------

WAYS = {
    "one graph": {},
    "parts": {"step_model": None},
    "accumulation": {"accumulate": 3},
    "clipping": {"clip_norm": 0.1},
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_two_and_two_epochs_are_four(folder, tmp_path, way, threads):
    def trainer(**more):
        given = {**WAYS[way], "session_options": options(threads), **more}
        return Trainer.from_directory(folder, learning_rate=0.01, **given)

    fit = {"batch_size": 20, "progress": False}
    whole = trainer()
    whole.fit((X, Y), epochs=4, **fit)
    first = trainer()
    first.fit((X, Y), epochs=2, **fit)
    first.save(tmp_path / "run")
    again = trainer(checkpoint=tmp_path / "run")
    assert again.state.training_state.random.counter == 10
    again.fit((X, Y), epochs=4, resume=True, **fit)
    assert type(whole._engine).__name__ == (
        "OneGraphEngine" if way == "one graph" else "TwoPartEngine"
    )
    assert_equal(everything(whole), everything(again))
    assert whole.state.training_state.random == RandomState(counter=20)


class LostError(Exception):
    """The run ends here."""


class SaveAndLose(Callback):
    """Saves after a step, and takes the run down."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_step_end(self, trainer, logs):
        if trainer.step == self.step:
            trainer.save(self.path)
            raise LostError


@pytest.mark.parametrize("way", WAYS)
def test_any_step_can_be_the_last(folder, tmp_path, way):
    fit = {"epochs": 2, "batch_size": 20, "progress": False}

    def trainer(**more):
        return Trainer.from_directory(folder, learning_rate=0.01, **WAYS[way], **more)

    whole = trainer()
    whole.fit((X, Y), **fit)
    for last in range(1, whole.step):
        path = tmp_path / f"at{last}"
        with pytest.raises(LostError):
            trainer().fit((X, Y), callbacks=[SaveAndLose(path, last)], **fit)
        again = trainer(checkpoint=path)
        again.fit((X, Y), resume=True, **fit)
        assert_equal(everything(whole), everything(again))


@pytest.mark.parametrize("threads", [1, 2])
def test_module_and_optimizer(folder, tmp_path, threads):
    def steps(state, count, start=0):
        module = Module(folder / "training_model.onnx", state, session_options=options(threads))
        update = Optimizer(folder / "optimizer_model.onnx", module)
        losses = []
        for step in range(start, start + count):
            losses.append(float(module(X[step::10], Y[step::10])))
            losses.append(float(module(X[step::7], Y[step::7])))  # added to the gradients
            update.step()
            module.lazy_reset_grad()
        return losses

    whole = CheckpointState.load_checkpoint(folder / "checkpoint")
    expected = steps(whole, 6)
    first = CheckpointState.load_checkpoint(folder / "checkpoint")
    found = steps(first, 2)
    CheckpointState.save_checkpoint(first, tmp_path / "c", include_optimizer_state=True)
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    assert again.training_state.random == first.training_state.random == RandomState(counter=4)
    found += steps(again, 4, start=2)
    assert found == expected
    assert len(set(expected)) == len(expected)
    for name, parameter in whole.parameters:
        assert np.array_equal(parameter.data, again.parameters[name].data)


# --- however a step is run ------------------------------------------------------------------------


def masks_of(module, passes=3, rows=20):
    """The masks of some passes; gradients of all of them, added."""
    found = [module(X[:rows], Y[:rows])[1:] for _ in range(passes)]
    gradients = [module.state.parameters[n].grad.copy() for n in WEIGHTS]
    return [m for pair in found for m in pair], gradients


def module_of(folder, **more):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", **more)


@pytest.fixture(scope="module")
def plain(showing):
    return masks_of(module_of(showing, session_options=options(1)))


def assert_same_masks(found, plain):
    assert all(np.array_equal(a, b) for a, b in zip(found[0], plain[0], strict=True))


def test_every_pass_and_node_has_a_mask_of_its_own(plain):
    masks, _ = plain
    assert len({m.tobytes() for m in masks}) == len(masks) == 6
    assert 0.6 < np.mean([m.mean() for m in masks]) < 0.8


@pytest.mark.parametrize("threads", [2, 4])
def test_threads(showing, plain, threads):
    assert_same_masks(masks_of(module_of(showing, session_options=options(threads))), plain)


def test_a_small_step_is_for_one_thread_and_a_large_one_draws_on(showing, plain):
    """Two sessions, one stream."""
    module = module_of(showing)
    small = module(X[:20], Y[:20])[1:]
    assert module.gradient_step.sessions.current is module.gradient_step.sessions.single
    large = module(np.tile(X, (600, 1)), np.tile(Y, 600))[1:]
    assert module.gradient_step.sessions.current is module.gradient_step.sessions.usual
    again = module(X[:20], Y[:20])[1:]
    expected = plain[0]
    for found, wanted in zip((*small, *(m[:20] for m in large), *again), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_pieces(showing, plain, monkeypatch):
    monkeypatch.setattr(cutting, "MANY_NODES", 20)
    monkeypatch.setattr(cutting, "NODES_OF_A_PIECE", 25)
    module = module_of(showing, session_options=options(1))
    assert len(module.gradient_step.session.pieces) > 2
    found = masks_of(module)
    assert_same_masks(found, plain)
    for a, b in zip(found[1], plain[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", [2, "cheap", "auto"])
def test_recompute(tmp_path, plain, how):
    generate(tmp_path, additional_output_names=["mask1", "mask2"], recompute=how)
    found = masks_of(module_of(tmp_path, session_options=options(1)))
    assert_same_masks(found, plain)
    for a, b in zip(found[1], plain[1], strict=True):
        assert np.array_equal(a, b)


def test_one_graph(showing, plain):
    state = CheckpointState.load_checkpoint(showing / "checkpoint")
    file = load_optimizer(showing / "optimizer_model.onnx")
    step = OneGraphStep(str(showing / "step_model.onnx"), state.training_state, file, Device("cpu"))
    masks = [m for _ in range(3) for m in step([X[:20], Y[:20]])[1:]]
    assert all(np.array_equal(a, b) for a, b in zip(masks, plain[0], strict=True))
    assert state.training_state.random.counter == 3


def test_named_inputs_and_ortvalues(showing, plain):
    module = module_of(showing)
    names = module.input_names()
    first = module(**dict(zip(names, (X[:20], Y[:20]))))[1:]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in (X[:20], Y[:20])]
    second = [v.numpy() for v in module(*values)[1:]]
    for found, wanted in zip((*first, *second), plain[0]):
        assert np.array_equal(found, wanted)


# --- what a user sees -----------------------------------------------------------------------------


def test_the_input_is_hidden(folder):
    module = module_of(folder)
    assert "onnxtrain.random" not in module.input_names()
    assert len(module.input_names()) == 2
    assert "onnxtrain.random" in {v.name for v in ModelFile.load(folder / "step_model.onnx").inputs}
    evaluation = onnx.load(folder / "eval_model.onnx")
    assert [n.op_type for n in evaluation.graph.node].count("Dropout") == 2


def test_evaluation_and_export_draw_nothing(folder, tmp_path):
    module = module_of(folder)
    module(X, Y)
    module.eval()
    assert len({float(module(X, Y)) for _ in range(3)}) == 1
    assert module.state.training_state.random.counter == 1
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["y"])
    model = onnx.load(tmp_path / "m.onnx")
    assert [i.name for i in model.graph.input] == ["x"]
    assert "Dropout" not in {n.op_type for n in model.graph.node}


def test_a_failed_pass_is_not_counted(folder):
    module = module_of(folder)
    with pytest.raises(OnnxTrainError):
        module(X, Y[:3])
    assert module.state.training_state.random.counter == 0
    module(X, Y)
    assert module.state.training_state.random.counter == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_batch_draws_nothing(folder, way):
    """Nor do those that were gathered for the same update, and are dropped with it."""
    good = [(X[i : i + 15], Y[i : i + 15]) for i in range(0, 90, 15)]
    bad = (np.full_like(good[0][0], np.nan), good[0][1])

    def trained(*runs):
        trainer = Trainer.from_directory(folder, check_finite=True, **WAYS[way])
        for batches in runs:
            is_good = not any(np.isnan(x).any() for x, _ in batches)
            with nullcontext() if is_good else pytest.raises(NonFiniteError):
                trainer.fit(batches, progress=False)
        return everything(trainer)[:3]

    refused = [*good[3:5], bad] if way == "accumulation" else [bad]
    assert_equal(trained(good[:3], refused, good[3:]), trained(good[:3], good[3:]))


def test_batches_that_were_given_up_have_drawn(folder):
    module = module_of(folder, check_finite=True)
    random = module.state.training_state.random
    module(X, Y)
    module.lazy_reset_grad()
    with pytest.raises(NonFiniteError):
        module(X * np.float32(np.nan), Y)
    assert random.counter == 1
    module(X, Y)
    module.discard_step()
    assert random.counter == 1


def test_the_seed_counts_at_once(showing, plain):
    module = module_of(showing)
    module.state.seed = 9
    other = masks_of(module, passes=1)
    assert not np.array_equal(other[0][0], plain[0][0])
    module.state.seed, module.state.training_state.random.counter = 0, 1
    assert np.array_equal(module(X[:20], Y[:20])[1], plain[0][2])
    module.state.seed = 2**64 - 1
    module(X[:20], Y[:20])


# --- files ----------------------------------------------------------------------------------------


def rewritten(source, target, change):
    """A checkpoint with another description of its random state."""
    arrays, metadata = tensorfile.load(source)
    metadata["random"] = json.dumps(change(json.loads(metadata["random"])))
    tensorfile.write(target, arrays, metadata)
    return target


def test_checkpoints_of_earlier_releases_have_no_counter(folder, tmp_path):
    old = rewritten(folder / "checkpoint", tmp_path / "old", lambda r: {"seed": 3, "generation": 7})
    state = CheckpointState.load_checkpoint(old)
    assert state.training_state.random == RandomState(3, 7, 0)
    Module(folder / "training_model.onnx", state)(X, Y)
    assert state.training_state.random == RandomState(3, 7, 1)


@pytest.mark.parametrize("counter", [-1, 2**63, "many", [1]])
def test_a_damaged_counter_is_refused(folder, tmp_path, counter):
    damaged = rewritten(
        folder / "checkpoint", tmp_path / "damaged", lambda r: {**r, "counter": counter}
    )
    with pytest.raises(CheckpointError, match="random state"):
        CheckpointState.load_checkpoint(damaged)


def test_a_model_that_names_a_missing_input_is_refused(folder, tmp_path):
    model = onnx.load(folder / "training_model.onnx")
    entry = next(p for p in model.metadata_props if p.key == "onnxtrain.artifact")
    entry.value = json.dumps({**json.loads(entry.value), "random": "nobody"})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match="'nobody'"):
        Module(tmp_path / "m.onnx", CheckpointState.load_checkpoint(folder / "checkpoint"))


def test_models_of_earlier_releases_train_as_before(tmp_path, monkeypatch):
    """Their kernels draw, from seeds that follow from the checkpoint and count sessions."""
    monkeypatch.setattr(building, "draw_from_counter", lambda model: model)
    generate(tmp_path, additional_output_names=["mask1", "mask2"], browser=True)
    assert json.loads((tmp_path / "device.json").read_text())["models"]["train"]["random"] is None
    masks, _ = masks_of(module_of(tmp_path))
    assert len({m.tobytes() for m in masks}) == 6
    module = module_of(tmp_path)
    assert module.state.training_state.random == RandomState(generation=1)
    assert_same_masks(masks_of(module), (masks,))
    CheckpointState.save_checkpoint(module.state, tmp_path / "c", True)
    state = CheckpointState.load_checkpoint(tmp_path / "c")
    resumed, _ = masks_of(Module(tmp_path / "training_model.onnx", state))
    assert state.training_state.random == RandomState(generation=2)
    assert not np.array_equal(resumed[0], masks[0])
