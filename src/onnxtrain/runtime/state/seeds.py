"""Seeds of the random operators in a training graph.

A Dropout with a `seed` replays its stream in every new session, one without is not reproducible at
all. So the seed is written when a session is made, from the checkpoint's seed and a
generation that counts sessions: a resumed run continues with new masks, and the same checkpoint
continues alike every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from ..files.onnxfile import ModelFile
from .checkpoint_state import RandomState

_FLOAT_SEEDS = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}


def seed_of(random: RandomState, name: str) -> int:
    """A number below 2**24 (a float attribute holds it exactly), well spread."""
    text = f"{random.seed}/{random.generation}/{name}".encode()
    # SHA-256, because browsers have it: JavaScript derives the same seeds
    return int.from_bytes(hashlib.sha256(text).digest(), "little") % (1 << 24)


def reseed(model: ModelFile, names: Collection[str], random: RandomState) -> int:
    """Start a new generation and write the seeds of the named nodes; gives how many."""
    random.generation += 1
    wanted = set(names)
    changed = 0
    if not wanted:
        return changed
    for node in model.all_nodes():
        if node.name in wanted:
            seed = seed_of(random, node.name)
            node.set_attribute("seed", float(seed) if node.op_type in _FLOAT_SEEDS else seed)
            changed += 1
    return changed
