"""Quantisation-aware training on the command line: into the model before a run, out of it after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import quant
from ..optim import Group, Optimizer
from .output import Output, UserError, names_in
from .plan import Plan, with_model

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer
    from .match import Dataset
    from .settings import Settings

FACTORS = "*_scale_factor"
"""Names of what is learned of scales."""


def check_settings(settings: Settings) -> None:
    """What does not go together, before anything is read."""
    if settings.qat and settings.task is not None:
        raise UserError("onnxtrain qat takes no --task: it trains on numbers and images.")
    if settings.qat and settings.teacher is not None:
        raise UserError(
            "onnxtrain qat takes no --teacher: the teacher's layers would be rounded too."
        )


def quantized_plan(settings: Settings, plan: Plan, training: Dataset) -> Plan:
    """The plan for a model that rounds, where the settings ask for one."""
    if not settings.qat:
        return plan
    if training.rows is None:
        raise UserError(
            "onnxtrain qat observes rows of arrays, and --data gives batches. Prepare the model in "
            "Python, with onnxtrain.quant.prepare_qat, and train what that gives."
        )
    eight = names_in(settings.eight_bits)
    prepared = quant.prepare_qat(
        plan.model,
        training.arrays,
        weight_bits=settings.weight_bits,
        activation_bits=settings.activation_bits or None,
        per_channel=settings.per_channel,
        observer=settings.observer,
        percentile=settings.percentile,
        calibration_rows=settings.calibration_rows,
        learn_scales=settings.learn_scales,
        exclude=names_in(settings.exclude),
        overrides=dict.fromkeys(eight, 8),
    )
    return with_model(settings, plan, prepared)


def without_decay(optimizer: Optimizer, plan: Plan) -> Optimizer:
    """Weights may shrink a little in every step; scales may not, or the range would."""
    has_factors = any(name.endswith(FACTORS[1:]) for name in plan.trainable)
    if not has_factors or not optimizer.decays:
        return optimizer
    return replace(optimizer, groups=(*optimizer.groups, Group(FACTORS, weight_decay=0.0)))


def say_static(
    trainer: Trainer, validation: Dataset | None, settings: Settings, output: Output
) -> None:
    """What rounding alone makes of the model, before it is trained."""
    if not settings.qat or settings.resume or validation is None:
        return
    results = trainer.evaluate(validation.data, settings.batch_size)
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in results.items())
    output.say(f"Rounded, before training: {numbers}")


def write_integers(trainer: Trainer, path: Path) -> None:
    """Write what was trained with its weights as integers.

    From the trained graph itself: a resumed run goes on with the scales of its artifacts.
    """
    trainer.export(path)
    quant.convert(path, output=path)
