"""Train a digits classifier from random weights to 97 % and more, then use the exported file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from model import build
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain import artifacts
from onnxtrain.api import CosineAnnealingLR, Trainer


def data() -> tuple[np.ndarray, ...]:
    """Images of 8 × 8 pixels in [0, 1], and the digit each one shows; a fifth is for the test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels
    )
    return tuple(parts)


def main(given: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("digits"), help="folder for all files")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args(given)
    epochs = 3 if options.quick else options.epochs
    x, x_test, y, y_test = data()

    # Offline: the model, a loss and an optimizer become files that train on any onnxruntime.
    options.out.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        build(),
        requires_grad=["conv*", "fc*"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=options.out,
        step_model=True,
        training_mode="train",  # Dropout is active in the training model, and only there
    )

    # On the device: only numpy and onnxruntime are needed from here on.
    steps = epochs * -(-len(x) // 32)
    trainer = Trainer.from_directory(
        options.out,
        learning_rate=2e-3,
        scheduler=lambda optimizer: CosineAnnealingLR(optimizer, T_max=steps),
        metrics=["accuracy"],
    )
    trainer.fit((x, y), epochs=epochs, batch_size=32, validation_data=(x_test, y_test))
    trainer.export(options.out / "trained.onnx")

    session = onnxruntime.InferenceSession(str(options.out / "trained.onnx"))
    (scores,) = session.run(["logits"], {"image": x_test})
    accuracy = float((scores.argmax(axis=1) == y_test).mean())
    print(f"accuracy of {options.out / 'trained.onnx'} on {len(x_test)} new images: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
