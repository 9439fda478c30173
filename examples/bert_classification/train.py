"""Fine-tune a small BERT-like encoder with ORTModule and torch.optim.AdamW, and export it.

The only line that differs from plain PyTorch is the one with ORTModule.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnxruntime
import torch
from data import Corpus, batches, hide, load
from model import Classifier, Encoder, MaskedWords
from torch import nn
from torch.nn import functional

from onnxtrain.torch import ORTModule
from onnxtrain.torch.export import export


@dataclass
class Result:
    """What a run gives."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds_per_batch: float = 0.0
    exported_accuracy: float = 0.0


def main(arguments: Sequence[str] | None = None) -> Result:
    options = parse(arguments)
    torch.manual_seed(options.seed)
    corpus = load(options.length, options.vocabulary)
    print(
        f"{len(corpus.train[0])} sentences of {len(corpus.packages)} packages, "
        f"{len(corpus.words)} words"
    )
    size = (options.width, options.heads, options.layers, options.length, options.dropout)
    encoder = Encoder(len(corpus.words), *size)
    if options.pretrain:
        pretrain(encoder, corpus, options)
    classifier = Classifier(encoder, len(corpus.packages), options.dropout)
    result = fine_tune(wrap(classifier, options), corpus, options)
    save(classifier, corpus, options)
    result.exported_accuracy = accuracy_of_file(options.output, corpus, options.batch)
    print(f"{options.output}: accuracy {result.exported_accuracy:.3f} in onnxruntime alone")
    return result


def wrap(module: nn.Module, options: argparse.Namespace) -> nn.Module:
    """The module, in onnxruntime unless asked otherwise."""
    return module if options.plain_torch else ORTModule(module, exporter=options.exporter)


def pretrain(encoder: Encoder, corpus: Corpus, options: argparse.Namespace) -> None:
    """Let the encoder guess hidden words for a while."""
    model = wrap(MaskedWords(encoder), options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    draw = torch.Generator().manual_seed(options.seed)
    done, total = 0, 0.0
    while done < options.pretrain:
        for tokens, _ in batches(corpus.train, options.batch, draw)[: options.pretrain - done]:
            hidden, targets = hide(tokens, len(corpus.words), draw)
            optimizer.zero_grad()
            scores = model(hidden)
            loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            done, total = done + 1, total + loss.item()
            if done % options.log_every == 0:
                print(f"pretraining step {done}: loss {total / options.log_every:.3f}")
                total = 0.0


def fine_tune(model: nn.Module, corpus: Corpus, options: argparse.Namespace) -> Result:
    """Teach the classes, at a lower rate, with a warm-up."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, weight_decay=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))
    draw = torch.Generator().manual_seed(options.seed)
    result, times = Result(), []
    for epoch in range(1, options.epochs + 1):
        model.train()
        for step, (tokens, labels) in enumerate(batches(corpus.train, options.batch, draw)):
            if options.steps and step == options.steps:
                break
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
            times.append(time.perf_counter() - start)
            result.losses.append(loss.item())
        result.accuracies.append(accuracy(model, corpus, options.batch))
        recent = sum(result.losses[-50:]) / len(result.losses[-50:])
        print(f"epoch {epoch}: loss {recent:.3f}, accuracy {result.accuracies[-1]:.3f}")
    result.seconds_per_batch = sorted(times)[len(times) // 2]
    print(f"{1e3 * result.seconds_per_batch:.1f} ms per batch of {options.batch}")
    return result


def accuracy(model: nn.Module, corpus: Corpus, size: int) -> float:
    """Share of the validation sentences whose package is found."""
    model.eval()
    right = 0
    with torch.no_grad():
        for tokens, labels in batches(corpus.valid, size):
            right += int((model(tokens).argmax(1) == labels).sum())
    return right / len(corpus.valid[0])


def save(classifier: Classifier, corpus: Corpus, options: argparse.Namespace) -> None:
    """Write the classifier for inference, batch and length open."""
    found = export(
        classifier,
        [corpus.valid[0][:2]],
        input_names=["tokens"],
        output_names=["scores"],
        dynamic_axes={"tokens": {0: "batch", 1: "length"}},
        training=False,
        exporter=options.exporter,
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(found.model, options.output)


def accuracy_of_file(path: Path, corpus: Corpus, size: int) -> float:
    """The same share, by the exported file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    right = 0
    for tokens, labels in batches(corpus.valid, size):
        (scores,) = session.run(None, {"tokens": tokens.numpy()})
        right += int((scores.argmax(1) == labels.numpy()).sum())
    return right / len(corpus.valid[0])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain-torch", action="store_true", help="do not use ORTModule")
    parser.add_argument("--pretrain", type=int, default=300, help="steps of masked words first")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="at most so many per epoch")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--exporter", choices=["dynamo", "torchscript"])
    parser.add_argument("--output", type=Path, default=Path("classifier.onnx"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
