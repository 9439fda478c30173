"""What will be trained: the model's side of a run, checked before anything is written."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from ..errors import ModelError, NoGradientError
from ..summary import BLOCKED, UNREACHABLE, ModelSummary, ValueSummary, summarize
from .adapting import adapted_model
from .distilling import add_teacher
from .output import UserError, count, one_of
from .recipes import LossRecipe, loss_recipe
from .settings import Settings

FLOAT_TYPES = ("float32", "float64", "float16", "bfloat16", "double")
IMPOSSIBLE = (UNREACHABLE, BLOCKED)


@dataclass(frozen=True)
class Plan:
    """A model that can be trained, and what of it is.

    Attributes:
        model: the model itself: the file of the settings, or what adapters were added to.
        output: what the loss compares: an output of the model, or a value inside it.
    """

    model: str | onnx.ModelProto
    summary: ModelSummary
    loss: LossRecipe
    output: ValueSummary
    trainable: list[str]
    frozen: list[str]
    digest: str

    @property
    def link(self) -> str | None:
        """The function from `output` to the first output; "" if they are the same value.

        None if the two have nothing to do with each other.
        """
        first = self.summary.outputs[0].name
        if self.output.name.startswith(f"{first}/standardized"):
            return ""
        links = {e.scores: e.function for e in self.summary.endings if e.value == first}
        return "" if self.output.name == first else links.get(self.output.name)


def make_plan(
    settings: Settings,
    model: str | onnx.ModelProto | None = None,
    *,
    base: onnx.ModelProto | None = None,
    of: str | None = None,
    choose: Callable[[ModelSummary], list[str]] | None = None,
) -> Plan:
    """Look at the model and decide what is trained; every refusal says what to do.

    Args:
        settings: of the run.
        model: by default that of the settings, with adapters and a teacher as they say.
        base: what gets these; by default the model of the settings.
        of: what the loss compares; by default what the settings say.
        choose: names of what is trained; by default what the settings say.
    """
    loss, of = loss_recipe(settings.loss), of or settings.loss_output
    if model is None:
        model = adapted_model(settings, base)
        if settings.teacher is not None:
            model = add_teacher(model, settings)
    summary = summarize(model, of, batch=settings.batch_size)
    if summary.problem:
        raise ModelError(f"{settings.model} cannot be trained: {summary.problem}")
    _check_inputs(settings.model, summary)
    output = _output(settings, summary, of)
    if of is None and len(summary.outputs) > 1:
        summary = summarize(model, output.name, batch=settings.batch_size)
    trainable = choose(summary) if choose else _trainable(settings, summary, output)
    frozen = [n for n in _floats(summary) if n not in trainable]
    digest = hashlib.sha256(Path(settings.model).read_bytes()).hexdigest()
    return Plan(model, summary, loss, output, trainable, frozen, digest)


def with_model(settings: Settings, plan: Plan, model: onnx.ModelProto) -> Plan:
    """The same plan for a model that has other parameters."""
    summary = summarize(model, plan.output.name, batch=settings.batch_size)
    trainable = _trainable(settings, summary, plan.output)
    frozen = [n for n in _floats(summary) if n not in trainable]
    return replace(plan, model=model, summary=summary, trainable=trainable, frozen=frozen)


def _floats(summary: ModelSummary) -> list[str]:
    return [p.name for p in summary.parameters if p.dtype in FLOAT_TYPES]


def _check_inputs(model: str, summary: ModelSummary) -> None:
    text = [v.name for v in summary.inputs if v.dtype == "string"]
    if text:
        raise UserError(
            f"{model} takes text: its input {text[0]!r} is of type string, and text has no "
            "gradient and no place in data files. Cut the model after the part that turns "
            "text into numbers (onnx.utils.extract_model) and train the rest."
        )


def _output(settings: Settings, summary: ModelSummary, of: str | None) -> ValueSummary:
    outputs = {v.name: v for v in summary.outputs}
    if of is not None:
        outputs |= {v.name: v for v in summary.inner}
        return outputs[one_of(of, outputs, "--loss-output")]
    floats = [v for v in summary.outputs if v.dtype in FLOAT_TYPES]
    if not floats:
        raise UserError(
            f"{settings.model} has no float output, so a loss has nothing to compare: "
            f"{', '.join(f'{v.name} is {v.dtype}' for v in summary.outputs)}. Make the scores "
            "before ArgMax or Cast an output of the model (onnx.utils.extract_model)."
        )
    named = [v for v in floats if v.name == "logits"] if settings.task else []
    return (named or floats)[0]


def _trainable(settings: Settings, summary: ModelSummary, output: ValueSummary) -> list[str]:
    names = _floats(summary)
    if not names:
        raise UserError(
            f"{settings.model} has no float parameters, so there is nothing to train. Are its "
            "weights quantised or given as inputs? Train the float model, with weights as "
            "initializers."
        )
    for option, patterns in (("--freeze", settings.freeze), ("--train", settings.train)):
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise UserError(
                    f"{option} {pattern!r} matches no parameter. The model has "
                    f"{', '.join(names[:12])}{' …' if len(names) > 12 else ''}."
                )
    chosen = summary.trainable
    if settings.train:
        chosen = [n for n in names if matches(n, settings.train)]
        for parameter in summary.parameters:
            if parameter.name in chosen and parameter.reason in IMPOSSIBLE:
                raise UserError(
                    f"--train: {parameter.name!r} cannot be trained: {parameter.reason}. Leave it "
                    f"out, or choose another --loss-output than {output.name!r}."
                )
    elif not chosen:
        _explain_nothing(settings, summary, output)
    left = [n for n in chosen if not matches(n, settings.freeze)]
    if not left:
        raise UserError(
            f"--freeze {' '.join(map(repr, settings.freeze))} freezes all "
            f"{count(len(chosen), 'parameter')}, so there is nothing left to train. Freeze fewer: "
            f"the model has {', '.join(chosen[:12])}."
        )
    return left


def _explain_nothing(settings: Settings, summary: ModelSummary, output: ValueSummary) -> None:
    if summary.blockers:
        raise NoGradientError(summary.blockers)
    reasons = sorted({p.reason for p in summary.parameters})
    raise UserError(
        f"No parameter of {settings.model} can be trained: {'; '.join(reasons)}. The loss would be "
        f"computed from the output {output.name!r}; choose another with --loss-output, or make "
        "an output of a value that depends smoothly on the parameters."
    )


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)
