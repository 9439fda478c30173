"""A small student learns from a large teacher: a second ONNX model, run in the same step."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from onnxtrain import artifacts, losses, optim
from onnxtrain.api import Trainer
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits
from onnxtrain.distillation import with_teacher
from onnxtrain.losses.base import Loss

Rows = tuple[np.ndarray, ...]
UNSEEN = 3
"""The digit that one student is never shown."""
STUDENT = """
<ir_version: 8, opset_import: ["": 18]>
student (float[N, 1, 8, 8] image) => (float[N, 10] scores) {
    pixels = Flatten (image)
    hidden = Gemm <transB = 1> (pixels, fc1_weight, fc1_bias)
    active = Relu (hidden)
    scores = Gemm <transB = 1> (active, fc2_weight, fc2_bias)
}
"""


def student_network(width: int = 12, seed: int = 0) -> onnx.ModelProto:
    """Two dense layers: 910 numbers where the teacher has 38,282."""
    model = onnx.parser.parse_model(STUDENT)
    rng = np.random.default_rng(seed)
    sizes = {"fc1": (width, 64), "fc2": (10, width)}
    for name, (outputs, inputs) in sizes.items():
        weight = rng.normal(size=(outputs, inputs)) * np.sqrt(2 / inputs)
        values = {"weight": weight, "bias": np.zeros(outputs)}
        for part, value in values.items():
            tensor = onnx.numpy_helper.from_array(value.astype(np.float32), f"{name}_{part}")
            model.graph.initializer.append(tensor)
    return model


def fitted(
    model: onnx.ModelProto, loss: Loss, rows: Rows, folder: Path, epochs: int, rate: float = 5e-3
) -> Path:
    """Train; what is written has no teacher, whatever the model had."""
    folder.mkdir(parents=True, exist_ok=True)
    taught = any(t.name.startswith("teacher.") for t in model.graph.initializer)
    artifacts.generate_artifacts(
        model,
        loss=loss,
        loss_input_names=["scores", "teacher.scores"] if taught else ["scores"],
        optimizer=optim.adamw(),
        artifact_directory=folder,
    )
    trainer = Trainer.from_directory(folder, learning_rate=rate)
    trainer.fit(rows, epochs, batch_size=32, progress=False)
    path = folder / "trained.onnx"
    trainer.export(path)
    return path


def answers(path: Path, images: np.ndarray) -> np.ndarray:
    """The digits that a model sees, in plain onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"image": images})[0]).argmax(1)


def few_labels(teacher: Path, rows: Rows, new: Rows, out: Path, epochs: int) -> None:
    """A hundred images have labels; the teacher has an opinion on all of them."""
    images, labels = rows
    student = student_network()
    few = epochs * len(labels) // 100  # as many steps as with all images
    hard = losses.CrossEntropyLoss()
    alone = fitted(student, hard, (images[:100], labels[:100]), out / "few_labels", few)
    taught = fitted(
        with_teacher(student, teacher),
        losses.DistillationLoss(temperature=4.0, alpha=0.0),  # no labels: no input for them
        (images,),
        out / "taught",
        epochs,
    )
    for name, path in (("100 labels", alone), ("the teacher, no labels", taught)):
        right = (answers(path, new[0]) == new[1]).mean()
        print(f"student from {name}: {right:.3f} of the new images right")
    sizes = [path.stat().st_size for path in (teacher, taught)]
    print(f"teacher {sizes[0]:,} bytes, student {sizes[1]:,}")


def one_digit_unseen(teacher: Path, rows: Rows, new: Rows, out: Path, epochs: int) -> None:
    """What a class looks like can be told without an example of it, by doubts about others."""
    images, labels = (part[rows[1] != UNSEEN] for part in rows)
    student = student_network()
    unseen = new[1] == UNSEEN
    runs = {"labels alone": (student, losses.CrossEntropyLoss())}
    for temperature in (1.0, 4.0, 16.0):
        loss = losses.DistillationLoss(temperature, alpha=0.1)
        runs[f"a teacher at temperature {temperature:g}"] = (with_teacher(student, teacher), loss)
    for name, (model, loss) in runs.items():
        path = fitted(model, loss, (images, labels), out / name.replace(" ", "_"), epochs)
        given = answers(path, new[0])
        right = [(given[which] == new[1][which]).mean() for which in (unseen, ~unseen)]
        print(f"no {UNSEEN} shown, {name}: {right[0]:.3f} of the {UNSEEN}s, {right[1]:.3f} others")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("distilled"), help="folder for all files")
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args()
    began = time.perf_counter()
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order].astype(np.int64)
    rows, new = (images[:1300], labels[:1300]), (images[1300:], labels[1300:])
    epochs = 15 if options.quick else options.epochs

    teacher = fitted(
        digits_network(), losses.CrossEntropyLoss(), rows, options.out / "teacher", 8, 2e-3
    )
    print(f"teacher: {(answers(teacher, new[0]) == new[1]).mean():.3f} of the new images right")
    few_labels(teacher, rows, new, options.out, epochs)
    one_digit_unseen(teacher, rows, new, options.out, epochs)
    print(f"{time.perf_counter() - began:.0f} s; PyTorch was imported: {'torch' in sys.modules}")


if __name__ == "__main__":
    main()
