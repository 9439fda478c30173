"""A network with weights of four bits: rounded after training, and trained with the rounding."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from onnxtrain import artifacts, losses, optim, quant
from onnxtrain.api import Trainer
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits


def trained(model: onnx.ModelProto, data: tuple[np.ndarray, np.ndarray], folder: Path,
            rate: float, epochs: int) -> Trainer:  # fmt: skip
    """Train a model of images to digits."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model,
        loss=losses.CrossEntropyLoss(),
        optimizer=optim.adamw(),
        artifact_directory=folder,
        step_model=True,
    )
    trainer = Trainer.from_directory(folder, learning_rate=rate)
    trainer.fit(data, epochs, batch_size=32, progress=False)
    return trainer


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of the images that onnxruntime tells right."""
    session = onnxruntime.InferenceSession(str(path))
    return float((session.run(None, {"image": images})[0].argmax(1) == labels).mean())


def main(given: Sequence[str] | None = None) -> tuple[float, float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("four_bits"), help="folder for all files")
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args(given)
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    rows, new = (images[:1300], labels[:1300]), (images[1300:], labels[1300:])
    epochs = 4 if options.quick else 12

    floats = options.out / "floats.onnx"
    trained(digits_network(), rows, options.out / "float_run", 2e-3, epochs).export(floats)
    static = options.out / "static.onnx"
    prepared = quant.prepare_qat(
        floats, rows[0][:256], weight_bits=4, per_channel=False, weight_observer="minmax"
    )
    quant.convert(prepared, output=static)
    learned = options.out / "learned.onnx"
    trainer = trained(prepared, rows, options.out / "run", 1e-3, epochs // 2)
    quant.convert(prepared, trainer.state, output=learned)

    results = [accuracy(path, *new) for path in (floats, static, learned)]
    for path, result in zip((floats, static, learned), results):
        print(f"{path.name}: {result:.3f} of the new images right, {path.stat().st_size:,} bytes")
    return results[0], results[1], results[2]


if __name__ == "__main__":
    main()
