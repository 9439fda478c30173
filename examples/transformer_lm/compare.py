"""Compare PyTorch with onnxtrain: time per batch, taking turns, or final perplexity over seeds."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence

import data
import loop
import torch
from model import TransformerModel
from torch import Tensor
from train import TorchTrainer
from train_ort import OrtTrainer

from onnxtrain.torch import ORTModule


def network(words: int, args: argparse.Namespace) -> TransformerModel:
    return TransformerModel(words, args.width, hidden=args.width, dropout=args.dropout)


def runs(name: str, trainer: loop.Trainer, batch: tuple[Tensor, Tensor]) -> bool:
    """Make the first step, which exports or compiles (and needs a C++ compiler for that)."""
    try:
        trainer.step(*batch, loop.RATE)
    except Exception as error:
        print(f"{name} cannot run here: {type(error).__name__}")
        return False
    return True


def times(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each batch, by what trains on it."""
    corpus = loop.start(args)
    words = len(corpus.words)
    model = network(words, args)
    trainers: dict[str, loop.Trainer] = {
        "PyTorch": TorchTrainer(copy.deepcopy(model), words),
        "PyTorch, compiled": TorchTrainer(torch.compile(copy.deepcopy(model)), words),
        "ORTModule": TorchTrainer(ORTModule(copy.deepcopy(model)), words),
        "ORTTrainer": OrtTrainer(model, words),
    }
    batches = data.batches(corpus.train, loop.BPTT)[: args.steps or 30]
    trainers = {n: t for n, t in trainers.items() if runs(n, t, batches[0])}
    found: dict[str, list[float]] = {name: [] for name in trainers}
    for batch in batches:
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.step(*batch, loop.RATE)
            found[name].append(1000 * (time.perf_counter() - start))
            time.sleep(0.02)  # let idle threads of one library stop before the other starts
    for name, some in found.items():
        print(f"{name:20s} median {statistics.median(some):8.1f} ms, best {min(some):8.1f} ms")
    return found


def perplexities(args: argparse.Namespace) -> dict[str, list[float]]:
    """Final perplexity for each seed; both start with the same weights and draw other masks."""
    found: dict[str, list[float]] = {}
    for seed in range(args.seed, args.seed + args.seeds):
        corpus = loop.start(argparse.Namespace(**{**vars(args), "seed": seed}))
        words = len(corpus.words)
        model = network(words, args)
        trainers: dict[str, loop.Trainer] = {
            "PyTorch": TorchTrainer(copy.deepcopy(model), words),
            "ORTTrainer": OrtTrainer(model, words),
        }
        for name, trainer in trainers.items():
            found.setdefault(name, []).append(loop.run(trainer, corpus, args).perplexities[-1])
    for name, some in found.items():
        every = ", ".join(f"{p:.2f}" for p in some)
        print(f"{name:20s} perplexity {every}; mean {statistics.fmean(some):.2f}")
    return found


def main(given: Sequence[str] | None = None) -> dict[str, list[float]]:
    parser = loop.options(__doc__)
    parser.add_argument("--seeds", type=int, help="train with this many, and compare perplexities")
    args = parser.parse_args(given)
    return perplexities(args) if args.seeds else times(args)


if __name__ == "__main__":
    main()
