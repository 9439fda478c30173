"""A corpus that every Python has: which package of the standard library is a docstring from?"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "xml")
PAD, START, UNKNOWN, MASK = range(4)
SPECIAL = ("<pad>", "<start>", "<unknown>", "<mask>")


@dataclass
class Corpus:
    """Sentences as rows of word numbers, padded, and the number of the package of each."""

    words: list[str]
    packages: tuple[str, ...]
    train: tuple[torch.Tensor, torch.Tensor]
    valid: tuple[torch.Tensor, torch.Tensor]


def load(length: int = 32, vocabulary: int = 2000, seed: int = 0) -> Corpus:
    """Read the docstrings, without importing anything, and split off a tenth for validation."""
    texts = [(s, i) for i, name in enumerate(PACKAGES) for s in sentences(name)]
    counts = Counter(word for words, _ in texts for word in words)
    words = [*SPECIAL, *(w for w, _ in counts.most_common(vocabulary - len(SPECIAL)))]
    number = {word: i for i, word in enumerate(words)}
    rows = torch.full((len(texts), length), PAD)
    for row, (text, _) in zip(rows, texts):
        ids = [START, *(number.get(w, UNKNOWN) for w in text)][:length]
        row[: len(ids)] = torch.tensor(ids)
    labels = torch.tensor([label for _, label in texts])
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    held_out, rest = order[: len(order) // 10], order[len(order) // 10 :]
    return Corpus(words, PACKAGES, (rows[rest], labels[rest]), (rows[held_out], labels[held_out]))


def sentences(package: str) -> list[list[str]]:
    """The paragraphs of all docstrings of a package as words, its own name left out."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / package
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            for paragraph in (text or "").split("\n\n"):
                words = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", paragraph.lower())
                words = [w for w in words if w != package]
                if len(words) >= 4:
                    found.append(words)
    return found


def batches(
    data: tuple[torch.Tensor, torch.Tensor], size: int, generator: torch.Generator | None = None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches in random order (as it is without a generator), cut to their longest sentence."""
    rows, labels = data
    order = torch.arange(len(rows))
    if generator is not None:
        order = torch.randperm(len(rows), generator=generator)
    found = []
    for start in range(0, len(rows), size):
        chosen = order[start : start + size]
        longest = int((rows[chosen] != PAD).sum(1).max())
        found.append((rows[chosen, :longest].contiguous(), labels[chosen]))
    return found


def hide(
    tokens: torch.Tensor, vocabulary: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask words as BERT does; the second result has the hidden words, and -100 elsewhere."""
    chance = torch.rand(tokens.shape, generator=generator)
    chosen = (chance < 0.15) & (tokens > START)
    targets = tokens.masked_fill(~chosen, -100)
    other = torch.randint(len(SPECIAL), vocabulary, tokens.shape, generator=generator)
    hidden = torch.where(chosen & (chance < 0.12), MASK, tokens)
    return torch.where(chosen & (chance >= 0.135), other, hidden), targets
