"""Two kinds of text that need no download: Python's own documentation, and a ship's logbook."""

from __future__ import annotations

import random


def documentation() -> tuple[list[str], list[str]]:
    """The topics behind Python's ``help()``; every tenth is kept for validation."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    return [t for i, t in enumerate(texts) if i % 10], texts[::10]


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
    """Entries of a logbook: short sentences in a style that the documentation does not have."""
    draw = random.Random(seed)
    return [
        f"Day {draw.randint(1, 99)}. Wind {draw.choice(WINDS)}, {draw.choice(FORCES)}. Sea "
        f"{draw.choice(SEAS)}. {draw.choice(EVENTS)} {draw.choice(MOODS)}"
        for _ in range(entries)
    ]
