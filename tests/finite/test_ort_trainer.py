"""ORTTrainer, both generations: one graph, added-up gradients, a loss scale, several shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain.compat.ort.orttrainer import optim
from onnxtrain.compat.ort.orttrainer.optim import ConfigError
from onnxtrain.errors import NonFiniteError
from onnxtrain.torch import IODescription, ModelDescription, ORTTrainer

from . import models

GOOD = [models.good(seed) for seed in range(4)]
DESCRIPTION = {
    "inputs": [("x", ["N", 4]), ("target", ["N", 1])],
    "outputs": [("loss", [], True), ("out", ["N", 1])],
}
CONFIGS = {
    "sgd": lambda: optim.SGDConfig(lr=0.05),
    "adam": lambda: optim.AdamConfig(lr=0.05),
    "lamb": lambda: optim.LambConfig(lr=0.05),
}


def second(config="adam", accumulate=1, check_finite=True, **options) -> ORTTrainer:
    return ORTTrainer(
        models.network(),
        DESCRIPTION,
        CONFIGS[config](),
        options={
            "utils": {"check_finite": check_finite, "frozen_weights": models.STATISTICS},
            "batch": {"gradient_accumulation_steps": accumulate},
            **options,
        },
    )


def first(**options) -> ORTTrainer:
    description = ModelDescription(
        [IODescription("x", ["N", 4], torch.float32), IODescription("target", ["N", 1])],
        [IODescription("loss", []), IODescription("out", ["N", 1])],
    )
    rate = IODescription("Learning_Rate", [1], torch.float32)
    return ORTTrainer(
        models.network(), None, description, "AdamOptimizer", None, rate,
        frozen_weights=models.STATISTICS, **{"check_finite": True, **options},
    )  # fmt: skip


def step(trainer, batch):
    inputs = [torch.from_numpy(a) for a in batch]
    if hasattr(trainer, "learning_rate_description_"):
        inputs.append(torch.tensor([0.05]))
    return trainer.train_step(*inputs)


def steps(trainer, batches) -> None:
    """Gradients are looked at when all of an update are there."""
    for batch in batches:
        step(trainer, batch)


def flat(state, prefix="") -> dict[str, np.ndarray]:
    found = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, (torch.Tensor, np.ndarray, int, float)) and "options" not in prefix:
            found[prefix + name] = np.asarray(value)
    return found


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("config", CONFIGS)
def test_as_if_the_batch_had_not_been(config, accumulate, bad):
    trained, twin = (second(config, accumulate) for _ in range(2))
    for batch in GOOD[:2]:
        step(trained, batch)
        step(twin, batch)
    with pytest.raises(NonFiniteError, match="Nothing was changed"):
        steps(trained, [models.BAD[bad]()] * accumulate)
    before = flat(twin.state_dict())
    found = flat(trained.state_dict())
    for counter in ("train_step_info/step",):  # counts batches, also one that was only gathered
        before.pop(counter), found.pop(counter)
    models.assert_same(found, before)
    for batch in GOOD[2:]:
        step(trained, batch)
        step(twin, batch)
    found, expected = flat(trained.state_dict()), flat(twin.state_dict())
    found.pop("train_step_info/step"), expected.pop("train_step_info/step")
    models.assert_same(found, expected)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bad", models.BAD)
def test_first_generation(accumulate, bad):
    trained = first(gradient_accumulation_steps=accumulate)
    for batch in GOOD[:2]:
        step(trained, batch)
    before = flat(trained.state_dict())
    with pytest.raises(NonFiniteError):
        steps(trained, [models.BAD[bad]()] * accumulate)
    models.assert_same(flat(trained.state_dict()), before)
    for batch in GOOD[2:]:
        step(trained, batch)


def test_the_loss_is_checked_though_nobody_fetches_it():
    trained = second("sgd")
    step(trained, GOOD[0])
    before = flat(trained.state_dict())
    trained._train_step_info.fetches = ["out"]
    assert step(trained, GOOD[1]).shape == (6, 1)
    before = flat(trained.state_dict())
    with pytest.raises(NonFiniteError, match="The loss is inf"):
        step(trained, models.infinite_loss())
    models.assert_same(flat(trained.state_dict()), before)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_mixed_precision_leaves_statistics_alone(accumulate):
    """A step that a loss scale makes void changes no running statistics either."""
    trained = second("adam", accumulate, check_finite=False, mixed_precision={"enabled": True})
    for batch in GOOD[:2]:
        step(trained, batch)
    before = flat(trained.state_dict())
    for batch in (GOOD[2], models.nan_gradient())[2 - accumulate :]:
        step(trained, batch)
    assert not trained._train_step_info.all_finite
    found = flat(trained.state_dict())
    for name in before:
        if name.startswith(("model/", "optimizer/")):
            np.testing.assert_array_equal(found[name], before[name], err_msg=name)


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(self.norm(x))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_torch_module_whose_shapes_change(accumulate):
    """Every shape has an engine of its own; statistics and their counter come back in all."""
    description = {
        "inputs": [("x", [6, 4]), ("target", [6, 1])],
        "outputs": [("loss", [], True), ("out", [6, 1])],
    }

    def make():
        return ORTTrainer(
            Normalized(), description, optim.AdamConfig(lr=0.05),
            loss_fn=torch.nn.MSELoss(),
            options={
                "utils": {"check_finite": True},
                "batch": {"gradient_accumulation_steps": accumulate},
            },
        )  # fmt: skip

    trained = make()
    for batch in GOOD[:2]:
        step(trained, batch)
    before = {n: v.clone() for n, v in trained.state_dict(pytorch_format=True).items()}
    assert before["norm.num_batches_tracked"] == 2
    if accumulate == 2:
        step(trained, models.good(7, rows=5))
    x, target = models.good(8, rows=5)
    x[0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        step(trained, (x, target))
    after = trained.state_dict(pytorch_format=True)
    for name, value in before.items():
        assert torch.equal(after[name], value), name


# --- rates ----------------------------------------------------------------------------------------

WRONG = [float("nan"), float("inf"), -0.1]


@pytest.mark.parametrize("value", WRONG)
def test_configurations_refuse(value):
    for config in (optim.SGDConfig, optim.AdamConfig, optim.LambConfig):
        with pytest.raises(ConfigError, match="lr"):
            config(lr=value)
        assert config(lr=0.0).lr == 0.0
    for name in ("alpha", "beta", "lambda_coef", "epsilon"):
        with pytest.raises(ConfigError, match=name):
            optim.AdamConfig(**{name: value})
    with pytest.raises(ValueError, match="lr"):
        optim.FusedAdam([torch.nn.Parameter(torch.ones(2))], lr=value)
    for limit in (value, 0.0):
        if limit == float("inf"):  # no limit
            continue
        config = optim.SGDConfig(max_norm_clip=limit)
        with pytest.raises(ConfigError, match="max_norm_clip"):
            config.build(["w"])


@pytest.mark.parametrize("value", WRONG)
def test_rates_are_looked_at_in_every_step(value):
    trained = second("sgd")
    step(trained, GOOD[0])
    before = flat(trained.state_dict())
    trained.optim_config.lr = value
    with pytest.raises(ValueError, match="learning rate must be 0 or a positive finite number"):
        step(trained, GOOD[1])
    models.assert_same(flat(trained.state_dict()), before)
    older = first()
    step(older, GOOD[0])
    inputs = [torch.from_numpy(a) for a in GOOD[1]]
    with pytest.raises(ValueError, match="learning rate must be 0"):
        older.train_step(*inputs, torch.tensor([value]))


def test_a_schedule_that_goes_below_zero():
    class Falling(optim.lr_scheduler._LRScheduler):
        def get_lr(self, info):
            return [0.1 - 0.1 * info.optimization_step]

    trained = second("sgd", lr_scheduler=Falling())
    for batch in GOOD[:2]:
        step(trained, batch)
    with pytest.raises(ValueError, match="learning rate"):
        step(trained, GOOD[2])


# --- two processes --------------------------------------------------------------------------------


def _process(rank: int, meeting: str, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    trained = second("adam", distributed={"world_rank": rank, "world_size": 2})
    step(trained, GOOD[rank])
    before = flat(trained.state_dict())
    for bad in models.BAD.values():  # only one of the two has it
        with pytest.raises(NonFiniteError):
            step(trained, bad() if rank else GOOD[2])
        models.assert_same(flat(trained.state_dict()), before)
    step(trained, GOOD[2 + rank])
    np.savez(f"{folder}/{rank}.npz", **flat(trained.state_dict()["model"]))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_refuse_together(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_process, args=(rank, str(tmp_path / "meeting"), str(tmp_path)))
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    results = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2)]
    for name in models.TRAINABLE:
        np.testing.assert_array_equal(*[r[f"full_precision/{name}"] for r in results])
