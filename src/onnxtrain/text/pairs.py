"""Rows of two or more texts for sentence encoders, and how well vectors tell what is similar."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import TextError
from .documents import read_rows
from .inputs import LanguageInputs
from .tokenizer import Tokenizer, load_tokenizer

Array = npt.NDArray[Any]
USUAL = (
    ("anchor", "positive", "negative"), ("anchor", "positive"), ("sentence1", "sentence2"),
    ("query", "answer"), ("text1", "text2"),
)  # fmt: skip
SCORES = ("score", "label", "similarity")


def similarity_rows(
    source: Any,
    tokenizer: Any,
    inputs: LanguageInputs,
    columns: Sequence[str] | None = None,
    score: str | None = None,
    *,
    max_length: int = 128,
    target: str = "target",
) -> dict[str, Array]:
    """Arrays to train a sentence encoder with: inputs [rows, texts, length], scores [rows].

    Args:
        source: a .csv, .jsonl or .parquet file, or rows that are dicts or tuples of texts.
        tokenizer: see `load_tokenizer`.
        inputs: what the encoder takes, of the model before it reads several texts.
        columns: names of the texts in the order in which the loss takes them; by default anchor,
            positive and negative, or sentence1 and sentence2, or what else is usual.
        score: column of a number per row; by default score, label or similarity, if there is one.
        max_length: longer texts lose their end.
        target: name that the scores get.
    """
    texts, scores = read_pairs(source, columns, score)
    arrays = encoded([t for row in texts for t in row], tokenizer, inputs, max_length)
    shape = len(texts), len(texts[0]), -1
    shaped: dict[str, Array] = {k: v.reshape(shape) for k, v in arrays.items()}
    return shaped if scores is None else {**shaped, target: np.array(scores, np.float32)}


def encoded(
    texts: Sequence[str], tokenizer: Any, inputs: LanguageInputs, max_length: int = 128
) -> dict[str, Array]:
    """Arrays by name of an encoder's inputs, one row per text, with its special tokens."""
    tokenizer = load_tokenizer(tokenizer)
    rows = [ids[:max_length] for ids in tokenizer.encode(texts, special=True)]
    length = inputs.length or max((len(r) for r in rows), default=0)
    if not length:
        raise TextError("There is no text to encode.")
    tokens = np.full((len(rows), length), tokenizer.pad_id, np.int64)
    mask = np.zeros_like(tokens)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids[:length], 1
    return inputs.feeds(tokens, mask)


def embed(
    vectors: Callable[[dict[str, Array]], Array],
    inputs: LanguageInputs,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_length: int = 128,
    batch_size: int = 32,
) -> Array:
    """One vector per text.

    Args:
        vectors: runs an encoder of single texts: from its inputs to [rows, size].
        inputs: what it takes.
        tokenizer: its tokenizer.
        texts: what to encode.
        max_length: longer texts lose their end.
        batch_size: texts per run.
    """
    starts = range(0, len(texts), batch_size)
    parts = [
        vectors(encoded(texts[i : i + batch_size], tokenizer, inputs, max_length)) for i in starts
    ]
    return np.concatenate([np.asarray(p) for p in parts])


def cosine_similarities(a: Array, b: Array) -> Array:
    """cos(aᵢ, bᵢ) for each row."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / np.maximum(lengths, 1e-12))


def spearman(a: Array, b: Array) -> float:
    """The rank correlation of two lists of numbers; equal ones share the mean of their ranks.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 90.0]))
        1.0
    """
    ranks = [_ranks(np.asarray(v)) for v in (a, b)]
    spread = [r - r.mean() for r in ranks]
    both = np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum())
    return float((spread[0] * spread[1]).sum() / both) if both else float("nan")


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place.reshape(-1)])


def read_pairs(
    source: Any, columns: Sequence[str] | None = None, score: str | None = None
) -> tuple[list[list[str]], list[float] | None]:
    """The texts of each row, two or more, and a number for each row where there is one.

    The arguments are those of `similarity_rows`.
    """
    rows = list(_rows(source))
    if not rows:
        raise TextError("There are no rows.")
    first, place = rows[0]
    if isinstance(first, (tuple, list)):
        names: Sequence[Any] = list(range(len(first)))
        last = first[-1] if first else None
        is_number = isinstance(last, (int, float)) and not isinstance(last, bool)
        names, number = (names[:-1], names[-1]) if is_number else (names, None)
    elif isinstance(first, Mapping):
        names = columns or next((u for u in USUAL if all(n in first for n in u)), ())
        number = score or next((n for n in SCORES if n in first), None)
    else:
        raise TextError(f"{place} is {type(first).__name__}, and rows are dicts or tuples.")
    if len(names) < 2:
        known = ", ".join(map(repr, first)) if isinstance(first, Mapping) else len(first)
        raise TextError(
            f"{place} has {known}: name two or more columns of text (columns=), or call them "
            "anchor and positive, or sentence1 and sentence2."
        )
    texts = [[_cell(row, n, where, str) for n in names] for row, where in rows]
    if number is None:
        return texts, None
    return texts, [_score(row, number, where) for row, where in rows]


def _rows(source: Any) -> Iterable[tuple[Any, str]]:
    if isinstance(source, (str, os.PathLike)):
        return ((row, f"{os.fspath(source)}, {place}") for row, place in read_rows(source))
    if not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping)):
        raise TextError(f"Rows of type {type(source).__name__} are not understood.")
    return ((row, f"Row {i}") for i, row in enumerate(source))


def _score(row: Any, name: Any, where: str) -> float:
    """A number; files of text have it as text."""
    value = _cell(row, name, where, (int, float, str))
    try:
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, float) else f"{type(value).__name__} {value!r:.40}"
        raise TextError(f"{where}: {name!r} is {shown}, and it must be a number.")
    return number


def _cell(row: Any, name: Any, where: str, kind: Any) -> Any:
    try:
        value = row[name]
    except (KeyError, IndexError, TypeError):
        known = (
            f"; it has {', '.join(map(repr, list(row)[:12]))}" if isinstance(row, Mapping) else ""
        )
        raise TextError(f"{where} has no {name!r}{known}.") from None
    if not isinstance(value, kind) or isinstance(value, bool):
        needed = "text" if kind is str else "a number"
        raise TextError(f"{where}: {name!r} is {type(value).__name__}, and it must be {needed}.")
    return value
