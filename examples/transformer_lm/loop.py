"""Arguments and training loop, the same for both scripts."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import data
import torch
from torch import Tensor

BPTT, BATCH, RATE, DECAY, CLIP = 35, 20, 5.0, 0.95, 0.5


class Trainer(Protocol):
    """What a script brings."""

    def step(self, source: Tensor, target: Tensor, rate: float) -> float:
        """Train on a batch; gives its loss."""

    def evaluate(self, source: Tensor, target: Tensor) -> float:
        """The loss of a batch, nothing dropped out."""


@dataclass
class History:
    """Losses by step, perplexities by epoch, milliseconds by step."""

    losses: list[float] = field(default_factory=list)
    perplexities: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def options(description: str | None) -> argparse.ArgumentParser:
    """What all scripts understand."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="folder with Wikitext-2; by default Python's documentation")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop each epoch after this many batches")
    parser.add_argument("--vocabulary", type=int, help="keep only the most frequent words")
    parser.add_argument("--width", type=int, default=200, help="of embedding and hidden layers")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=RATE, help="learning rate to start with")
    parser.add_argument("--decay", type=float, default=DECAY, help="of the rate, by epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=50)
    return parser


def arguments(description: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    return options(description).parse_args(given)


def run(trainer: Trainer, corpus: data.Corpus, args: argparse.Namespace) -> History:
    """Train for some epochs with a learning rate that decays after each."""
    history, rate = History(), args.rate
    train = data.batches(corpus.train, BPTT)[: args.steps]
    valid = data.batches(corpus.valid, BPTT)[: args.steps]
    for epoch in range(1, args.epochs + 1):
        for i, (source, target) in enumerate(train, start=1):
            start = time.perf_counter()
            history.losses.append(trainer.step(source, target, rate))
            history.times.append(1000 * (time.perf_counter() - start))
            if i % args.log_every == 0:
                _report(history, epoch, i, len(train), rate, args.log_every)
        loss = statistics.fmean(trainer.evaluate(*batch) for batch in valid)
        history.perplexities.append(math.exp(loss))
        print(
            f"end of epoch {epoch}: valid loss {loss:.3f}, perplexity {math.exp(loss):.1f}, "
            f"{statistics.median(history.times):.1f} ms per batch"
        )
        rate *= args.decay
    return history


def _report(history: History, epoch: int, step: int, steps: int, rate: float, count: int) -> None:
    loss, ms = (statistics.fmean(x[-count:]) for x in (history.losses, history.times))
    print(
        f"epoch {epoch}, {step}/{steps} batches, lr {rate:.2f}, {ms:.1f} ms per batch, "
        f"loss {loss:.3f}, perplexity {math.exp(min(loss, 20)):.1f}"
    )


def start(args: argparse.Namespace) -> data.Corpus:
    """Set the seed and read the text."""
    torch.manual_seed(args.seed)
    corpus = data.load(args.data, BATCH, args.vocabulary)
    print(f"{len(corpus.words)} words, {corpus.train.numel()} in the training text")
    return corpus
