"""Standardising: inputs and targets of mean 0 and deviation 1, as a part of the model.

The model that is trained, and written, takes and gives the numbers of the data: it has the scaling
of its inputs in front and that of its output behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..graph.scale import with_scaling
from ..runtime.loop.metrics import Metric
from .output import UserError, one_of

if TYPE_CHECKING:
    from .match import Dataset, Task
    from .plan import Plan
    from .settings import Settings

Array = npt.NDArray[Any]
CHOICES = ("none", "inputs", "targets", "both")
LOSSES = ("mse", "l1", "huber", "smooth_l1")
"""Losses of which targets may be scaled: those that compare differences."""


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of each column, or channel (axis 1)."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, array: Array) -> Scale:
        """Those of the data; a column that does not vary has the deviation 1."""
        axes = tuple(i for i in range(array.ndim) if i != 1)
        values = array.astype(np.float64)
        mean = values.mean(axis=axes, keepdims=True)
        deviation = values.std(axis=axes, keepdims=True)
        return cls(mean, np.where(deviation > 0, deviation, 1.0))

    def only(self, columns: Array) -> Scale:
        """The same for some columns; the others stay as they are."""
        return Scale(np.where(columns, self.mean, 0.0), np.where(columns, self.deviation, 1.0))

    def apply(self, array: Array) -> Array:
        """Numbers of mean 0 and deviation 1."""
        return ((array - self.mean) / self.deviation).astype(array.dtype)

    def undo(self, array: Array) -> Array:
        """The numbers of the data."""
        return (array * self.deviation + self.mean).astype(array.dtype)


class InDataUnits(Metric):
    """A metric of targets that were scaled; the model's output is in the units of the data.

    Args:
        metric: what is computed.
        scale: of the targets.
    """

    def __init__(self, metric: Metric, scale: Scale) -> None:
        self.metric, self.scale, self.name = metric, scale, metric.name
        self.reads_prediction = metric.reads_prediction

    def reset(self) -> None:
        """Start anew."""
        self.metric.reset()

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take one batch into account."""
        self.metric.update(prediction, self.scale.undo(target), loss)

    def result(self) -> float:
        """The value over all batches."""
        return self.metric.result()

    def of_loss(self, loss: float) -> float:
        """The value where the mean loss is this."""
        return self.metric.of_loss(loss)

    def state(self) -> Array | None:
        """What was gathered."""
        return self.metric.state()

    def merge(self, states: Any) -> None:
        """Take over what several processes gathered."""
        self.metric.merge(states)


def standardize(
    settings: Settings, plan: Plan, task: Task, training: Dataset, others: list[Dataset]
) -> Plan:
    """Put the scaling that the settings ask for into the model; targets are scaled in place.

    Args:
        settings: of the run.
        plan: for the model without scaling.
        task: gets the scale of the targets.
        training: data from which means and deviations follow.
        others: validation data.

    Returns:
        The plan for the model with scaling.
    """
    one_of(settings.standardize, CHOICES, "--standardize")
    if settings.standardize == "none":
        return plan
    _refuse(settings, plan, training)
    inputs: dict[str, Scale] = {}
    if settings.standardize in ("inputs", "both"):
        inputs = _input_scales(task, training)
    scale = None
    if settings.standardize in ("targets", "both"):
        target = plan.loss.target
        scale = task.scale = Scale.of(training.arrays[target])
        for data in (training, *others):
            if data.arrays:
                data.arrays[target] = scale.apply(data.arrays[target])
    numbers = {name: (s.mean, s.deviation) for name, s in inputs.items()}
    units = None if scale is None else (scale.mean, scale.deviation)
    model, compared = with_scaling(plan.model, numbers, plan.output.name, units)
    return replace(plan, model=model, output=replace(plan.output, name=compared))


def _refuse(settings: Settings, plan: Plan, training: Dataset) -> None:
    if settings.is_adapted or settings.task is not None:
        raise UserError("--standardize is for whole models on numbers: leave it out here.")
    if training.rows is None:
        raise UserError(
            "--standardize needs arrays, from which the means follow; batches are standardised "
            "where they are made."
        )
    if settings.standardize == "inputs":
        return
    if settings.loss not in LOSSES:
        raise UserError(
            f"--standardize {settings.standardize}: targets are scaled for the losses "
            f"{', '.join(LOSSES)}, not for {settings.loss}. Use --standardize inputs."
        )
    if plan.output.name not in [v.name for v in plan.summary.outputs]:
        raise UserError(
            f"--standardize {settings.standardize}: the loss compares {plan.output.name!r}, which "
            "is no output of the model. Use --standardize inputs."
        )


def _input_scales(task: Task, training: Dataset) -> dict[str, Scale]:
    scales = {
        v.name: Scale.of(training.arrays[v.name])
        for v in task.fed
        if training.arrays[v.name].dtype.kind == "f"
    }
    if not scales:
        raise UserError("--standardize: the model has no input of floats.")
    if task.categories is not None and task.categories.known:
        (name,) = scales
        numbers = task.categories.is_number.reshape(1, -1)
        if scales[name].mean.size == numbers.size:
            scales[name] = scales[name].only(numbers.reshape(scales[name].mean.shape))
    return scales
