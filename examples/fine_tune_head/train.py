"""Fine-tune only the head of a trained model, and prove that nothing else moved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from models import PACKAGED, packaged, stand_in
from onnx import numpy_helper

from onnxtrain import artifacts, losses, transfer
from onnxtrain.api import Trainer


def digits(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits from `low` to `high`, as classes that count from 0."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    chosen = (labels >= low) & (labels <= high)
    x = (images[chosen] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return x, (labels[chosen] - low).astype(np.int64)


def logs(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Made-up log files of three kinds, as Magika sees a file: 1024 bytes from each end."""
    words = np.array(["open", "close", "read", "retry", "user", "cache", "disk", "queue", "worker"])
    x = np.full((rows, 2048), 256, np.int32)
    y = rng.integers(0, 3, rows)
    for row, kind in enumerate(y):
        lines = []
        for _ in range(rng.integers(4, 30)):
            a, b = rng.choice(words, 2)
            n, day, hour = rng.integers(100, 999), rng.integers(1, 29), rng.integers(10, 24)
            lines.append(
                (
                    f'10.0.{day}.{n % 256} - - [{day:02}/Mar/2026:{hour}:05:11] "GET /{a}" {n}',
                    f"Mar {day:2} {hour}:05:11 host {a}[{n}]: {b} failed",
                    f"ts={n}{day} level=info op={a} target={b} ms={n}",
                )[kind]
            )
        content = np.frombuffer("\n".join(lines).encode(), np.uint8)
        head, tail = content[:1024], content[-1024:]
        x[row, : len(head)] = head
        x[row, 2048 - len(tail) :] = tail
    return x, y.astype(np.int64)


def choose(options: argparse.Namespace) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """The trained model, and data of the new task."""
    rng = np.random.default_rng(0)
    if options.model == "stand-in":
        epochs = 3 if options.quick else 10
        model = stand_in(*digits(0, 4), options.out / "stand_in", epochs)
        x, y = digits(5, 9)
    else:
        path = packaged(options.model) if options.model in PACKAGED else Path(options.model)
        model = onnx.load(path)
        if options.data:
            with np.load(options.data) as arrays:
                x, y = arrays["x"], arrays["y"].astype(np.int64)
        elif options.model == "magika":
            x, y = logs(60 if options.quick else 300, rng)
        else:
            raise SystemExit("Give --data: a .npz file with the arrays x (inputs) and y (classes).")
    order = rng.permutation(len(x))
    return model, x[order], y[order]


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """All weights by name."""
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def main(given: Sequence[str] | None = None) -> tuple[float, int]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="stand-in", help=f"stand-in, {', '.join(PACKAGED)}, or an .onnx file"
    )
    parser.add_argument("--data", type=Path, help="a .npz file with x and y, for other models")
    parser.add_argument("--out", type=Path, default=Path("fine_tuned"), help="folder for files")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args(given)
    options.out.mkdir(parents=True, exist_ok=True)
    pretrained, x, y = choose(options)
    classes = int(y.max()) + 1
    head = transfer.new_head(pretrained, classes)
    model = head.model
    cut = int(0.8 * len(x))

    artifacts.generate_artifacts(
        model,
        requires_grad=list(head.parameters),  # whatever is not named stays a constant
        loss=losses.CrossEntropyLoss(),
        loss_input_names=[head.scores],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=options.out,
        step_model=True,
    )
    nodes = len(onnx.load(options.out / "training_model.onnx").graph.node)
    print(f"forward model: {len(model.graph.node)} nodes; training model, with gradients: {nodes}")
    trainer = Trainer.from_directory(options.out, learning_rate=2e-3, metrics=["accuracy"])
    trainer.fit(
        (x[:cut], y[:cut]),
        epochs=5 if options.quick else options.epochs,
        batch_size=16,
        validation_data=(x[cut:], y[cut:]),
    )
    trainer.export(options.out / "trained.onnx")

    before, after = weights_of(model), weights_of(onnx.load(options.out / "trained.onnx"))
    frozen = [n for n in before if n not in head.parameters and n in after]
    moved = [n for n in frozen if before[n].tobytes() != after[n].tobytes()]
    weight = head.parameters[0]
    step = float(np.abs(before[weight] - after[weight]).max())
    numbers = sum(before[n].size for n in frozen)
    print(
        f"frozen: {len(frozen)} tensors, {numbers} numbers; {len(moved)} of them changed by a bit"
    )
    print(f"{weight} moved by up to {step:.3f}")

    session = onnxruntime.InferenceSession(str(options.out / "trained.onnx"))
    (scores,) = session.run([head.output], {session.get_inputs()[0].name: x[cut:]})
    accuracy = float((scores.argmax(axis=1) == y[cut:]).mean())
    print(f"accuracy on {len(x) - cut} new examples of {classes} new classes: {accuracy:.3f}")
    return accuracy, len(moved)


if __name__ == "__main__":
    main()
