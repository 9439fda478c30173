"""Write on: one token after the other from a model's scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import TextError
from .inputs import LanguageInputs
from .tokenizer import Tokenizer

Array = npt.NDArray[Any]
Scores = Callable[[dict[str, Array]], Array]
"""From a model's inputs to scores [1, length, vocabulary]."""


def generate(
    scores: Scores,
    inputs: LanguageInputs,
    tokenizer: Tokenizer,
    prompt: str,
    max_new_tokens: int = 40,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> str:
    """The continuation of a prompt.

    The whole text is scored again for each token, which needs no cache: meant for a look at a model
    in training, and not for serving it.

    Args:
        scores: runs the model, ``trainer.predict`` say.
        inputs: what the model takes.
        tokenizer: its tokenizer.
        prompt: the text to go on with.
        max_new_tokens: ends there, or at the tokenizer's end of text.
        temperature: 0 takes the likeliest token each time; 1 draws as the model says.
        top_k: draw among this many of the likeliest tokens; 0 for all.
        top_p: draw among the likeliest tokens that have this share together.
        seed: of the draws.
    """
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise TextError("temperature and top_k are at least 0, and top_p lies in (0, 1].")
    rng = np.random.default_rng(seed)
    tokens = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    tokens += tokenizer.encode([prompt])[0]
    tokens = tokens or [tokenizer.pad_id if tokenizer.eos_id is None else tokenizer.eos_id]
    start, last = len(tokens), inputs.length
    for _ in range(max_new_tokens):
        if last is not None and len(tokens) >= last:
            break
        row = np.full((1, last or len(tokens)), tokenizer.pad_id, np.int64)
        row[0, : len(tokens)] = tokens
        mask = (np.arange(row.shape[1]) < len(tokens)).astype(np.int64)[None]
        after = np.asarray(scores(inputs.feeds(row, mask)))[0, len(tokens) - 1]
        token = _choose(after.astype(np.float64), temperature, top_k, top_p, rng)
        if token == tokenizer.eos_id or token >= tokenizer.size:
            break
        tokens.append(token)
    return tokenizer.decode(tokens[start:])


def _choose(
    scores: Array, temperature: float, top_k: int, top_p: float, rng: np.random.Generator
) -> int:
    if not temperature:
        return int(scores.argmax())
    order = np.argsort(-scores, kind="stable")
    if top_k:
        order = order[:top_k]
    shares = np.exp((scores[order] - scores[order[0]]) / temperature)
    shares /= shares.sum()
    # the first token always counts, and each whose predecessors have less than top_p together
    within = np.cumsum(shares) - shares < top_p
    shares = shares * within
    return int(rng.choice(order, p=shares / shares.sum()))
