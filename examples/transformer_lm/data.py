"""Text as batches: Wikitext-2 from a folder, or the documentation that comes with Python."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

WORD = re.compile(r"[a-z0-9<>]+(?:'[a-z]+)?|[^\sa-z0-9]")
UNKNOWN = "<unk>"


@dataclass
class Corpus:
    """Training and validation text as numbers, side by side in columns.

    Attributes:
        words: the vocabulary.
        train, valid: (rows, batch); each column is a piece of consecutive text.
    """

    words: list[str]
    train: Tensor
    valid: Tensor


def load(folder: str | None, batch: int = 20, vocabulary: int | None = None) -> Corpus:
    """Read and number a text.

    Args:
        folder: with ``valid.txt`` and ``train.txt`` (or ``wiki.train.tokens`` …). Where there is no
            training file, ``valid.txt`` is trained on and ``test.txt`` validates. None takes
            Python's own documentation.
        batch: number of columns.
        vocabulary: keep only this many of the most frequent words.
    """
    train, valid = _python_documentation() if folder is None else _wikitext(Path(folder))
    counts = Counter(train)
    words = [UNKNOWN, *(w for w, _ in counts.most_common(vocabulary) if w != UNKNOWN)]
    number = {w: i for i, w in enumerate(words)}
    return Corpus(words, _columns(train, number, batch), _columns(valid, number, batch))


def batches(text: Tensor, bptt: int = 35) -> list[tuple[Tensor, Tensor]]:
    """Inputs (bptt, batch) and, flat, the words that follow each; a rest too short is left out."""
    starts = range(0, text.shape[0] - bptt, bptt)
    return [
        (text[i : i + bptt].contiguous(), text[i + 1 : i + 1 + bptt].reshape(-1)) for i in starts
    ]


def _columns(text: list[str], number: dict[str, int], batch: int) -> Tensor:
    numbers = torch.tensor([number.get(w, 0) for w in text])
    rows = len(numbers) // batch
    return numbers[: rows * batch].view(batch, rows).t().contiguous()


def _split(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _python_documentation() -> tuple[list[str], list[str]]:
    """The topics of `help()`; every tenth is kept for validation."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    train = [t for i, t in enumerate(texts) if i % 10]
    return _split("\n".join(train)), _split("\n".join(texts[::10]))


def _wikitext(folder: Path) -> tuple[list[str], list[str]]:
    def find(part: str) -> Path | None:
        names = (f"{part}.txt", f"wiki.{part}.tokens")
        return next((folder / n for n in names if (folder / n).is_file()), None)

    found = [p for p in map(find, ("train", "valid", "test")) if p is not None]
    if len(found) < 2:
        raise SystemExit(
            f"{folder} needs two of train.txt, valid.txt and test.txt "
            "(or wiki.train.tokens, …); leave --data out for Python's own documentation."
        )
    train, valid = found[:2]
    return _split(train.read_text(encoding="utf-8")), _split(valid.read_text(encoding="utf-8"))
