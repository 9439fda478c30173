"""A small language model with adapters, its tokenizer, and what Python makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxtrain import artifacts, lora, losses, optim, text
from tests.text.models import TEXTS, decoder

VOCABULARY = 300
LENGTH = 16


def byte_pairs(path: Path, texts: list[str] = TEXTS) -> text.Tokenizer:
    """A tokenizer.json of byte-level byte-pair encoding, learned from some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=alphabet,
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    made.save(str(path))
    return text.load_tokenizer(path)


def base_model(path: Path, seed: int = 0) -> Path:
    onnx.save(decoder(1, vocabulary=VOCABULARY, seed=seed), path)
    return path


def write(base: Path, folder: Path, rank: int = 2, *, use_dora: bool = False) -> onnx.ModelProto:
    """Artifacts of the model with adapters; gives the adapted model."""
    folder.mkdir()
    adapted = lora.add(
        text.without_cache(base), targets="q_proj|v_proj", rank=rank, alpha=3.0, use_dora=use_dora
    )
    artifacts.generate_artifacts(
        adapted, loss=losses.CausalLMLoss(), optimizer=optim.adamw(), artifact_directory=folder,
        browser=True,
    )  # fmt: skip
    return adapted


def trained(adapted: onnx.ModelProto, seed: int = 1) -> lora.Adapter:
    """An adapter that is not at its beginning: B is not zero."""
    begin = lora.Adapter.of(adapted)
    rng = np.random.default_rng(seed)
    layers = {
        name: lora.LayerAdapter(one.a, rng.normal(size=one.b.shape).astype(np.float32))
        for name, one in begin.layers.items()
    }
    return lora.Adapter(begin.config, layers, begin.base)
