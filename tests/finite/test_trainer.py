"""A batch that is no good changes nothing, and training goes on as if it had not been."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer, StepLR, Trainer
from onnxtrain.errors import NonFiniteError, StateError
from onnxtrain.runtime.step.engines import OneGraphEngine, TwoPartEngine

from . import models

GOOD = [models.good(seed) for seed in range(6)]
WAYS = {
    "one graph": ({}, OneGraphEngine),
    "parts": ({"step_model": None}, TwoPartEngine),
    "two batches": ({"accumulate": 2}, TwoPartEngine),
    "clipped here": ({"clip_norm": 0.25}, TwoPartEngine),
}


def trainer(folder, **options) -> Trainer:
    return Trainer.from_directory(folder, learning_rate=0.05, check_finite=True, **options)


def fit(trained: Trainer, batches, epochs=1, **options):
    return trained.fit(batches, epochs, progress=False, **options)


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("name", models.OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_as_if_the_batch_had_not_been(folders, monkeypatch, way, name, bad):
    monkeypatch.setenv("ONNXTRAIN_NO_NUMBA", "1")
    check_way(folders(name), way, name, bad)


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("name", models.OPTIMIZERS)
def test_with_compiled_kernels(folders, monkeypatch, name, bad):
    pytest.importorskip("numba")
    monkeypatch.setattr("onnxtrain.runtime.step.kernels.COMPILED_PARAMETERS", 1)
    check_way(folders(name), "parts", name, bad)


def check_way(folder, way, name, bad):
    options, engine = WAYS[way]
    # an even number before it, so that none of the good ones is gathered together with it
    batches = [*GOOD[:4], models.BAD[bad](), *GOOD[4:]]
    straight = trainer(folder, **options)
    expected = fit(straight, GOOD, epochs=2)
    trained = trainer(folder, **options)
    if way != "one graph" or name != "by value":
        assert isinstance(trained._engine, engine)
    fit(trainer(folder, **options), GOOD[:4])
    before = trainer(folder, **options)
    fit(before, GOOD[:4])

    with pytest.raises(NonFiniteError, match=r"In epoch 0, batch 4: .* in update \d"):
        fit(trained, batches, epochs=2)
    models.assert_same(models.everything(trained.state), models.everything(before.state))
    assert trained.step == before.step
    with pytest.raises(NonFiniteError, match="epoch 1, batch 4"):
        fit(trained, batches, epochs=2, resume=True)
    history = fit(trained, batches, epochs=2, resume=True)
    models.assert_same(models.everything(trained.state), models.everything(straight.state))
    assert history == expected


def test_gathered_batches_are_dropped_with_the_bad_one(folders):
    """Three batches per update; the second of them is no good."""
    options = {"accumulate": 3}
    trained, expected = (trainer(folders("adamw"), **options) for _ in range(2))
    with pytest.raises(NonFiniteError, match="batch 1"):
        fit(trained, [GOOD[0], models.nan_input(), *GOOD[1:4]])
    fit(trained, [GOOD[0], models.nan_input(), *GOOD[1:4]], resume=True)
    fit(expected, GOOD[1:4])
    models.assert_same(models.everything(trained.state), models.everything(expected.state))
    assert trained.step == 1


def test_bad_gradient_in_the_last_smaller_group(folders):
    """The update at the end of an epoch, from fewer batches than asked for."""
    trained, expected = (trainer(folders("adamw"), accumulate=2) for _ in range(2))
    batches = [*GOOD[:2], models.nan_gradient()]
    with pytest.raises(NonFiniteError, match="epoch 0, batch 2"):
        fit(trained, batches)
    fit(expected, GOOD[:2])
    models.assert_same(models.everything(trained.state), models.everything(expected.state))
    fit(trained, batches, resume=True)
    models.assert_same(models.everything(trained.state), models.everything(expected.state))


@pytest.mark.parametrize("way", WAYS)
def test_saved_and_resumed_elsewhere(folders, tmp_path, way):
    options, _ = WAYS[way]
    options = {**options, "scheduler": lambda o: StepLR(o, 2, 0.5)}
    batches = [*GOOD[:4], models.nan_input(), *GOOD[4:]]
    straight = trainer(folders("adamw"), **options)
    expected = fit(straight, GOOD)
    broken = trainer(folders("adamw"), **options)
    with pytest.raises(NonFiniteError):
        fit(broken, batches)
    broken.save(tmp_path / "saved")
    resumed = trainer(folders("adamw"), checkpoint=tmp_path / "saved", **options)
    assert fit(resumed, batches, resume=True) == expected
    models.assert_same(models.everything(resumed.state), models.everything(straight.state))
    assert fit(broken, batches, resume=True) == expected  # and in the same process
    models.assert_same(models.everything(broken.state), models.everything(straight.state))


def test_without_the_option_nothing_is_checked(folders):
    for step_model in ({}, {"step_model": None}):
        plain = Trainer.from_directory(folders("sgd"), **step_model)
        fit(plain, [models.nan_input()])
        assert np.isnan(plain.state.parameters["W"].data).all()


# --- Module and Optimizer -------------------------------------------------------------------------


def parts(folder) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, check_finite=True)
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def step(module: Module, optimizer: Optimizer, batch) -> None:
    module(*batch)
    optimizer.step()
    module.lazy_reset_grad()


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("name", models.OPTIMIZERS)
def test_module_and_optimizer(folders, update, name, bad):
    state, module, optimizer = parts(folders(name))
    other, *twin = parts(folders(name))
    step(module, optimizer, GOOD[0])
    before = models.everything(state)
    with pytest.raises(NonFiniteError, match=r"update 2.*Nothing was changed"):
        step(module, optimizer, models.BAD[bad]())
    models.assert_same(models.everything(state), before)
    step(module, optimizer, GOOD[1])
    for batch in GOOD[:2]:
        step(*twin, batch)
    models.assert_same(models.everything(state), models.everything(other))
    assert optimizer.step_count == 2


def test_error_names_the_parameter(folders):
    _, module, optimizer = parts(folders("adamw"))
    module(*models.nan_gradient())
    with pytest.raises(NonFiniteError, match="The gradient of 'gain' is NaN or infinite"):
        optimizer.step()
    with pytest.raises(NonFiniteError, match="The loss is inf"):
        module(*models.infinite_loss())


def test_discard_step_by_hand(folders):
    """Statistics come back to before the first of the batches that are dropped."""
    state, module, optimizer = parts(folders("adamw"))
    before = models.everything(state)
    for batch in GOOD[:3]:
        module(*batch)
    assert not np.array_equal(state.parameters["mean"].data, before["mean"])
    module.discard_step()
    models.assert_same(models.everything(state), before)
    other, *twin = parts(folders("adamw"))
    step(module, optimizer, GOOD[0])
    step(*twin, GOOD[0])
    models.assert_same(models.everything(state), models.everything(other))


def test_updates_without_reset_keep_their_statistics(folders):
    """Gradients may go on adding up over updates; a bad batch takes back only what is newer."""
    state, module, optimizer = parts(folders("adamw"))
    module(*GOOD[0])
    optimizer.step()
    before = models.everything(state)
    with pytest.raises(NonFiniteError):
        module(*models.nan_input())
    models.assert_same(models.everything(state), before)
    module(*GOOD[1])
    with pytest.raises(NonFiniteError):
        module(*models.nan_input())
    models.assert_same(models.everything(state), before)


@pytest.mark.parametrize("name", ["adamw", "momentum", "sgd"])
def test_update_that_would_overflow(folders, update, name):
    """Finite gradients whose squares, or whose step, are not: nothing is written."""
    state, module, optimizer = parts(folders(name))
    step(module, optimizer, GOOD[0])
    before = models.everything(state)
    module(*GOOD[1])
    state.training_state.gradients.view("W")[...] = 3e38
    optimizer.set_learning_rate(3e38)
    with pytest.raises(NonFiniteError, match="What update 2 would make of"):
        optimizer.step()
    models.assert_same(models.everything(state), before)


def test_batches_that_were_given_up_keep_their_statistics(folders):
    """Gradients dropped by lazy_reset_grad: their batch still counts for running statistics."""
    state, module, _ = parts(folders("adamw"))
    module(*GOOD[0])
    module.lazy_reset_grad()
    before = models.everything(state)
    with pytest.raises(NonFiniteError):
        module(*models.nan_input())
    models.assert_same(models.everything(state), before)


def test_a_new_fit_does_not_go_on_behind_the_batch(folders):
    trained = trainer(folders("adamw"))
    with pytest.raises(NonFiniteError):
        fit(trained, [GOOD[0], models.nan_input(), GOOD[1]])
    assert len(fit(trained, GOOD[:2])["loss"]) == 1
    assert trained.step == 3
    with pytest.raises(StateError, match="nothing to resume"):
        fit(trained, GOOD[:2], resume=True)
