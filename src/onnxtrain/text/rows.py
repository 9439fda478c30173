"""Rows of tokens for a causal language model: packed one after the other, or filled up."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import OnnxTrainWarning, TextError, outside_level
from .documents import Document, read_documents
from .inputs import LanguageInputs
from .tokenizer import Tokenizer, load_tokenizer

Array = npt.NDArray[Any]
Side = Literal["right", "left"]
IGNORED = -100
"""The label that does not count, as in `losses.CausalLMLoss`."""


@dataclass(frozen=True)
class Rows:
    """Tokens as a data set.

    Attributes:
        tokens: [rows, length].
        labels: the same, and `IGNORED` where nothing is to be learned.
        mask: 1 where a token is, 0 where the row is filled up.
        cut: texts that were longer than a row and lost their end.
        documents: the number of the text in its row that each token belongs to, −1 where the row is
            filled up; None if texts of a row are not kept apart.
    """

    tokens: Array
    labels: Array
    mask: Array
    cut: int = 0
    documents: Array | None = None

    def arrays(self, inputs: LanguageInputs, target: str = "labels") -> dict[str, Array]:
        """What `Trainer.fit` takes: arrays by name of the model's inputs, and the labels."""
        return {**inputs.feeds(self.tokens, self.mask, self.documents), target: self.labels}


def causal_lm_rows(
    source: Any,
    tokenizer: Any,
    max_length: int = 256,
    *,
    packing: bool = True,
    separate: bool = False,
    padding_side: Side = "right",
    fixed_length: bool = False,
    column: str = "text",
) -> Rows:
    """Rows to train a causal language model with.

    Args:
        source: texts, see `read_documents`.
        tokenizer: see `load_tokenizer`.
        max_length: tokens per row.
        packing: write all texts one after the other, each ended by the tokenizer's end of text, and
            cut that into rows; nothing is lost, and only the last row is filled up. Otherwise each
            text is a row of its own; one that is longer loses its end.
        separate: with packing, let no text see another: a row has whole texts as far as they fit,
            each with its number in `Rows.documents`, for a model of `separate_documents`. Texts
            longer than a row become several.
        padding_side: where rows are filled up.
        fixed_length: rows have `max_length` tokens even if all texts are shorter.
        column: the column that holds the text.
    """
    if max_length < 2:
        raise TextError(f"max_length is {max_length}; a row needs at least 2 tokens.")
    if padding_side not in {"right", "left"}:
        raise TextError(f"padding_side is 'right' or 'left', not {padding_side!r}.")
    tokenizer = load_tokenizer(tokenizer)
    documents = read_documents(source, column, by_line=not packing)
    encoded = list(_encoded(documents, tokenizer))
    if packing and separate:
        return _apart(encoded, max_length, padding_side, tokenizer.pad_id, fixed_length)
    if packing:
        rows, cut = _packed(encoded, max_length), 0
    else:
        rows = [(ids[:max_length], labels[:max_length]) for ids, labels in encoded]
        cut = sum(len(ids) > max_length for ids, _ in encoded)
    longest = max(len(ids) for ids, _ in rows)
    length = max_length if fixed_length else longest
    return _filled(rows, length, padding_side, tokenizer.pad_id, cut)


Encoded = tuple[list[int], list[int]]
"""Tokens and labels of a text."""


