"""What the random operators of a training model draw from.

A model made by this release draws from an input: seed and number of the training pass, which the
checkpoint carries. So a resumed run continues with the very masks it would have had.

In models of earlier releases, and of onnxruntime-training, the kernels draw. A Dropout with a
`seed` replays its stream in every new session, one without is not reproducible at all. There the
seed is written when a session is made, from the checkpoint's seed and a generation that counts
sessions: a resumed run continues with new masks, and the same checkpoint continues alike every
time.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection

import numpy as np

from ...operators import RANDOM
from ..files.onnxfile import ModelFile
from .training_state import RandomState, TrainingState

_FLOAT_SEEDS = RANDOM - {"Dropout"}


class Draws:
    """Seed and counter of a state, where a session reads them.

    Args:
        state: whose they are; several models may draw from one state, one after the other.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._passes = 0
        self.words = np.zeros(2, np.int64)

    def set(self) -> None:
        """Before a pass: let the session read what is due."""
        random = self._state.random
        self.words[0], self.words[1] = key_of(random), random.counter

    def count(self) -> None:
        """After a pass: the next one draws anew."""
        self._state.random.counter += 1
        self._passes += 1

    def accept(self) -> None:
        """Let the passes so far count, whatever becomes of those to come."""
        self._passes = 0

    def take_back(self) -> None:
        """Passes that were dropped have drawn nothing: the next one draws what the first drew."""
        self._state.random.counter -= self._passes
        self._passes = 0


def key_of(random: RandomState) -> int:
    """The seed as a signed number of 64 bits; another one for each rank."""
    seed = random.seed
    if random.rank:
        digest = hashlib.sha256(f"{seed}/rank {random.rank}".encode()).digest()
        seed = int.from_bytes(digest[:8], "little")
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def seed_of(random: RandomState, name: str) -> int:
    """A number below 2**24 (a float attribute holds it exactly), well spread."""
    seed = zlib.crc32(f"{random.seed}/{random.rank}".encode()) if random.rank else random.seed
    text = f"{seed}/{random.generation}/{name}".encode()
    # SHA-256, because browsers have it: JavaScript derives the same seeds
    return int.from_bytes(hashlib.sha256(text).digest(), "little") % (1 << 24)


def reseed(model: ModelFile, names: Collection[str], random: RandomState) -> int:
    """Start a new generation and write the seeds of the named nodes; gives how many."""
    chosen = set(names)
    if not chosen:
        return 0
    random.generation += 1
    changed = 0
    for node in model.all_nodes():
        if node.name in chosen:
            seed = seed_of(random, node.name)
            node.set_attribute("seed", float(seed) if node.op_type in _FLOAT_SEEDS else seed)
            changed += 1
    return changed
