"""A small GPT learns from text, and then another style, in adapters: all of it without PyTorch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
from model import gpt
from texts import logbook, wikitext
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from onnxtrain import artifacts, lora, losses, optim, text
from onnxtrain.api import Trainer
from onnxtrain.schedulers import CosineAnnealingLR

CONTEXT, BATCH = 64, 8


def make_tokenizer(texts: Sequence[str], vocabulary: int) -> text.Tokenizer:
    """Pieces of words (byte-pair encoding), learned from the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return text.load_tokenizer(tokenizer)


def prepare(model: onnx.ModelProto, folder: Path, rate: float, steps: int) -> Trainer:
    """Training files for a model, and what trains them."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model,
        loss=losses.CausalLMLoss(),
        optimizer=optim.adamw(weight_decay=0.01, clip=optim.ClipNorm(1.0)),
        artifact_directory=folder,
    )
    return Trainer.from_directory(
        folder,
        learning_rate=rate,
        metrics=["perplexity"],
        scheduler=lambda optimizer: CosineAnnealingLR(optimizer, steps),
    )


def learn(
    base: onnx.ModelProto,
    tokenizer: text.Tokenizer,
    train: Sequence[str],
    valid: Sequence[str],
    folder: Path,
    epochs: int,
) -> None:
    """Train from random weights; the model goes to ``trained.onnx``."""
    inputs = text.LanguageInputs.of(base)
    rows = text.causal_lm_rows(train, tokenizer, CONTEXT).arrays(inputs)
    held_out = text.causal_lm_rows(valid, tokenizer, CONTEXT).arrays(inputs)
    trainer = prepare(base, folder / "base", 3e-3, epochs * -(-len(rows["labels"]) // BATCH))
    print("before:", repr(text.generate(trainer.predict, inputs, tokenizer, "The ", 12)))
    start = trainer.evaluate(held_out)["perplexity"]
    trainer.fit(rows, epochs, BATCH, validation_data=held_out)
    end = trainer.evaluate(held_out)["perplexity"]
    print(f"perplexity of new text: {start:.1f} → {end:.1f}")
    sample = text.generate(
        trainer.predict, inputs, tokenizer, "The ", 24, temperature=0.8, top_k=20
    )
    print("after:", repr(sample))
    text.with_weights(base, trainer.state, folder / "trained.onnx")


def adapt(tokenizer: text.Tokenizer, folder: Path, entries: int, epochs: int) -> None:
    """Another style, in adapters beside the layers; merged it goes to ``logbook.onnx``."""
    adapted = lora.add(folder / "trained.onnx", rank=16, alpha=32)
    inputs = text.LanguageInputs.of(adapted)
    rows = text.causal_lm_rows(logbook(entries), tokenizer, CONTEXT).arrays(inputs)
    unseen = text.causal_lm_rows(logbook(40, seed=1), tokenizer, CONTEXT).arrays(inputs)
    trainer = prepare(adapted, folder / "style", 1e-2, epochs * -(-len(rows["labels"]) // BATCH))
    start = trainer.evaluate(unseen)["perplexity"]
    trainer.fit(rows, epochs, BATCH)
    end = trainer.evaluate(unseen)["perplexity"]
    print(f"perplexity of unseen log entries: {start:.1f} → {end:.1f}")
    entry = text.generate(trainer.predict, inputs, tokenizer, "Day 7.", 30)
    print("a log entry:", repr(entry))
    adapter = lora.Adapter.of(adapted, trainer.state)
    lora.merge(folder / "trained.onnx", adapter, output=folder / "logbook.onnx")
    lora.save_peft(adapter, folder / "adapter")
    numbers = sum(value.data.size for _, value in trainer.state.parameters)
    print(f"the style takes {numbers:,} numbers in {folder / 'adapter'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="train on this .txt, .jsonl or .parquet file instead")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--output", default="gpt")
    parser.add_argument("--quick", action="store_true", help="little text, a smaller model")
    options = parser.parse_args()
    folder = Path(options.output)
    folder.mkdir(exist_ok=True)
    train, valid = wikitext()
    if options.text:
        given = [d.text for d in text.read_documents(options.text, by_line=True)]
        train, valid = [t for i, t in enumerate(given) if i % 10], given[::10]
    size, epochs, vocabulary = 96, options.epochs, options.vocabulary
    if options.quick:
        train, valid, size, epochs, vocabulary = train[:80], valid[:8], 48, 2, 400
    tokenizer = make_tokenizer(train, vocabulary)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    learn(gpt(tokenizer.size, size, context=CONTEXT), tokenizer, train, valid, folder, epochs)
    adapt(tokenizer, folder, 200 if options.quick else 400, 4 if options.quick else 12)
    print("PyTorch was imported:", "torch" in sys.modules)


if __name__ == "__main__":
    main()