def _encoded(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterable[Encoded]:
    """Tokens with the end of the text, and labels that leave its prompt out."""
    texts = tokenizer.encode([d.text for d in documents])
    prompts = tokenizer.encode([d.prompt for d in documents])
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    begin = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    for text, prompt in zip(texts, prompts):
        before = [*begin, *prompt]
        yield [*before, *text, *end], [*([IGNORED] * len(before)), *text, *end]


def _packed(encoded: Iterable[Encoded], length: int) -> list[Encoded]:
    tokens = [t for ids, _ in encoded for t in ids]
    labels = [t for _, labels in encoded for t in labels]
    starts = range(0, len(tokens), length)
    return [(tokens[i : i + length], labels[i : i + length]) for i in starts]


def _apart(
    encoded: Iterable[Encoded], length: int, side: Side, pad: int, fixed_length: bool
) -> Rows:
    """Rows of whole texts, each text with a number."""
    chunks = [
        (ids[i : i + length], labels[i : i + length])
        for ids, labels in encoded
        for i in range(0, len(ids), length)
    ]
    groups = _fitted([len(ids) for ids, _ in chunks], length)
    rows = [_joined([chunks[i] for i in group]) for group in groups]
    longest = length if fixed_length else max(len(ids) for ids, _ in rows)
    texts = [[len(chunks[i][0]) for i in group] for group in groups]
    return _filled(rows, longest, side, pad, 0, texts)


def _fitted(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which texts share a row: the longest first, each where it leaves the least room.

    Rows are in the order of their first texts, and so are the texts of a row.
    """
    rooms: list[tuple[int, int]] = []  # room that is left, and the row that has it
    groups: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = bisect.bisect_left(rooms, (sizes[index], -1))
        if place == len(rooms):
            groups.append([index])
            room, row = length, len(groups) - 1
        else:
            room, row = rooms.pop(place)
            groups[row].append(index)
        if room > sizes[index]:
            bisect.insort(rooms, (room - sizes[index], row))
    return sorted(sorted(group) for group in groups)


def _joined(chunks: Sequence[Encoded]) -> Encoded:
    """Texts one after the other; the first token of each is predicted from nothing."""
    tokens = [t for ids, _ in chunks for t in ids]
    labels = [t for _, own in chunks for t in (IGNORED, *own[1:])]
    return tokens, labels


def _filled(
    rows: Sequence[Encoded],
    length: int,
    side: Side,
    pad: int,
    cut: int,
    texts: Sequence[Sequence[int]] | None = None,
) -> Rows:
    """Arrays of rows; `texts` are the lengths of the texts of each row, to be told apart."""
    shape = (len(rows), length)
    tokens, mask = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
    labels, documents = np.full(shape, IGNORED, np.int64), np.full(shape, -1, np.int64)
    for row, (ids, row_labels) in enumerate(rows):
        place = slice(0, len(ids)) if side == "right" else slice(length - len(ids), length)
        tokens[row, place], labels[row, place], mask[row, place] = ids, row_labels, 1
        if texts is not None:
            documents[row, place] = np.repeat(np.arange(len(texts[row])), texts[row])
    learned = (labels[:, 1:] != IGNORED).any(axis=1)
    if not learned.any():
        raise TextError(
            "No row has a token to learn: the texts are empty, or prompts fill the rows. Give "
            "longer rows (max_length, --max-length)."
        )
    numbers = None if texts is None else documents[learned]
    return Rows(tokens[learned], labels[learned], mask[learned], cut, numbers)


def check_vocabulary(tokenizer: Tokenizer, vocabulary: int | None, model: str) -> None:
    """Refuse a tokenizer that has numbers which the model does not know.

    One that has less than half of them is warned of: it is likely another model's.

    Args:
        tokenizer: the tokenizer.
        vocabulary: how many tokens the model scores; None if it is not known.
        model: what to call it.
    """
    if vocabulary is not None and tokenizer.size > vocabulary:
        raise TextError(
            f"{tokenizer.where} has {tokenizer.size} tokens, and {model} knows {vocabulary}: they "
            "do not belong together. Use the tokenizer that came with the model."
        )
    if vocabulary is not None and 2 * tokenizer.size < vocabulary:
        warnings.warn(
            f"{tokenizer.where} has {tokenizer.size} tokens, and {model} knows {vocabulary}: a few "
            "more than it uses are usual, twice as many are not. Is it the tokenizer that came "
            "with the model?",
            OnnxTrainWarning,
            stacklevel=outside_level(),
        )
