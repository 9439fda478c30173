"""A teacher on the command line: into the model before a run, and into its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from .. import losses
from ..distillation import PREFIX, with_teacher
from ..graph import ModelLike, load
from ..text import remove_cache
from .output import UserError
from .recipes import loss_block
from .similarity import similarity_loss
from .similarity_options import SIMILARITY

if TYPE_CHECKING:
    from .plan import Plan
    from .settings import Settings

LOSSES = ("cross_entropy", "causal_lm")


def check_settings(settings: Settings) -> None:
    """What belongs together, before anything is read."""
    if settings.teacher is None:
        return
    if settings.loss not in LOSSES:
        raise UserError(
            f"--teacher compares classes or tokens, and --loss is {settings.loss}: use one of "
            f"{', '.join(LOSSES)}."
        )
    if not settings.temperature > 0 or not 0 < settings.distill_alpha <= 1:
        raise UserError(
            "--temperature is a positive number, and --distill-alpha above 0 and at most 1."
        )


def add_teacher(student: ModelLike, settings: Settings) -> onnx.ModelProto:
    """The student with its teacher inside."""
    assert settings.teacher is not None
    teacher = settings.teacher if settings.task is None else remove_cache(settings.teacher)
    return with_teacher(student, teacher)


def loss_of(settings: Settings, plan: Plan) -> tuple[Any, list[str]]:
    """The loss of a run, and the values that it compares."""
    if settings.task == SIMILARITY:
        return similarity_loss(settings), [v.name for v in plan.summary.outputs]
    hard = loss_block(settings.loss, settings.ignore_index)
    if settings.teacher is None:
        return hard, [plan.output.name]
    names = [o.name or "" for o in load(settings.teacher).graph.outputs]
    said = plan.output.name if plan.output.name in names else names[0]
    soft = losses.DistillationLoss(settings.temperature, settings.distill_alpha, hard)
    return soft, [plan.output.name, f"{PREFIX}{said}"]
