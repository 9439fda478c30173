"""A sentence encoder learns which words mean the same, from pairs of sentences alone."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from onnxtrain import artifacts, losses, optim, text
from onnxtrain.api import Trainer

PAIRS = Path(__file__).with_name("pairs.jsonl")
SUBJECTS = (
    ("man", "guy"),
    ("woman", "lady"),
    ("child", "kid"),
    ("dog", "puppy"),
    ("cat", "kitten"),
)
ACTIONS = (
    ("is running", "jogs"), ("is sleeping", "naps"), ("is eating", "munches"),
    ("is reading", "studies"), ("is playing", "romps"), ("is singing", "sings"),
)  # fmt: skip
PLACES = (
    ("through the park", "across the garden"), ("in the bedroom", "in the chamber"),
    ("in the kitchen", "in the galley"), ("in the office", "in the workroom"),
    ("on the street", "on the road"),
)  # fmt: skip
GRAPH = """
<ir_version: 8, opset_import: ["": 17]>
encoder (int64[batch, length] input_ids, int64[batch, length] attention_mask)
    => (float[batch, length, {size}] last_hidden_state) {{
    embedded = Gather (embedding, input_ids)
    mixed = MatMul (embedded, mix_weight)
    active = Tanh (mixed)
    last_hidden_state = Add (embedded, active)
}}
"""


def paraphrases(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Two sentences that say the same, in other words where the draw says so."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        subject, action, place = (draw.choice(group) for group in (SUBJECTS, ACTIONS, PLACES))
        sides = [
            f"A {draw.choice(subject)} {draw.choice(action)} {draw.choice(place)}."
            for _ in range(2)
        ]
        rows.append((sides[0], sides[1]))
    return rows


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Whole words in lower case."""
    words = sorted({w for t in texts for w in t.lower().replace(".", " .").split()})
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def make_encoder(vocabulary: int, size: int) -> onnx.ModelProto:
    """States of tokens from random weights; the pooling is added later."""
    model = onnx.parser.parse_model(GRAPH.format(size=size))
    rng = np.random.default_rng(0)
    for name, shape in {"embedding": (vocabulary, size), "mix_weight": (size, size)}.items():
        value = rng.normal(0.0, size**-0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def correlation(
    trainer: Trainer, inputs: text.LanguageInputs, tokenizer: text.Tokenizer
) -> list[float]:
    """Rank correlation of the cosines with the scores that people gave, full and cut to 8."""
    data = text.similarity_rows(PAIRS, tokenizer, inputs)
    target = data.pop("target")
    first, second = trainer.predict(data)
    return [
        text.spearman(text.cosine_similarities(first[:, :size], second[:, :size]), target)
        for size in (first.shape[1], 8)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--output", default="encoder")
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    options = parser.parse_args()
    folder = Path(options.output)
    folder.mkdir(exist_ok=True)
    rows = paraphrases(600 if options.quick else options.rows)
    backend = make_tokenizer([t for row in rows for t in row])
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = text.load_tokenizer(backend)

    encoder = make_encoder(tokenizer.size, 32)
    inputs = text.LanguageInputs.of(encoder)
    artifacts.generate_artifacts(
        text.sentence_encoder(encoder, texts=2),
        loss=losses.MatryoshkaLoss(losses.MultipleNegativesRankingLoss(), [32, 8]),
        optimizer=optim.adamw(),
        artifact_directory=folder,
    )
    trainer = Trainer.from_directory(folder, learning_rate=1e-2)
    before = correlation(trainer, inputs, tokenizer)
    trainer.fit(text.similarity_rows(rows, tokenizer, inputs), options.epochs, 32)
    after = correlation(trainer, inputs, tokenizer)
    print(f"Spearman, 32 numbers per sentence: {before[0]:.3f} → {after[0]:.3f}")
    print(f"Spearman, the first 8 of them: {before[1]:.3f} → {after[1]:.3f}")
    text.with_weights(encoder, trainer.state, folder / "encoder.onnx")
    text.sentence_encoder(
        folder / "encoder.onnx", normalize=True, output=folder / "sentence_encoder.onnx"
    )


if __name__ == "__main__":
    main()
