"""``--task sentence-similarity``: an encoder learns from pairs or triples which texts are alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import onnx

from .. import losses, text
from .history import write_text
from .match import Dataset
from .output import Output, UserError, count, names_in, one_of
from .recipes import SIMILARITY_LOSSES

if TYPE_CHECKING:
    from ..runtime.loop.trainer import Trainer
    from ..text.encoder import Pooling
    from .settings import Settings

Array = npt.NDArray[Any]
POOLING = ("auto", "mean", "cls", "none")
AUTO = "auto"
"""The loss that follows from the data."""
SCORES, TARGET = "scores", "target"
"""Numbers of the rows: as the data have them, and as the loss takes them."""


def check_settings(settings: Settings) -> None:
    """What belongs together, before anything is read."""
    one_of(settings.pooling, POOLING, "--pooling")
    if settings.loss != AUTO:
        one_of(settings.loss, SIMILARITY_LOSSES, "--loss")
    if not settings.scale > 0:
        raise UserError(f"--scale is {settings.scale:g}; it must be a positive number.")
    if settings.teacher is not None:
        raise UserError("--teacher compares classes or tokens, and this task has vectors.")
    read_lengths(settings.matryoshka)


def read_lengths(written: str | None) -> list[int]:
    """What ``--matryoshka`` means: lengths with commas between them."""
    parts = names_in(written)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"--matryoshka {written!r} is lengths with commas between them, as 256,64.")
    return [int(part) for part in parts]


def similarity_loss(settings: Settings) -> losses.Loss:
    """The loss of a run."""
    scaled = {"multiple_negatives_ranking", "cosent"}
    options: dict[str, Any] = {"scale": settings.scale} if settings.loss in scaled else {}
    if settings.loss == "triplet":
        options = {"triplet_margin": settings.margin}
    loss = getattr(losses, SIMILARITY_LOSSES[settings.loss])(**options)
    lengths = read_lengths(settings.matryoshka)
    return losses.MatryoshkaLoss(loss, lengths) if lengths else cast("losses.Loss", loss)


@dataclass
class SimilarityTask:
    """An encoder, its tokenizer, and how well its vectors tell what is similar.

    Attributes:
        inputs: what the encoder takes for one text.
        texts: how many a row has.
        model: the encoder for so many.
        measured: before and after training, by name of the measure.
    """

    settings: Settings
    inputs: text.LanguageInputs
    tokenizer: text.Tokenizer
    texts: int
    model: onnx.ModelProto
    measured: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> SimilarityTask:
        """Read the tokenizer and one look at the data: how many texts a row has, and scores."""
        tokenizer = text.load_tokenizer(settings.tokenizer)
        inputs = text.LanguageInputs.of(settings.model)
        text.check_vocabulary(
            tokenizer, text.embedding_rows(settings.model, inputs), settings.model
        )
        texts, scores = _read(settings, settings.data)
        number = len(texts[0])
        _choose_loss(settings, number, scores)
        pooling = cast("Pooling", settings.pooling)
        model = text.sentence_encoder(settings.model, texts=number, pooling=pooling)
        return cls(settings, inputs, tokenizer, number, model)

    @property
    def prompt(self) -> str:
        """What the measures are of, for the report."""
        return "similarity"

    @property
    def samples(self) -> dict[str, str]:
        """The measures, for the report."""
        return {when: _shown(values) for when, values in self.measured.items()}

    def read(self, source: str, output: Output) -> Dataset:
        """Rows of texts as rows of tokens; says how many."""
        texts, scores = _read(self.settings, source)
        if len(texts[0]) != self.texts:
            raise UserError(
                f"{source} has {len(texts[0])} texts per row, and {self.settings.data} "
                f"{self.texts}: both need the same columns. --features names them."
            )
        flat = [one for row in texts for one in row]
        arrays = text.encoded(flat, self.tokenizer, self.inputs, self.settings.max_length)
        shape = len(texts), self.texts, -1
        shaped: dict[str, Array] = {k: v.reshape(shape) for k, v in arrays.items()}
        if scores is not None:
            shaped[SCORES] = np.array(scores, np.float32)
            if self.settings.loss in WITH_SCORES:
                shaped[TARGET] = shaped[SCORES]
        elif self.settings.loss in WITH_SCORES:
            raise UserError(_no_scores(source, self.settings.loss))
        output.say(
            f"{source}: {count(len(texts), 'row')} of {self.texts} texts"
            f"{' with a score' if scores is not None else ''}; the loss is {self.settings.loss}."
        )
        return Dataset(shaped, where=source)

    def sample(self, trainer: Trainer, when: str, output: Output, data: Dataset) -> None:
        """Measure how well the vectors tell what is similar, and say it."""
        inputs = {n: a for n, a in data.arrays.items() if n not in {SCORES, TARGET}}
        vectors = trainer.predict(inputs, self.settings.batch_size)
        tokens = inputs[self.inputs.tokens]
        self.measured[when] = measures(vectors, data.arrays.get(SCORES), tokens[:, 1])
        output.say(f"{when}: {_shown(self.measured[when])} on {data.where}")

    def write(self, folder: Path) -> list[Path]:
        """The measures, and the encoder of single texts."""
        file, encoder = folder / "similarity.json", folder / "sentence_encoder.onnx"
        write_text(file, json.dumps(self.measured, indent=2) + "\n")
        pooling = cast("Pooling", self.settings.pooling)
        text.sentence_encoder(folder / "model.onnx", pooling=pooling, output=encoder)
        return [file, encoder]


WITH_SCORES = frozenset({"cosent", "cosine_similarity"})


def _read(settings: Settings, source: str) -> tuple[list[list[str]], list[float] | None]:
    names = names_in(settings.features)
    return text.read_pairs(source, names or None, settings.target)


def _choose_loss(settings: Settings, texts: int, scores: Sequence[float] | None) -> None:
    """The loss that fits the rows, or an error if the one that was asked for does not."""
    if settings.loss == AUTO:
        with_scores = scores is not None and texts == 2
        settings.loss = "cosent" if with_scores else "multiple_negatives_ranking"
    if settings.loss in WITH_SCORES and scores is None:
        raise UserError(_no_scores(settings.data, settings.loss))
    if settings.loss in WITH_SCORES and texts != 2:
        raise UserError(f"--loss {settings.loss} takes two texts per row, and there are {texts}.")
    if settings.loss == "triplet" and texts != 3:
        raise UserError(
            f"--loss triplet takes three texts per row (anchor, positive, negative), and "
            f"{settings.data} has {texts}. Name them with --features, or use "
            "multiple_negatives_ranking."
        )
    if settings.loss == "cosine_similarity" and max(map(abs, scores or [0.0])) > 1:
        raise UserError(
            f"{settings.data} has scores up to {max(scores or [0.0]):g}, and cosines go from -1 to "
            "1: divide them, or use --loss cosent, for which only their order counts."
        )


def _no_scores(source: str, loss: str) -> str:
    return (
        f"--loss {loss} takes a number per row, and {source} has none: name its column with "
        "--target, or use multiple_negatives_ranking."
    )


def measures(
    vectors: Sequence[Array], scores: Array | None, positives: Array | None = None
) -> dict[str, float]:
    """How well vectors of the texts of rows tell what is similar.

    With scores the rank correlation of cosines with them. Without, how often an anchor is nearer to
    its own positive than to that of any other row (and, in triples, than to its negative). A
    vector that all texts share is nearer to none: an encoder that gives it has learned nothing.

    Args:
        vectors: of the anchors, the positives and so on, a row each.
        scores: of the rows, where there are some.
        positives: the tokens of the positives: a text that several rows have is their own for all.
    """
    if scores is not None:
        cosines = text.cosine_similarities(vectors[0], vectors[1])
        return {"spearman": text.spearman(cosines, scores)}
    texts = np.arange(len(vectors[0]))
    if positives is not None:
        texts = np.unique(positives, axis=0, return_inverse=True)[1].reshape(-1)
    anchors, others = (_unit(v) for v in vectors[:2])
    known = {"accuracy_at_1": float(_nearest(anchors, others, texts).mean())}
    if len(vectors) > 2:
        near, far = (text.cosine_similarities(vectors[0], v) for v in vectors[1:3])
        known["triplet_accuracy"] = float((near > far).mean())
    return known


def _nearest(anchors: Array, positives: Array, texts: Array, rows: int = 1024) -> Array:
    """Whether an anchor is nearer to its own positive than to every other text."""
    right = []
    for start in range(0, len(anchors), rows):
        cosines = anchors[start : start + rows] @ positives.T
        places = np.arange(start, start + len(cosines))
        own = cosines[np.arange(len(cosines)), places]
        cosines[texts[places][:, None] == texts] = -np.inf
        right.append(own > cosines.max(axis=1) + 1e-6)
    return np.concatenate(right)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _shown(values: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in values.items())
