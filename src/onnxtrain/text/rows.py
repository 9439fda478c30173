"""Rows of tokens for a causal language model: packed one after the other, or filled up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import TextError
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
    """

    tokens: Array
    labels: Array
    mask: Array
    cut: int = 0

    def arrays(self, inputs: LanguageInputs, target: str = "labels") -> dict[str, Array]:
        """What `Trainer.fit` takes: arrays by name of the model's inputs, and the labels."""
        return {**inputs.feeds(self.tokens, self.mask), target: self.labels}


def causal_lm_rows(
    source: Any,
    tokenizer: Any,
    max_length: int = 256,
    *,
    packing: bool = True,
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


def _filled(rows: Sequence[Encoded], length: int, side: Side, pad: int, cut: int) -> Rows:
    shape = (len(rows), length)
    tokens, mask = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    for row, (ids, row_labels) in enumerate(rows):
        place = slice(0, len(ids)) if side == "right" else slice(length - len(ids), length)
        tokens[row, place], labels[row, place], mask[row, place] = ids, row_labels, 1
    learned = (labels[:, 1:] != IGNORED).any(axis=1)
    if not learned.any():
        raise TextError(
            "No row has a token to learn: the texts are empty, or prompts fill the rows. Give "
            "longer rows (max_length, --max-length)."
        )
    return Rows(tokens[learned], labels[learned], mask[learned], cut)


def check_vocabulary(tokenizer: Tokenizer, vocabulary: int | None, model: str) -> None:
    """Refuse a tokenizer that has numbers which the model does not know.

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
