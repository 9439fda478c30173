"""``--new-head``: a trained model gets a classifier for the user's classes, and learns only that.

What is before the classifier does not change, so its results for every image are computed once,
where neither ``--augment`` nor ``--unfreeze`` makes them different in each epoch.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, RunError
from ..summary import ModelSummary, ValueSummary, summarize
from ..transfer import Features, NewHead, head_model, new_head, with_weights
from .images import ImageSettings, read_augmentations
from .match import Dataset, Task, count_classes, load_pictures, match, picture_labels
from .output import Output, UserError, count
from .plan import Plan, make_plan
from .recipes import loss_recipe
from .sources import Pictures, Source, read

if TYPE_CHECKING:
    from ..runtime.state.checkpoint_state import CheckpointState
    from .settings import Settings

Array = npt.NDArray[Any]
AT_ONCE = 64
"""Images that are in memory together while features are computed."""
NOT_WITH = ("adapter", "categorical", "task", "teacher", "train")


def check_settings(settings: Settings) -> None:
    """What belongs together, before anything is read."""
    if not settings.new_head:
        if settings.unfreeze:
            raise UserError(
                "--unfreeze goes with --new-head, where all else is frozen: add that, or choose "
                "what is trained with --train and --freeze."
            )
        return
    for name in NOT_WITH:
        if getattr(settings, name):
            instead = " --unfreeze names what is trained beside the head." * (name == "train")
            raise UserError(f"--new-head and --{name} do not go together: leave one out.{instead}")
    if settings.rank:
        raise UserError(
            "--new-head is an option of onnxtrain train: train the head first, then adapt the "
            "model that comes out with onnxtrain lora."
        )
    if settings.standardize != "none":
        raise UserError("--new-head and --standardize do not go together: leave one out.")
    if not loss_recipe(settings.loss).takes_labels or settings.loss == "causal_lm":
        raise UserError(
            f"--new-head is for classes, and --loss is {settings.loss}: leave --loss out."
        )


@dataclass
class HeadTask:
    """A model with a new classifier, and what is trained of it.

    Attributes:
        head: the model.
        plan: of what is trained: the classifier alone, if its features are computed once.
        features: computes them; None if the whole model runs in every step.
    """

    settings: Settings
    head: NewHead
    plan: Plan
    features: Features | None = None

    @classmethod
    def of(cls, settings: Settings, output: Output) -> HeadTask:
        """Count the classes of the data, and replace the classifier; says what was done."""
        source = read(settings.data)
        summary = summarize(settings.model)
        classes = _classes(source, summary, settings)
        head = new_head(settings.model, classes, of=settings.loss_output, seed=settings.seed)
        plan = make_plan(settings, head.model, of=head.scores, choose=_trained(settings, head))
        task = cls(settings, head, plan, _features(settings, head))
        task.say(output, classes)
        return task

    def say(self, output: Output, classes: int | Sequence[str]) -> None:
        """What the model has become."""
        names = [] if isinstance(classes, int) else list(classes)
        listed = f": {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else ""
        shared = "; the old weight is read elsewhere too and stays there" * self.head.was_shared
        output.say(
            f"{self.settings.model}: the classifier {self.head.layer} is replaced by one for "
            f"{self.head.classes} classes{listed}{shared}."
        )
        if self.head.dropped:
            output.say(f"Outputs that are left out: {', '.join(self.head.dropped)}.")
        trained = len(self.plan.trainable)
        output.say(
            f"{count(trained, 'parameter')} of {trained + len(self.plan.frozen)} trained"
            + ("; features are computed once." if self.features is not None else ".")
        )

    def read(self, source: str, task: Task) -> Dataset:
        """Data as features and labels; images are never all in memory."""
        assert self.features is not None
        contents = read(source)
        if isinstance(contents, Pictures):
            data = picture_labels(contents, task)
            features = [
                self._run(part, source) for part in _in_parts(contents, task.fed[0], task.images)
            ]
            together = np.concatenate(features)
        else:
            data = match(contents, task)
            together = self._run(data.arrays, source)
        target = task.loss.target
        data.arrays = {self.head.features: together, target: data.arrays[target]}
        return data

    def _run(self, arrays: Mapping[str, Array], source: str) -> Array:
        assert self.features is not None
        try:
            return self.features(arrays)
        except RunError as error:
            raise UserError(
                f"The model fails on the rows of {source}: {error} Do the data fit the model? "
                "onnxtrain inspect shows what it takes."
            ) from error

    def step_plan(self, features: Array) -> Plan:
        """The plan of what runs in every step, once the shape of the features is known."""
        model = head_model(self.head, features.shape)
        chosen = list(self.head.parameters)
        return make_plan(self.settings, model, of=self.head.scores, choose=lambda _: chosen)

    def write(self, state: CheckpointState, path: Path) -> None:
        """The whole model with what was learned."""
        with_weights(self.head.model, state, path)


def _classes(source: Source, summary: ModelSummary, settings: Settings) -> int | list[str]:
    """How many classes the data have, or their names."""
    inputs = summary.inputs
    task = Task(inputs, summary.outputs[0], loss_recipe(settings.loss), settings.target,
                ignore_index=settings.ignore_index)  # fmt: skip
    classes = count_classes(source, task)
    number = classes if isinstance(classes, int) else len(classes)
    if number < 2:
        which = f" ({classes[0]})" if isinstance(classes, list) and classes else ""
        raise UserError(
            f"{settings.data} has {number or 'no'} class{which}, and a classifier needs two or "
            "more: a folder of images for each, or labels that differ."
        )
    return classes


def _trained(settings: Settings, head: NewHead) -> Any:
    """What chooses the parameters: the new ones, and those that the user unfreezes."""

    def choose(summary: ModelSummary) -> list[str]:
        names = [n for n in summary.trainable if n not in head.parameters]
        for pattern in settings.unfreeze:
            if not fnmatch.filter(names, pattern):
                raise UserError(
                    f"--unfreeze {pattern!r} matches no parameter that can be trained. The model "
                    f"has {', '.join(names[:12])}{' …' if len(names) > 12 else ''}."
                )
        unfrozen = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in settings.unfreeze)]
        left = [n for n in unfrozen if not any(fnmatch.fnmatchcase(n, p) for p in settings.freeze)]
        return [*left, *head.parameters]

    return choose


def _features(settings: Settings, head: NewHead) -> Features | None:
    """What computes features once; None where they are not the same in every epoch."""
    if read_augmentations(settings.augment) or settings.unfreeze:
        return None
    if settings.training_mode == "train":
        return None
    try:
        return Features(head)
    except ModelError:  # something before the classifier trains or draws: all of it runs each time
        return None


def _in_parts(source: Pictures, value: ValueSummary, images: ImageSettings) -> Any:
    """Images as arrays by name of the input, some at a time."""
    for start in range(0, len(source.files), AT_ONCE):
        files = source.files[start : start + AT_ONCE]
        part = Pictures(files, source.labels[start : start + AT_ONCE], source.classes, source.where)
        yield {value.name: load_pictures(part, value, images)}
