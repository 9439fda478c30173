"""Rates, limits and decays that make no sense are refused, by name, wherever they come in."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from onnxtrain import TrainingParameters, TrainingSession, onnxblock, optim
from onnxtrain.api import (
    CheckpointState,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLRScheduler,
    LRScheduler,
    Module,
    OneCycleLR,
    Optimizer,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
    Trainer,
    WarmUp,
)
from onnxtrain.errors import CheckpointError, InputError, ModelFileError
from onnxtrain.hyper import LARGEST, check_amount, check_limit, check_rate
from onnxtrain.optim import OptimizerError
from onnxtrain.runtime.step.update import load_optimizer
from onnxtrain.training import ParameterError

from . import models

RATES = [math.nan, math.inf, -math.inf, -1e-9, 1e39, "fast", None, [0.1]]
LIMITS = [math.nan, -math.inf, -1.0, 0.0, "much"]


# --- the three checks -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", RATES)
def test_checks_refuse(value):
    for check in (check_rate, check_amount):
        with pytest.raises(InputError, match="this number must"):
            check(value, "this number")


@pytest.mark.parametrize("value", LIMITS)
@pytest.mark.parametrize("infinite", [False, True])
def test_limits(value, infinite):
    with pytest.raises(InputError, match="this limit must be a"):
        check_limit(value, "this limit", infinite=infinite)


def test_what_is_allowed():
    for value in (0, 0.0, -0.0, 1e-45, LARGEST, np.float32(0.5), np.array(0.5), True):
        assert check_rate(value) == check_amount(value, "it") == float(value)
    assert check_limit(math.inf, "it", infinite=True) == math.inf
    with pytest.raises(InputError, match="left out for no limit"):
        check_limit(math.inf, "it")


# --- Trainer, Module, Optimizer -------------------------------------------------------------------


@pytest.mark.parametrize("value", [v for v in RATES if v is not None])
@pytest.mark.parametrize("step_model", [{}, {"step_model": None}])
def test_rates_of_a_trainer(folders, step_model, value):
    with pytest.raises(InputError, match="The learning rate must be"):
        Trainer.from_directory(folders("sgd"), learning_rate=value, **step_model)
    trainer = Trainer.from_directory(folders("sgd"), learning_rate=0, **step_model)
    assert trainer.optimizer.get_learning_rate() == 0
    with pytest.raises(InputError, match="The learning rate must be"):
        trainer.optimizer.set_learning_rate(value)
    assert trainer.optimizer.get_learning_rate() == 0


@pytest.mark.parametrize("value", LIMITS)
@pytest.mark.parametrize("distributed", [None, "single"])
def test_limits_of_a_trainer(folders, distributed, value):
    with pytest.raises(InputError, match="clip_norm must be a"):
        Trainer.from_directory(folders("sgd"), clip_norm=value, distributed=distributed)


def test_no_limit_turns_the_optimizers_own_off(folders):
    before = Trainer.from_directory(folders("clipped"))
    trainers = [
        Trainer.from_directory(folders("clipped"), clip_norm=limit, step_model=None)
        for limit in (None, 1e9, math.inf)
    ]
    for trainer in trainers:
        trainer.fit([models.good(0)], progress=False)
    assert not np.array_equal(
        before.state.parameters["W"].data, trainers[0].state.parameters["W"].data
    )
    clipped, huge, none = (
        t.state.training_state.optimizer.states["first_order_moments"].view("W").copy()
        for t in trainers
    )
    np.testing.assert_array_equal(huge, none)
    assert not np.array_equal(clipped, none)


def parts(folder):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def test_optimizer(folders):
    _, _, optimizer = parts(folders("sgd"))
    for value in RATES:
        with pytest.raises(InputError, match="The learning rate must be"):
            optimizer.set_learning_rate(value)
    for value in LIMITS:
        with pytest.raises(InputError, match="clip_norm must be a"):
            optimizer.clip_norm = value
    assert optimizer.clip_norm is None
    assert optimizer.get_learning_rate() == 0.001
    optimizer.set_learning_rate(0)


# --- schedules ------------------------------------------------------------------------------------


class Mine(LRScheduler):
    def lr_at(self, count):
        return 0.1 - 0.06 * count


SCHEDULES = {
    "Mine": lambda o: Mine(o),
    "ExponentialLR": lambda o: ExponentialLR(o, math.nan),
    "StepLR": lambda o: StepLR(o, 1, -0.5),
    "ConstantLR": lambda o: ConstantLR(o, math.inf, 3),
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, 3, eta_min=-1.0),
    "PolynomialLR": lambda o: PolynomialLR(o, 3, math.nan),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, factor=-1.0, patience=0, min_lr=-1.0),
    "WarmUp": lambda o: WarmUp(StepLR(o, 3), 3, start_factor=-5.0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_schedule_gives(folders, name):
    """The error says which schedule, and after how many steps; the rate before it stays."""
    _, _, optimizer = parts(folders("sgd"))
    optimizer.set_learning_rate(0.1)

    def run():
        schedule = SCHEDULES[name](optimizer)
        for _ in range(4):
            schedule.step(1.0)

    with pytest.raises(InputError, match=f"that {name} gives after [0-9] steps must be 0 or"):
        run()
    assert 0 <= optimizer.get_learning_rate() < 0.11


def test_a_schedule_without_a_module():
    rate = [0.1]
    fake = SimpleNamespace(
        get_learning_rate=lambda: rate[0], set_learning_rate=lambda r: rate.__setitem__(0, r)
    )
    schedule = Mine(fake)
    schedule.step()
    with pytest.raises(InputError, match="Mine gives after 2 steps"):
        schedule.step()
    for initial in (math.nan, -1.0):
        with pytest.raises(InputError, match="initial_lr"):
            StepLR(fake, 2, initial_lr=initial)
        with pytest.raises(InputError, match="initial_lr"):
            LinearLRScheduler(fake, 1, 2, initial)


def test_in_a_trainer_a_schedule_is_refused_when_it_goes_wrong(folders):
    trainer = Trainer.from_directory(folders("sgd"), learning_rate=0.1, scheduler=lambda o: Mine(o))
    with pytest.raises(InputError, match="Mine gives after 2 steps"):
        trainer.fit([models.good(s) for s in range(4)], progress=False)


def test_a_cycle_ends_at_its_last_step():
    """In a line, the count after the last step would be below zero."""
    rate = [0.1]
    fake = SimpleNamespace(
        get_learning_rate=lambda: rate[0], set_learning_rate=lambda r: rate.__setitem__(0, r)
    )
    cycle = OneCycleLR(fake, 0.5, 10, anneal_strategy="linear")
    for _ in range(10):
        cycle.step()
    assert rate[0] == 0.0


# --- onnxtrain.optim ------------------------------------------------------------------------------

CHAINS = [
    (optim.sgd, "momentum"), (optim.sgd, "dampening"), (optim.sgd, "weight_decay"),
    (optim.adamw, "eps"), (optim.adamw, "weight_decay"), (optim.adam, "eps"),
    (optim.adam, "weight_decay"), (optim.lamb, "eps"), (optim.adagrad, "lr_decay"),
    (optim.adagrad, "initial_accumulator_value"), (optim.adagrad, "eps"), (optim.rmsprop, "alpha"),
    (optim.rmsprop, "eps"), (optim.rmsprop, "momentum"), (optim.adadelta, "rho"),
    (optim.adadelta, "eps"), (optim.lion, "weight_decay"), (optim.adafactor, "weight_decay"),
    (optim.adafactor, "d"),
]  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5])
@pytest.mark.parametrize(("make", "name"), CHAINS)
def test_hyperparameters(make, name, value):
    with pytest.raises(OptimizerError, match=name.split("_")[0]):
        make(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5])
def test_more_hyperparameters(value):
    for make in (optim.adamw, optim.adam, optim.lamb, optim.lion):
        for betas in ((value, 0.9), (0.9, value)):
            with pytest.raises(OptimizerError, match="betas"):
                make(betas)
    for eps in ((value, 1e-3), (None, value)):
        with pytest.raises(OptimizerError, match="eps"):
            optim.adafactor(eps=eps)
    with pytest.raises(OptimizerError, match="lr_scale"):
        optim.Group("*", lr_scale=value)
    with pytest.raises(OptimizerError, match="weight_decay"):
        optim.Group("*", weight_decay=value)
    with pytest.raises(OptimizerError, match="weight_decay"):
        optim.chain(optim.scale_by_learning_rate(), weight_decay=value)
    for kind in (optim.ClipNorm, optim.ClipValue):
        with pytest.raises(OptimizerError, match="must be a positive number"):
            kind(value)
        with pytest.raises(OptimizerError, match="must be a positive number"):
            kind(0.0)
    for block in (onnxblock.optim.ClipGradNorm, onnxblock.optim.ClipGradValue):
        with pytest.raises(OptimizerError, match="must be a positive number"):
            block(value)


@pytest.mark.parametrize(
    "transform",
    [
        optim.trace(math.nan),
        optim.scale_by_adam(b1=math.nan),
        optim.scale_by_adam(eps=math.nan),
        optim.scale_by_trust_ratio(largest=math.nan),
        optim.clip_by_value(math.nan),
        optim.scale_by_rms(alpha=math.nan),
    ],
)
def test_chains_of_ones_own(transform):
    with pytest.raises(OptimizerError, match=f"of {type(transform).__name__} is NaN"):
        optim.chain(transform, optim.scale_by_learning_rate())
    optim.chain(optim.scale_by_trust_ratio(), optim.scale_by_learning_rate())  # up to infinity


# --- TrainingSession ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5])
@pytest.mark.parametrize(
    ("optimizer", "attribute"),
    [
        ("AdamOptimizer", "alpha"), ("AdamOptimizer", "beta"), ("AdamOptimizer", "epsilon"),
        ("AdamOptimizer", "lambda"), ("LambOptimizer", "alpha"), ("LambOptimizer", "beta"),
        ("LambOptimizer", "epsilon"), ("LambOptimizer", "lambda"), ("SGDOptimizer", "momentum"),
        ("SGDOptimizer", "lambda"),
    ],
)  # fmt: skip
def test_attributes_of_a_session(optimizer, attribute, value):
    parameters = session_parameters(optimizer, {attribute: value})
    with pytest.raises(ValueError, match=r"NaN|below 1"):
        TrainingSession(models.network().SerializeToString(), parameters)


@pytest.mark.parametrize("value", [math.nan, -0.5, 0.0])
@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "LambOptimizer"])
def test_limits_of_a_session(optimizer, value):
    parameters = session_parameters(optimizer, {"max_norm_clip": value})
    with pytest.raises(OptimizerError, match="max_norm"):
        TrainingSession(models.network().SerializeToString(), parameters)
    none = session_parameters(optimizer, {"max_norm_clip": math.inf})
    TrainingSession(models.network().SerializeToString(), none)


def session_parameters(optimizer, attributes):
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = models.TRAINABLE
    parameters.training_optimizer_name = optimizer
    parameters.optimizer_attributes_map = dict.fromkeys(models.TRAINABLE, attributes)
    return parameters


def test_loss_scale_of_a_session():
    for value in (math.nan, math.inf, -1.0):
        parameters = TrainingParameters()
        parameters.loss_scale = value
        with pytest.raises(ParameterError, match="loss_scale"):
            parameters.check()


# --- files ----------------------------------------------------------------------------------------


def edited(path, change) -> bytes:
    """An optimizer model whose description is another."""
    model = onnx.load(path)
    entry = next(p for p in model.metadata_props if p.key == "onnxtrain.optimizer")
    described = json.loads(entry.value)
    change(described)
    entry.value = json.dumps(described)
    return model.SerializeToString()


@pytest.mark.parametrize("value", [math.nan, -1.0, 0.0, "x"])
def test_limit_in_a_file(folders, value):
    content = edited(folders("clipped") / "optimizer_model.onnx",
                     lambda d: d.__setitem__("clip", {"norm": value}))  # fmt: skip
    with pytest.raises(
        ModelFileError, match=r"the limit by norm must be|'clip' = .*cannot be used"
    ):
        load_optimizer(content)


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf])
def test_groups_in_a_file(folders, value):
    for key in ("lr_scale", "weight_decay"):
        groups = [{"params": ["W"], key: value}]
        content = edited(folders("adamw") / "optimizer_model.onnx",
                         lambda d, g=groups: d.__setitem__("groups", g))  # fmt: skip
        with pytest.raises(ModelFileError, match=key):
            load_optimizer(content)
    content = edited(folders("adamw") / "optimizer_model.onnx",
                     lambda d: d["hyper"].__setitem__("weight_decay", value))  # fmt: skip
    with pytest.raises(ModelFileError, match="weight_decay"):
        load_optimizer(content)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "x"])
@pytest.mark.parametrize("form", ["ortt", "odtc"])
def test_rate_in_a_checkpoint(folders, tmp_path, form, value):
    if form == "odtc" and value == "x":
        pytest.skip("a number by its format")
    state, _, _ = parts(folders("adamw"))
    state.training_state.optimizer.learning_rate = value
    path = tmp_path / "checkpoint"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True, format=form)
    with pytest.raises(CheckpointError, match="is damaged: the learning rate must be"):
        CheckpointState.load_checkpoint(path)
