"""Time a step of plain PyTorch, of compiled PyTorch and of ORTTrainer, taking turns."""

from __future__ import annotations

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


def runs(name: str, trainer: loop.Trainer, batch: tuple[Tensor, Tensor]) -> bool:
    """Make the first step, which exports or compiles (and needs a C++ compiler for that)."""
    try:
        trainer.step(*batch, loop.RATE)
    except Exception as error:
        print(f"{name} cannot run here: {type(error).__name__}")
        return False
    return True


def main(given: Sequence[str] | None = None) -> dict[str, list[float]]:
    args = loop.arguments(__doc__, given)
    corpus = loop.start(args)
    words = len(corpus.words)
    model = TransformerModel(words, args.width, hidden=args.width, dropout=args.dropout)
    trainers: dict[str, loop.Trainer] = {
        "PyTorch": TorchTrainer(copy.deepcopy(model), words),
        "PyTorch, compiled": TorchTrainer(torch.compile(copy.deepcopy(model)), words),
        "ORTTrainer": OrtTrainer(model, words),
    }
    batches = data.batches(corpus.train, loop.BPTT)[: args.steps or 30]
    trainers = {n: t for n, t in trainers.items() if runs(n, t, batches[0])}
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for batch in batches:
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.step(*batch, loop.RATE)
            times[name].append(1000 * (time.perf_counter() - start))
            time.sleep(0.02)  # let idle threads of one library stop before the other starts
    for name, found in times.items():
        print(f"{name:20s} median {statistics.median(found):8.1f} ms, best {min(found):8.1f} ms")
    return times


if __name__ == "__main__":
    main()
