"""Language models on the command line: text instead of arrays, samples before and after."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .. import text
from ..graph import ModelLike
from ..text.tokenizer import CONFIG, FILE
from .history import write_text
from .match import Dataset
from .output import Output, UserError, count, one_of
from .recipes import SIMILARITY_LOSSES
from .similarity import check_settings as check_similarity
from .similarity_options import SIMILARITY

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer
    from ..text.rows import Side
    from .plan import Plan
    from .settings import Settings

CAUSAL_LM = "causal-lm"
TASKS = (CAUSAL_LM, SIMILARITY)
SIDES = ("right", "left")


def check_settings(settings: Settings) -> None:
    """What belongs together, before anything is read."""
    if settings.task is None:
        if settings.tokenizer is not None:
            raise UserError(f"--tokenizer goes with --task {' or '.join(TASKS)}: add that.")
        if settings.loss in SIMILARITY_LOSSES:
            raise UserError(f"--loss {settings.loss} goes with --task {SIMILARITY}: add that.")
        return
    one_of(settings.task, TASKS, "--task")
    one_of(settings.padding_side, SIDES, "--padding-side")
    if settings.tokenizer is None:
        raise UserError(
            f"--task {settings.task} reads text, and needs the tokenizer that belongs to the "
            "model: --tokenizer tokenizer.json."
        )
    if settings.task == SIMILARITY:
        check_similarity(settings)
        return
    if settings.loss != "causal_lm":
        raise UserError(
            f"--task {CAUSAL_LM} has the loss causal_lm, and --loss is {settings.loss}: leave "
            "--loss out."
        )


def copy_tokenizer(source: str, folder: Path) -> None:
    """Put a tokenizer beside artifacts, where the page of ``onnxtrain serve`` finds it."""
    path = Path(source)
    own = path if path.is_dir() else path.parent
    for name, file in ((FILE, own / FILE if path.is_dir() else path), (CONFIG, own / CONFIG)):
        if file.is_file():
            shutil.copyfile(file, folder / name)


def base_model(settings: Settings) -> ModelLike:
    """The model to adapt or to train: a decoder without its cache, any other as it is.

    One that is trained on packed texts keeps them apart where that is possible.
    """
    if settings.task != CAUSAL_LM:
        return settings.model
    decoder = text.remove_cache(settings.model)
    return decoder if why_together(settings, decoder) else text.separated_model(decoder)


def why_together(settings: Settings, decoder: ModelLike) -> str:
    """Why packed texts see each other; "" if they do not."""
    if not settings.packing:
        return "each text has a row of its own"
    if settings.teacher is not None:
        return "The teacher takes the same rows, and its texts are not kept apart."
    try:
        text.separated_model(decoder)
    except text.TextError as error:
        return str(error)
    return ""


@dataclass
class LanguageTask:
    """A language model, its tokenizer, and what it wrote."""

    settings: Settings
    inputs: text.LanguageInputs
    tokenizer: text.Tokenizer
    output: int
    """Which of the model's outputs has the scores."""
    prompt: str = ""
    samples: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, plan: Plan) -> LanguageTask:
        """Read the tokenizer; one that does not belong to the model is refused."""
        tokenizer = text.load_tokenizer(settings.tokenizer)
        shape = plan.output.shape or ()
        vocabulary = shape[-1] if shape and isinstance(shape[-1], int) else None
        text.check_vocabulary(tokenizer, vocabulary, settings.model)
        names = [v.name for v in plan.summary.outputs]
        index = names.index(plan.output.name) if plan.output.name in names else 0
        inputs = text.LanguageInputs.of(plan.model)
        return cls(settings, inputs, tokenizer, index, settings.prompt or "")

    def read(self, source: str, output: Output) -> Dataset:
        """Text as rows of tokens; says how many, and what was cut."""
        settings = self.settings
        length = self.inputs.length
        rows = text.causal_lm_rows(
            source,
            self.tokenizer,
            length or settings.max_length,
            packing=settings.packing,
            separate=self.inputs.documents is not None,
            padding_side=cast("Side", settings.padding_side),
            fixed_length=length is not None,
            column=settings.text_column,
        )
        learned = int((rows.labels[:, 1:] != text.IGNORED).sum())
        output.say(
            f"{source}: {count(len(rows.tokens), 'row')} of {rows.tokens.shape[1]} tokens, "
            f"{count(learned, 'token')} to learn."
        )
        if settings.packing and rows.documents is None:
            reason = why_together(settings, text.remove_cache(settings.model))
            output.say(f"{reason} Packed texts see each other; --no-packing gives each a row.")
        if rows.cut:
            output.say(
                f"{source}: {count(rows.cut, 'text')} longer than {rows.tokens.shape[1]} tokens "
                "lost the end; --max-length takes more, --packing cuts nothing off."
            )
        if not self.prompt:
            first = rows.tokens[0][rows.mask[0] > 0]
            self.prompt = self.tokenizer.decode(first[: max(1, min(8, len(first) // 2))])
        return Dataset(rows.arrays(self.inputs), where=source)

    def sample(self, trainer: Trainer, when: str, output: Output, data: Dataset) -> None:
        """Let the model write on, and say what."""
        del data
        if not self.settings.sample_tokens:
            return

        def scores(feeds: dict[str, Any]) -> Any:
            predicted = trainer.predict(feeds)
            return predicted[self.output] if isinstance(predicted, tuple) else predicted

        written = text.generate(
            scores, self.inputs, self.tokenizer, self.prompt, self.settings.sample_tokens
        )
        self.samples[when] = written
        output.say(f"{when}: {self.prompt!r} → {written!r}")

    def write(self, folder: Path) -> list[Path]:
        """The samples as a file, where there are any."""
        if not self.samples:
            return []
        file = folder / "samples.txt"
        lines = [f"prompt: {self.prompt!r}"]
        lines += [f"{when}: {written!r}" for when, written in self.samples.items()]
        write_text(file, "\n".join(lines) + "\n")
        return [file]
