"""Two kinds of text that need no download: articles of Wikipedia, and a ship's logbook."""

from __future__ import annotations

import random
from pathlib import Path

ARTICLES = Path(__file__).with_name("wikitext.txt")
"""An excerpt of WikiText-2; wikitext.LICENSE.md says who wrote it and what may be done with it."""


def wikitext() -> tuple[list[str], list[str]]:
    """Paragraphs of the articles; those of every tenth article are kept for validation."""
    articles: list[list[str]] = []
    for line in ARTICLES.read_text(encoding="utf-8").splitlines():
        if line.startswith("= ") and not line.startswith("= ="):
            articles.append([])
        elif not line.startswith("= ="):  # the heading of a section
            articles[-1].append(line)
    train = [text for i, article in enumerate(articles) if i % 10 for text in article]
    return train, [text for article in articles[::10] for text in article]


WINDS = ("north", "south-west", "east", "north-west", "south")
FORCES = ("light", "fresh", "strong", "falling", "steady")
SEAS = ("slight", "rough", "calm", "heavy")
EVENTS = (
    "Mended the foresail and dried the charts.",
    "Sighted a whale to starboard, heading home.",
    "The cook found the last of the coffee.",
    "Passed the lighthouse at the second bell.",
    "All hands on deck to reef the main.",
    "Took soundings and found sand at nine fathoms.",
    "The cat slept on the compass again.",
    "Exchanged letters with a schooner bound south.",
)
MOODS = ("All well on board.", "Spirits are high.", "The crew is tired.", "We hope for land.")


def logbook(entries: int = 400, seed: int = 0) -> list[str]:
    """Entries of a logbook: short sentences in a style that the articles do not have."""
    draw = random.Random(seed)
    return [
        f"Day {draw.randint(1, 99)}. Wind {draw.choice(WINDS)}, {draw.choice(FORCES)}. Sea "
        f"{draw.choice(SEAS)}. {draw.choice(EVENTS)} {draw.choice(MOODS)}"
        for _ in range(entries)
    ]
