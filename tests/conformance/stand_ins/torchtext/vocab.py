"""Numbers for words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def build_vocab_from_iterator(lines: Iterable[list[str]]) -> dict[str, int]:
    """Numbers from 1 on, the most frequent word first; a word that never came has number 0."""
    counts = Counter(word for line in lines for word in line)
    return _Vocabulary({word: i + 1 for i, (word, _) in enumerate(counts.most_common())})


class _Vocabulary(dict[str, int]):
    def __missing__(self, word: str) -> int:
        return 0
