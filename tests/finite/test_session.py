"""`TrainingSession`: the same promise, by `run`, by bindings and with added-up gradients."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from onnxtrain import TrainingParameters, TrainingSession, optim
from onnxtrain.errors import InputError, NonFiniteError

from . import models

GOOD = [models.good(seed) for seed in range(4)]
OPTIMIZERS = {
    "SGDOptimizer": "SGDOptimizer",
    "AdamOptimizer": "AdamOptimizer",
    "LambOptimizer": "LambOptimizer",
    **models.OPTIMIZERS,
}


def session(optimizer="AdamOptimizer", **fields) -> TrainingSession:
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = models.TRAINABLE
    parameters.training_optimizer_name = optimizer
    for name, value in {"check_finite": True, **fields}.items():
        setattr(parameters, name, value)
    return TrainingSession(models.network().SerializeToString(), parameters)


def feeds(batch, rate=0.05):
    return {"x": batch[0], "target": batch[1], "Learning_Rate": np.array([rate], np.float32)}


def by_run(trained, batch, rate=0.05):
    return trained.run(None, feeds(batch, rate))


def without_the_loss(trained, batch):
    return trained.run(["out"], feeds(batch))


def by_binding(trained, batch, rate=0.05):
    binding = trained.io_binding()
    for name, value in feeds(batch, rate).items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("out")
    trained.run_with_iobinding(binding)


def by_values(trained, batch, rate=0.05):
    arrays = feeds(batch, rate)
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(v) for n, v in arrays.items()}
    trained.run_with_ort_values(["out"], values)


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", [by_run, without_the_loss, by_binding, by_values])
def test_as_if_the_batch_had_not_been(step, optimizer, bad):
    trained, twin = session(OPTIMIZERS[optimizer]), session(OPTIMIZERS[optimizer])
    for before in range(2):  # both sets of buffers are read from
        step(trained, GOOD[before])
        step(twin, GOOD[before])
        with pytest.raises(NonFiniteError, match=r"is NaN or infinite\. Nothing was changed"):
            step(trained, models.BAD[bad]())
        models.assert_same(trained.get_state(), twin.get_state())
    step(trained, GOOD[2])
    step(twin, GOOD[2])
    models.assert_same(trained.get_state(), twin.get_state())


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_added_up_gradients_are_dropped(position, bad):
    """Three batches per update; one of them is no good, whichever it is."""
    trained, twin = (session(gradient_accumulation_steps=3) for _ in range(2))
    for batch in GOOD[:3]:
        by_run(trained, batch)
        by_run(twin, batch)
    for batch in GOOD[:position]:
        by_run(trained, batch)
    with pytest.raises(NonFiniteError):
        by_run(trained, models.BAD[bad]())
    models.assert_same(trained.get_state(), twin.get_state())
    for batch in GOOD[1:4]:
        by_run(trained, batch)
        by_run(twin, batch)
    models.assert_same(trained.get_state(), twin.get_state())


def test_the_error_names_the_weight():
    with pytest.raises(NonFiniteError, match="A gradient, or what it makes of 'gain',"):
        by_run(session(optim.sgd()), models.nan_gradient())
    with pytest.raises(NonFiniteError, match="The loss is NaN or infinite"):
        by_run(session(), models.infinite_loss())


def test_outputs_are_the_same_with_and_without():
    plain, checked = session(check_finite=False), session()
    assert [o.name for o in plain.get_outputs()] == [o.name for o in checked.get_outputs()]
    for batch in GOOD:
        for a, b in zip(by_run(plain, batch), by_run(checked, batch), strict=True):
            np.testing.assert_array_equal(a, b)
    by_run(plain, models.nan_input())
    assert np.isnan(plain.get_state()["W"]).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_mixed_precision_leaves_statistics_and_weights_alone(steps):
    """A voided update: whichever of the added-up batches overflows."""
    trained = session(
        check_finite=False, use_mixed_precision=True, gradient_accumulation_steps=steps
    )

    def run(batch, scale=8.0):
        return trained.run(None, {**feeds(batch), "loss_scale": np.array([scale], np.float32)})[-1]

    for _ in range(steps):
        assert run(GOOD[0])
    for position in range(steps):
        before = trained.get_state()
        for index in range(steps):
            finite = run(models.nan_gradient()) if index == position else run(GOOD[index])
            assert bool(finite) == (index != position and (index < position or index < steps - 1))
        after = trained.get_state()
        for name in models.STATISTICS if steps == 1 else []:
            np.testing.assert_array_equal(after[name], before[name])
        assert all(np.isfinite(v).all() for v in after.values())
        for name in models.TRAINABLE:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


@pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf, -0.1])
@pytest.mark.parametrize("way", [by_run, by_binding, by_values])
def test_learning_rates_that_are_fed(rate, way):
    trained = session(check_finite=False)
    before = trained.get_state()
    with pytest.raises(InputError, match="learning rate 'Learning_Rate' must be 0 or a positive"):
        way(trained, GOOD[0], rate)
    models.assert_same(trained.get_state(), before)
    trained.run(None, feeds(GOOD[0], 0.0))


def test_clipped_by_value_in_a_graph():
    """An infinite gradient clipped to a finite one is still refused."""
    trained = session(optim.sgd(clip=optim.ClipValue(0.1)))
    before = trained.get_state()
    x, target = models.good(3)
    x[0, 0] = 1e-45  # √ of a denormal number: the gradient of its root overflows
    x[1, 0] = 0
    with pytest.raises(NonFiniteError):
        by_run(trained, (x, target))
    models.assert_same(trained.get_state(), before)
